"""The slots that a line is about, for every action that names one."""

from typing import Any

import pytest
from attrs import fields

from conformance.recordings.format import Line
from conformance.recordings.slots import slots_of
from spec import ladder
from spec.machines import actions as act

ALL = frozenset(ladder.whole().calls | ladder.whole_appending().calls)
NAMING = sorted(
    (kind for kind in ALL if "slot" in {one.name for one in fields(kind)}),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", NAMING)
def test_a_line_is_about_the_slot_that_its_action_names(kind: type) -> None:
    """Whatever else it names, an action with a slot is about that slot alone."""
    step: Any = object.__new__(kind)  # no other value has a meaning here
    object.__setattr__(step, "slot", 2)

    assert (2,) == slots_of(Line(step, None, None, {}))


def test_an_action_without_a_slot_is_about_none() -> None:
    """A line of a whole engine is about no slot."""
    assert () == slots_of(Line(act.Reset(), None, None, {}))
    assert {"Release", "Sample", "Free"} <= {kind.__name__ for kind in NAMING}
