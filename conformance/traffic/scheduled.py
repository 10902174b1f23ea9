"""Requests served by the scheduler of the specification, in a pool that may be too small for them.

They begin before their worst case fits. Where pages lack, the newest give theirs back, and go on
later from the tokens that they had drawn. With a lag steps are dispatched before the outcome of
earlier ones is known.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Final

from attrs import define, field

from conformance.lockstep.lockstep import Lockstep, Violation
from conformance.traffic.hits import Do, must_take, too_small
from spec import pool, scheduler
from spec.machines.actions import Action, Dispatch, MixedRound, Preempt
from spec.machines.scheduling import packed
from spec.state import State
from spec.vocabulary import Refused, Request

NO_FURTHER: Final = "a round brings the oldest request no further"
LATE: Final = "more turns than the lag bring the oldest request no further"
GAINS_NOTHING: Final = "a preemption gains no page now"
WAITING: Final = 16
"""How many requests wait to begin."""
CHUNK: Final = 112
"""How many tokens of prompts a round has room for, beside one of each slot."""


@define
class Scheduled:
    """Begins requests in their order, and preempts the newest where pages lack.

    lag: of the turns, see `scheduler.turn`. preemptions: how often a request was preempted.
    rounds: how many there were, or steps that were dispatched. tokens: that they wrote. jobs: the
    requests that have arrived and have not finished. most_in_flight: steps. most_held: pages that
    steps in flight name; most_held_alone: those of them that no row named any more.
    """

    coming: Iterator[Request]
    lag: int | None = None
    preemptions: int = 0
    tokens: int = 0
    rounds: int = 0
    jobs: scheduler.Jobs = ()
    most_in_flight: int = 0
    most_held: int = 0
    most_held_alone: int = 0
    _stalled: int = 0
    _free_before: int | None = None
    _arrived: list[int] = field(factory=list)
    _preempted: set[int] = field(factory=set)
    _overtaken: Counter[int] = field(factory=Counter)

    @property
    def preempted(self) -> int:
        """How many requests were preempted, once or more."""
        return len(self._preempted)

    @property
    def overtaken(self) -> int:
        """In how many rounds a request wrote nothing while a newer one did, for the worst off.

        With a lag, of those after which no step in flight had a token of it.
        """
        return max(self._overtaken.values(), default=0)

    def turn(self, lockstep: Lockstep, do: Do, known: dict[int, Request]) -> int:
        """Let requests arrive, and run one round; return how many have arrived.

        Raises Violation, of PROG, if it brings the oldest request no further, with a lag in more
        turns than it allows, or if a preemption gains nothing.
        """
        waiting = sum(job.kept is not None for job in self.jobs)
        arrivals = [*islice(self.coming, max(0, WAITING - waiting))]
        for request in arrivals:
            known[request.id] = request
            self._arrive(lockstep, request)
        before = scheduler.ranks(lockstep.state, self.jobs, self._arrived)
        taken = partial(self._take, lockstep, do)
        self.jobs = scheduler.turn(lockstep.machine, lockstep.state, self.jobs, taken, lag=self.lag)
        self._judge_preemptions(lockstep, None)
        after = scheduler.ranks(lockstep.state, self.jobs, self._arrived)
        self._stalled = scheduler.turns_stalled(self._stalled, before, after)
        if self._stalled > (self.lag or 0):
            raise _not_of_a_step(lockstep, LATE if self.lag else NO_FURTHER)
        late = {*scheduler.overtaken(before, after)} - scheduler.in_flight(lockstep.state)
        self._overtaken.update(late)
        self._arrived = [*after]
        return len(arrivals)

    def _arrive(self, lockstep: Lockstep, request: Request) -> None:
        try:
            self.jobs = scheduler.arrive(lockstep.machine, lockstep.state, self.jobs, request)
            self._arrived.append(request.id)
        except Refused as refused:
            reasons = {refusal.reason for refusal in refused.refusals}
            raise too_small(reasons, of=f"request {request.id}") from None

    def _judge_preemptions(self, lockstep: Lockstep, action: Action | None) -> None:
        """Preemptions in a row together free a page at once, or nothing is gained by them.

        action: the next one; None at the end of a turn.
        """
        free = pool.free_count(lockstep.state.in_use)
        if isinstance(action, Preempt):
            self._free_before = free if self._free_before is None else self._free_before
        elif self._free_before is not None:
            if free <= self._free_before:
                raise _not_of_a_step(lockstep, GAINS_NOTHING)
            self._free_before = None

    def _take(self, lockstep: Lockstep, do: Do, action: Action) -> State:
        self._judge_preemptions(lockstep, action)
        state = lockstep.state
        if isinstance(action, Preempt):
            self.preemptions += 1
            self._preempted.add(action.request)
        if isinstance(action, MixedRound):
            self.rounds += 1
            self.tokens += len(packed(state)) + sum(count for _, count in action.chunks)
        if isinstance(action, Dispatch):
            self.rounds += 1
            self.tokens += sum(count for _, count in action.chunks)
        must_take(do, action, of=str(action))
        self._measure(lockstep.state)
        return lockstep.state

    def _measure(self, state: State) -> None:
        """Count the steps in flight, and the pages that they hold."""
        held = state.held
        alone = sum(pool.is_free(state.counts, page) for page in held)
        self.most_in_flight = max(self.most_in_flight, len(state.flights))
        self.most_held = max(self.most_held, len(held))
        self.most_held_alone = max(self.most_held_alone, alone)


def _not_of_a_step(lockstep: Lockstep, message: str) -> Violation:
    """A violation of PROG by what the scheduler does, and not by one step of the engine."""
    seen = lockstep.seen
    return Violation("PROG", message, action=MixedRound(()), before=seen, after=seen)
