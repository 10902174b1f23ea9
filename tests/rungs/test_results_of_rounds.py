"""The results of a call of several rounds, beside a loop of rounds written from the docstrings."""

from typing import Final

from conformance.exploration.instances import instance
from conformance.protocol import Rounds
from conformance.rungs.registry import legal_results
from spec.machines.actions import Generate, Round
from spec.state import State
from spec.vocabulary import CleanupMode, Geometry, Reason

INSTANCE: Final = instance(
    "scheduling", Geometry(pages=2, slots=2, page_size=2, pages_per_seq=2), CleanupMode.NONE
)
MACHINE: Final = INSTANCE.machine
STATES: Final = 2_000


def some_states() -> list[State]:
    """States of a scheduling graph, breadth first from the initial one."""
    found = {INSTANCE.initial(): None}
    for state in (states := list(found)):
        for move in INSTANCE.moves:
            action = move.action(state)
            if action is not None and not MACHINE.refusals(state, action):
                after = MACHINE.step(state, action)
                if after not in found and len(found) < STATES:
                    found[after] = None
                    states.append(after)
    return states


def rounds(state: State) -> tuple[int, list[Reason], State]:
    """How many rounds can be done one after the other, and why no more can."""
    for done in range(state.limits.rounds):
        reasons = {refusal.reason for refusal in MACHINE.refusals(state, Round())}
        if reasons:
            return done, [reason for reason in Reason if reason in reasons], state
        state = MACHINE.step(state, Round())
    return state.limits.rounds, [], state


def test_a_call_of_rounds_may_name_each_reason_of_the_round_that_is_refused() -> None:
    """The results have the rounds done, with each reason of the next round, or with none."""
    seen = set[tuple[int, int]]()
    for state in some_states():
        done, reasons, after = rounds(state)
        seen.add((done, len(reasons)))
        expected = [Rounds(done, reason) for reason in reasons] or [Rounds(done, None)]

        assert sorted(expected, key=str) == sorted(
            legal_results(MACHINE, state, Generate(), after), key=str
        )
        assert after == MACHINE.step(state, Generate())
    assert {(0, 1), (0, 2), (1, 1), (2, 0)} <= seen
