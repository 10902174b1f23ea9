"""Requests that arrive while others run, served by the scheduler of the specification."""

from random import Random
from typing import Final

from attrs import evolve

from conformance.history import Step
from conformance.rungs.record import Session
from conformance.rungs.shared_generators import ALPHABET, begin_anew
from spec import ladder, scheduler
from spec.machines import naive
from spec.machines.actions import Action, Reset, TakeOutputs
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import LAG, Params, Refused, Request

MOST_TURNS: Final = 16
MOST_WAITING: Final = 3
"""No further request arrives while so many wait."""


class _NotDone(Exception):
    """The engine refuses what the specification does: the scheduler cannot go on."""


def serve_arrivals(session: Session, drawn: int) -> Step:
    """Requests arrive at any time, and are served for some rounds; the last ones are left as is.

    An engine with steps in flight serves with a lag, or with none. The last steps are left in
    flight.

    Raises AssertionError, for PROG, if a round brings the oldest request no further, or with a lag
    more turns than it allows.
    """
    rng, machine = Random(drawn), ladder.machine_for(frozenset(session.actions))
    capacity = session.state.capacity
    needed = scheduler.actions_of(machine) | {Reset, TakeOutputs}
    if not needed <= session.actions or capacity.lookahead or capacity.reserve != "none":
        return session.rules["read_in_parts"](session, drawn)
    begin_anew(session)
    jobs: scheduler.Jobs = ()
    arrived, lag, stalled = list[int](), _lag(session, machine, rng), 0
    try:
        for _ in range(rng.randrange(4, MOST_TURNS)):
            jobs = _arrivals(session, machine, jobs, arrived, rng)
            jobs, stalled = _turn(session, machine, jobs, arrived, lag, stalled)
            if rng.randrange(2):
                session.take(TakeOutputs())
    except _NotDone:
        pass
    return TakeOutputs()


def _lag(session: Session, machine: Machine, rng: Random) -> int | None:
    """How many steps stay in flight, or None; an engine without the rung draws nothing."""
    if not scheduler.actions_of(machine, lag=0) <= session.actions:
        return None
    lags: tuple[int | None, ...] = (None, *range(LAG + 1))
    return rng.choice(lags)


def _arrivals(
    session: Session, machine: Machine, jobs: scheduler.Jobs, arrived: list[int], rng: Random
) -> scheduler.Jobs:
    """The jobs, and perhaps those of requests that arrive now, if they could run alone.

    Their ids are appended to `arrived`.
    """
    for _ in range(rng.randrange(3)):
        if sum(job.kept is not None for job in jobs) < MOST_WAITING:
            request = _request(session, rng)
            try:
                jobs = scheduler.arrive(machine, session.state, jobs, request)
            except Refused:
                continue
            arrived.append(request.id)
    return jobs


def _request(session: Session, rng: Random) -> Request:
    """A prompt of one of few texts, so that some begin alike; mostly it grows for long.

    A choice may stop early.
    """
    sizes = session.state.geometry
    longest = sizes.max_len - 1
    token, length = rng.randrange(ALPHABET), 1 + min(rng.randrange(longest) for _ in range(3))
    prompt = (token,) * (length - 1) + (rng.randrange(ALPHABET),)
    params = Params(
        max_new=1 + max(rng.randrange(sizes.max_len - length) for _ in range(3)),
        temperature=float(rng.randrange(2)),
        seed=rng.randrange(ALPHABET),
    )
    if not rng.randrange(4) and session.state.limits.stops:
        stops, _ = naive.generate(prompt, params, rng.randrange(2), window=sizes.window)
        params = evolve(params, stops=(stops[-1:],))
    choices = rng.randrange(1, min(2, sizes.slots) + 1)
    return Request(id=session.next_id(), prompt=prompt, params=params, n_generations=choices)


def _turn(
    session: Session,
    machine: Machine,
    jobs: scheduler.Jobs,
    arrived: list[int],
    lag: int | None,
    stalled: int,
) -> tuple[scheduler.Jobs, int]:
    """The jobs after a turn, and in how many turns in a row the oldest has gone no further."""

    def do(action: Action) -> State:
        before = session.state
        session.take(action)
        if session.state is before:
            raise _NotDone
        return session.state

    state = session.state
    before = scheduler.ranks(state, jobs, arrived)
    jobs = scheduler.turn(machine, state, jobs, do, lag=lag)
    after = scheduler.ranks(session.state, jobs, arrived)
    if len(state.outputs) < state.limits.outputs or not scheduler.oldest_stalls(before, after):
        stalled = scheduler.turns_stalled(stalled, before, after)
    if stalled > (lag or 0):
        raise AssertionError(f"PROG: the oldest request goes no further: {before}, then {after}")
    return jobs, stalled
