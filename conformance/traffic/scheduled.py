"""Requests served by the scheduler of the specification, in a pool that may be too small for them.

They begin before their worst case fits. Where pages lack, the newest give theirs back, and go on
later from the tokens that they had drawn.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Final

from attrs import define, field

from conformance.lockstep.lockstep import Lockstep, Violation
from conformance.traffic.hits import Do, must_take, too_small
from spec import scheduler
from spec.machines.actions import Action, MixedRound, Preempt
from spec.machines.scheduling import packed
from spec.state import State
from spec.vocabulary import Refused, Request

NO_FURTHER: Final = "a round brings the oldest request no further"
WAITING: Final = 16
"""How many requests wait to begin."""
CHUNK: Final = 112
"""How many tokens of prompts a round has room for, beside one of each slot."""


@define
class Scheduled:
    """Begins requests in their order, and preempts the newest where pages lack.

    preemptions: how often a request was preempted. rounds: how many there were. tokens: that they
    wrote. jobs: the requests that have arrived and have not finished.
    """

    coming: Iterator[Request]
    preemptions: int = 0
    tokens: int = 0
    rounds: int = 0
    jobs: scheduler.Jobs = ()
    _arrived: list[int] = field(factory=list)
    _preempted: set[int] = field(factory=set)
    _overtaken: Counter[int] = field(factory=Counter)

    @property
    def preempted(self) -> int:
        """How many requests were preempted, once or more."""
        return len(self._preempted)

    @property
    def overtaken(self) -> int:
        """In how many rounds a request wrote nothing while a newer one did, for the worst off."""
        return max(self._overtaken.values(), default=0)

    def turn(self, lockstep: Lockstep, do: Do, known: dict[int, Request]) -> int:
        """Let requests arrive, and run one round; return how many have arrived.

        Raises Violation, of PROG, if it brings the oldest request no further.
        """
        waiting = sum(job.kept is not None for job in self.jobs)
        arrivals = [*islice(self.coming, max(0, WAITING - waiting))]
        for request in arrivals:
            known[request.id] = request
            self._arrive(lockstep, request)
        before = scheduler.ranks(lockstep.state, self.jobs, self._arrived)
        taken = partial(self._take, lockstep, do)
        self.jobs = scheduler.turn(lockstep.machine, lockstep.state, self.jobs, taken)
        after = scheduler.ranks(lockstep.state, self.jobs, self._arrived)
        if scheduler.oldest_stalls(before, after):
            seen = lockstep.seen
            raise Violation("PROG", NO_FURTHER, action=MixedRound(()), before=seen, after=seen)
        self._overtaken.update(scheduler.overtaken(before, after))
        self._arrived = [*after]
        return len(arrivals)

    def _arrive(self, lockstep: Lockstep, request: Request) -> None:
        try:
            self.jobs = scheduler.arrive(lockstep.machine, lockstep.state, self.jobs, request)
            self._arrived.append(request.id)
        except Refused as refused:
            reasons = {refusal.reason for refusal in refused.refusals}
            raise too_small(reasons, of=f"request {request.id}") from None

    def _take(self, lockstep: Lockstep, do: Do, action: Action) -> State:
        state = lockstep.state
        if isinstance(action, Preempt):
            self.preemptions += 1
            self._preempted.add(action.request)
        if isinstance(action, MixedRound):
            self.rounds += 1
            self.tokens += len(packed(state)) + sum(count for _, count in action.chunks)
        must_take(do, action, of=str(action))
        return lockstep.state
