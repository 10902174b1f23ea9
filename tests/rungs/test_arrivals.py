"""The scheduler of the specification, driven by `fuzz`: what it reaches, and where it ends."""

from collections import Counter
from functools import partial
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
from spec.machines.actions import FreeFinished, MixedRound, Preempt, Reset, TakeOutputs
from spec.vocabulary import CleanupMode, Geometry, Reason, Refusal, refused

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
    assert never == scheduler.actions_of(session.lockstep.machine) - done.keys()
    assert done[Preempt] > 9
    assert {preemption.PARTLY, preemption.REPLAYED} <= coverage.corners.keys()


def test_a_round_that_brings_nobody_further_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that lets requests wait for ever breaks PROG."""
    monkeypatch.setattr(scheduler, "turn", lambda _machine, _state, jobs, _do: jobs)

    with pytest.raises(AssertionError, match=r"^PROG: the oldest request goes no further:"):
        arrivals.serve_arrivals(session_of(), spread(1))


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
