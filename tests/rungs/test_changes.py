"""Steps with one changed value: what changes, and which guards that is enough for."""

import random

import pytest
from attrs import asdict
from spec_engine import MACHINE, small
from spec_tools import grown

from conformance.protocol import Action
from conformance.rungs.changes import changed
from conformance.rungs.shared_generators import WIDTH, Digits
from spec.machines import actions as act
from spec.state import State
from spec.vocabulary import Params, Reason, Request, default_limits

ONE = Params(max_new=2, stops=((3,),))
WAITS = Request(id=7, prompt=(1, 2), params=ONE)


def after(*actions: Action) -> State:
    """The state after these actions."""
    state = MACHINE.initial(small(), default_limits(small()))
    for action in actions:
        state = MACHINE.step(state, action)
    return state


def forms(state: State, action: Action) -> list[Action]:
    """Many changed forms of an action."""
    rng = random.Random(0)
    found = (changed(state, action, Digits(rng.getrandbits(WIDTH))) for _ in range(600))
    return [form for form in found if form is not None]


@pytest.mark.parametrize(
    ("before", "action", "reasons"),
    [
        (
            grown(0, 1),
            act.Allocate(((0, 1),)),
            {Reason.SLOT_RANGE, Reason.SLOT_UNUSED, Reason.BATCH_WIDTH, Reason.BATCH_POSITIONS},
        ),
        (
            (act.Reserve(0),),
            act.Assign(0, (1,), ONE, 5),
            {Reason.SLOT_RANGE, Reason.SLOT_UNUSED, Reason.STOPS, Reason.TOO_LONG},
        ),
        (
            (act.Submit(WAITS),),
            act.Prefill((Request(id=9, prompt=(1, 2), params=ONE),)),
            {Reason.PREFILL_WIDTH, Reason.STOPS, Reason.CHOICE_TAKEN, Reason.TOO_LONG},
        ),
        (
            (act.Submit(WAITS),),
            act.Submit(Request(id=9, prompt=(1, 2), params=ONE)),
            {Reason.CHOICE_TAKEN, Reason.STOPS, Reason.TOO_LONG},
        ),
    ],
)
def test_one_changed_value_is_enough_for_most_guards(
    before: tuple[Action, ...], action: Action, reasons: set[Reason]
) -> None:
    """Among the changed forms of a legal action is one that is refused for each reason alone."""
    state = after(*before)

    assert not MACHINE.refusals(state, action)
    found = [{one.reason for one in MACHINE.refusals(state, form)} for form in forms(state, action)]
    assert reasons <= {reason for one in found if len(one) == 1 for reason in one}


def test_one_field_changes_at_a_time() -> None:
    """A changed action differs from the first in one field at most."""
    action = act.Assign(0, (1, 2), ONE, 5, 1)
    whole = asdict(action)

    for form in forms(after(act.Reserve(0)), action):
        assert 1 >= sum(whole[name] != value for name, value in asdict(form).items())


def test_an_action_without_fields_has_no_changed_form() -> None:
    """There is nothing to change in a round."""
    assert [] == forms(after(), act.Round())
