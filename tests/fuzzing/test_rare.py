"""The rules that look for what a run has seldom seen: outcomes, and pairs of steps."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random

import pytest
from deep import deep_after
from spec_engine import make, small

from conformance.fuzzing import rare, settings
from conformance.fuzzing.state_machine import Campaign, Session
from conformance.rungs.possible import Kind, Pair, as_item
from spec.machines import actions as act
from spec.machines.actions import Action
from spec.vocabulary import CleanupMode, Params, Reason, Request

TIMES = 400
LACKING = [
    (Kind(act.Enqueue, refused=False), Kind(act.Admit, refused=False)),
    (Kind(act.Assign, refused=False), Kind(act.Round, refused=False)),
    (Kind(act.Free, refused=True), Kind(act.Reserve, refused=False)),
]


def begun(lacking: Pair) -> Session:
    """A session of a run that has seen each pair of steps five times, but for one."""
    made = partial(settings.make, make, small(), CleanupMode.INCREMENTAL)
    session = Session(Campaign(make=made), "admission")
    coverage = session.campaign.coverage
    for pair in session.campaign.pairs - {lacking}:
        for _ in range(5):
            coverage.begin()
            for one in pair:
                coverage.count(one.kind, _reasons(session, one), ())
    coverage.last = lacking[0]
    return session


def _reasons(session: Session, one: Kind) -> frozenset[Reason]:
    every = (outcome for outcome in session.campaign.possible if outcome.as_kind == one)
    return frozenset(outcome.reason for outcome in every if outcome.reason is not None)


@pytest.mark.parametrize("lacking", deep_after(1, [(one,) for one in LACKING]), ids=as_item)
def test_a_pair_that_lacks_is_aimed_at(lacking: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second step is looked for after its first or no step, and its first before its second."""
    session, rng = begun(lacking), Random(1)
    right, pairs = Session._lacking, list[Pair]()

    def noted(session: Session, rng: Random, among: Sequence[Pair]) -> Pair:
        pairs.append(right(session, rng, among))
        return pairs[-1]

    def most_common() -> Pair:
        pair = Counter(pairs).most_common(1)[0][0]
        pairs.clear()
        return pair

    monkeypatch.setattr(Session, "_lacking", noted)
    first, second = lacking[0].kind, lacking[1].kind

    after = Counter(session.least_seen(rng) for _ in range(TIMES))
    assert TIMES // 10 < after[second]
    assert lacking == most_common()
    before = Counter(session.least_seen_before(rng, second) for _ in range(TIMES))
    assert TIMES // 10 < before[first]
    assert lacking == most_common()
    session.campaign.coverage.last = None
    anywhere = Counter(session.least_seen(rng) for _ in range(TIMES))
    assert TIMES // 10 < anywhere[second]
    assert TIMES // 3 < len(pairs) < TIMES
    assert lacking == most_common()


@pytest.mark.parametrize("before", [act.Submit, act.Reserve])
def test_an_action_without_fields_is_taken_where_that_is_rarer(
    before: type[Action], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Admit comes right after Submit if that was never so; if it was, behind another step."""
    seldom, admit = (Kind(kind, refused=False) for kind in (before, act.Admit))
    session = begun((seldom, admit))
    session.take(act.Submit(Request(id=1, prompt=(1,), params=Params(max_new=2))))
    monkeypatch.setattr(Session, "least_seen", lambda *_: act.Admit)
    monkeypatch.setattr(rare, "_candidates", lambda *_: iter((act.Reserve(),)))

    assert act.Admit() == rare._rarest(session, Random(0))
    assert seldom == session.campaign.coverage.last
