"""The scheduler of the specification, driven by `fuzz`: what it reaches, and where it ends."""

from collections import Counter
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
from attrs import evolve
from deep import deep_after
from spec_engine import ACTIONS, SpecEngine, small

from conformance.fuzzing import settings
from conformance.fuzzing.state_machine import Campaign, Session
from conformance.protocol import Action, Result
from conformance.rungs import arrivals, preemption
from conformance.rungs.shared_generators import spread
from spec import scheduler
from spec.machines.actions import (
    Deliver,
    Dispatch,
    FreeFinished,
    MixedRound,
    Preempt,
    Reset,
    Retire,
    TakeOutputs,
)
from spec.vocabulary import LAG, CleanupMode, Geometry, Reason, Refusal, refused

TIGHT = small(pages=6, page_size=2, slots=3, pages_per_seq=4)


def session_of(
    make: Any = SpecEngine, sizes: Geometry = TIGHT, cleanup: CleanupMode = CleanupMode.INCREMENTAL
) -> Session:
    """A history of the level scheduling."""
    target = Campaign(make=partial(settings.make, make, sizes, cleanup))
    return Session(target, "scheduling")


@pytest.mark.parametrize(
    ("window", "cleanup"),
    deep_after(1, [(3, CleanupMode.INCREMENTAL), (None, CleanupMode.NONE)]),
)
def test_requests_are_preempted_and_every_round_brings_the_oldest_further(
    window: int | None, cleanup: CleanupMode
) -> None:
    """In a small pool all that the scheduler does comes up, and corner states of preemption."""
    session = session_of(sizes=evolve(TIGHT, window=window), cleanup=cleanup)
    for drawn in range(60):
        assert TakeOutputs() == arrivals.serve_arrivals(session, spread(drawn))

    done = Counter(type(step) for step in session.history)
    coverage = session.campaign.coverage
    never = set() if cleanup is CleanupMode.NONE else {FreeFinished}
    machine = session.lockstep.machine
    taken = scheduler.actions_of(machine) | scheduler.actions_of(machine, lag=0)
    assert never == taken - done.keys()
    assert done[Preempt] > 9
    assert most_open(session) == LAG + 1
    assert {preemption.PARTLY, preemption.REPLAYED} <= coverage.corners.keys()


def most_open(session: Session) -> int:
    """How many steps were in flight at once, at most, in a history."""
    changes = [(type(step) is Dispatch) - (type(step) is Deliver) for step in session.history]
    return max(accumulate(changes))


@pytest.mark.parametrize("lag", [None, 0, 1, 2])
def test_a_round_that_brings_nobody_further_is_told(
    lag: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that lets requests wait for ever breaks PROG, at any lag."""
    monkeypatch.setattr(scheduler, "turn", lambda _machine, _state, jobs, _do, **_lag: jobs)
    monkeypatch.setattr(arrivals, "_lag", lambda *_: lag)

    with pytest.raises(AssertionError, match=r"^PROG: the oldest request goes no further:"):
        arrivals.serve_arrivals(session_of(), spread(1))


@pytest.mark.parametrize("lacks", [Dispatch, Deliver])
def test_an_engine_without_steps_in_flight_serves_in_rounds(lacks: type) -> None:
    """The draw of the lag is left out, and no step is dispatched."""
    session = session_of(partial(SpecEngine, actions=ACTIONS - {lacks}))
    for drawn in range(20):
        arrivals.serve_arrivals(session, spread(drawn))

    assert not {Dispatch, Retire, Deliver} & {type(one) for one in session.history}
    assert MixedRound in {type(one) for one in session.history}


class Withholds(SpecEngine):
    """It refuses every preemption, as its profile lets it do."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.profile = evolve(self.profile, refuses="may_refuse_more")

    def apply(self, action: Action) -> Result:
        """Refuse it."""
        if isinstance(action, Preempt):
            raise refused([Refusal(Reason.SLOT_UNUSED, 0, "another answer")])
        return super().apply(action)


def test_the_rule_ends_where_an_engine_refuses_what_the_scheduler_does() -> None:
    """Nothing waits for ever, and the next step is taken all the same."""
    session = session_of(Withholds)
    for drawn in range(60):
        assert TakeOutputs() == arrivals.serve_arrivals(session, spread(drawn))

    assert any(isinstance(step, Preempt) for step in session.history)


@pytest.mark.parametrize("lacks", [Preempt, Reset])
def test_an_engine_that_cannot_be_scheduled_takes_another_step(lacks: type) -> None:
    """A rule that every engine with chunks has draws it."""
    session = session_of(partial(SpecEngine, actions=ACTIONS - {lacks}))
    step = arrivals.serve_arrivals(session, 5)

    assert not isinstance(step, TakeOutputs)
    assert MixedRound in {type(one) for one in (*session.history, step)}
