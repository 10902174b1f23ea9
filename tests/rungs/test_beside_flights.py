"""What steps in flight keep other actions from is what the kit asks a run to reach."""

from random import Random

import flight_draws
import spec_draws

from conformance.rungs.flights import SHORT_BESIDE, UNTIL
from spec.machines import actions as act
from spec.machines.actions import Action, Deliver
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import Reason

MACHINE: Machine = flight_draws.WHOLE
Pair = tuple[type, Reason]
UNASKED: set[Pair] = {
    (act.Clone, Reason.OUT_OF_PAGES),
    (act.Assign, Reason.OUT_OF_PAGES),
    (act.Dispatch, Reason.FLIGHTS_FULL),
    (act.Dispatch, Reason.TOO_LONG),
    (act.Round, Reason.QUEUE_EMPTY),
}
"""What is not asked for as a corner. Of the first two SHORT_BESIDE says why. The others concern no
cells that are settled: a delivery makes room for a step, or in a ring, or queues a token.
"""


def reasons(state: State, action: Action) -> set[Reason]:
    """Why an action is refused."""
    return {refusal.reason for refusal in MACHINE.refusals(state, action)}


def delivered(state: State) -> State:
    """The state after the delivery of what has retired."""
    while state.flights and state.flights[0].retired:
        state = MACHINE.effect(state, Deliver())
    return state


def found() -> tuple[set[Pair], set[Pair]]:
    """What is done if nothing is in flight, and what is done once what has retired is delivered."""
    alone, until = set[Pair](), set[Pair]()
    for seed in range(900):
        rng = Random(seed)
        state = flight_draws.begin(rng)
        for number in range(60):
            other = rng.random() < 0.3
            action = (spec_draws if other else flight_draws).propose(state, rng, number)
            why = reasons(state, action)
            if not why:
                state = MACHINE.effect(state, action)
                continue
            if Reason.IN_FLIGHT in why or not state.flights:
                continue
            pairs = {(type(action), reason) for reason in why}
            if not reasons(state._replace(flights=()), action):
                alone |= pairs
            elif not reasons(delivered(state), action):
                until |= pairs
    return alone, until


def test_no_other_action_lacks_what_steps_in_flight_have_or_waits_for_a_delivery() -> None:
    """In many histories; what only rare states show, the generators of the kit aim at."""
    alone, until = found()
    short = {(kind, reason) for reason, (kinds, _) in SHORT_BESIDE.items() for kind in kinds}

    assert alone <= short | UNASKED, alone - short - UNASKED
    assert until <= {*UNTIL.items()} | UNASKED | short, until
    assert len(alone & short) > len(short) // 2
    assert until & {*UNTIL.items()}
