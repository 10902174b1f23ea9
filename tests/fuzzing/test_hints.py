"""Hints of the adapter check, over every declaration on which they depend."""

from typing import Any, Final

import pytest
from attrs import evolve
from spec_engine import small
from toy_engine import Adapter

from conformance.fuzzing.adapter_check import _hints
from conformance.lockstep.lockstep import Violation
from conformance.lockstep.run import Finding
from spec.machines.actions import Clone, Reserve
from spec.vocabulary import CleanupMode, Reason, default_limits

LEAVES: Final = {Reserve(None): True, Reserve(0): False, Clone(0): True, Clone(0, 1): False}


@pytest.mark.parametrize("last", LEAVES)
@pytest.mark.parametrize(
    "guarded",
    [
        (),
        (Reason.NO_FREE_SLOT,),
        ((Reserve, Reason.NO_FREE_SLOT),),
        ((Clone, Reason.NO_FREE_SLOT),),
        ((Reserve, Reason.NO_FREE_SLOT), (Clone, Reason.NO_FREE_SLOT)),
    ],
)
def test_who_chooses_the_slot_is_asked_of_each_action(
    last: Reserve | Clone, guarded: tuple[Any, ...]
) -> None:
    """A hint on the choice of a slot depends on what is guarded for the last action itself."""
    sizes = small()
    engine = Adapter(sizes, default_limits(sizes), CleanupMode.INCREMENTAL)
    profile = evolve(engine.profile, guarded=guarded)
    view = engine.observe()
    violation = Violation("DET", "wrong", action=last, before=view, after=view)

    said = list(_hints(Finding((last,), "DET", "wrong", violation), profile))

    is_guarded = Reason.NO_FREE_SLOT in guarded or (type(last), Reason.NO_FREE_SLOT) in guarded
    name = type(last).__name__
    expected = LEAVES[last] and not is_guarded
    assert expected == any(f"{name} leaves the slot to the engine" in one for one in said)
