"""Traffic under the scheduler: our engine in pools that are too small, and what is reported."""

import json
from pathlib import Path
from random import Random

import pytest
from attrs import evolve
from deep import deep_after
from spec_engine import SpecEngine

from conformance.cli.main import main
from conformance.engines import ours
from conformance.fuzzing import counterexamples
from conformance.lockstep.called import Called
from conformance.lockstep.lockstep import Lockstep
from conformance.protocol import Engine, Factory, Result
from conformance.traffic import replay, scheduled
from spec import scheduler
from spec.machines.actions import Action, Assign, Hit, MixedRound, Preempt, Publish, Replay, Reserve
from spec.state import State
from spec.vocabulary import CleanupMode, Geometry, InvalidInput, Params, Request, default_limits

TINY = Geometry(pages=3, page_size=2, slots=3, pages_per_seq=4)
SMALL = Geometry(pages=12, page_size=4, slots=4, pages_per_seq=8)
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02}.0,{64 * second + 64},{160 - 4 * second}\n"
    for second in range(20)
)


def test_two_requests_that_share_the_last_pages_give_them_back_together() -> None:
    """In our engine as in the specification the oldest goes on; either alone would give nothing."""
    engine = ours.make(TINY, default_limits(TINY), CleanupMode.INCREMENTAL)
    lockstep, params = Lockstep(Called(lambda: engine)), Params(max_new=4)
    taken = list[Action]()

    def do(action: Action) -> State:
        taken.append(action)
        assert not lockstep.do(action)
        return lockstep.state

    asked = [
        Request(id=number, prompt=prompt, params=params)
        for number, prompt in enumerate(((2, 2, 2), (1, 1, 1), (1, 1, 1)))
    ]
    for slot, one in enumerate(asked):
        do(Reserve(slot))
        do(Assign(slot, one.prompt, params, one.id))
    for action in (MixedRound(((0, 3),)), MixedRound(((1, 2),)), Publish(1, 2), Hit(2, 2)):
        do(action)
    jobs = tuple(scheduler.Job(one, None) for one in asked)
    taken.clear()

    left = scheduler.turn(lockstep.machine, lockstep.state, jobs, do)
    assert [Preempt(2), Preempt(1), MixedRound(())] == taken
    assert [None, ((0, ()),), ((0, ()),)] == [job.kept for job in left]
    while left:
        left = scheduler.turn(lockstep.machine, lockstep.state, left, do)
    served = {output.request: output.tokens for output in lockstep.state.outputs}
    assert served == {one.id: replay.alone(one, 0)[0] for one in asked}
    assert not any(lockstep.state.counts)


def requests(seed: int) -> list[Request]:
    """Prompts that begin alike, and requests of which a few fill the pool."""
    draws, most = Random(seed), SMALL.max_len
    new = [draws.randint(1, most // 2) for _ in range(24)]
    return [
        Request(
            id=number,
            prompt=tuple(draws.randint(1, 2) for _ in range(draws.randint(1, most - count))),
            params=Params(max_new=count, temperature=float(number % 2), seed=number),
        )
        for number, count in enumerate(new)
    ]


def served(engine: Engine, traffic: list[Request]) -> replay.Tally:
    """The tally of a replay under the scheduler."""
    tally = replay.Tally()
    replay.replay(engine, traffic, tally=tally, update=lambda _done: None, preempts=True)
    return tally


@pytest.mark.parametrize("make", deep_after(1, [SpecEngine, ours.make_without_cells]))
def test_preempted_requests_get_the_tokens_that_they_get_alone(make: Factory) -> None:
    """Several are preempted; no page is left, and pages were evicted."""
    traffic = requests(1)
    tally = served(make(SMALL, default_limits(SMALL), CleanupMode.INCREMENTAL), traffic)

    assert None is tally.finding, counterexamples.describe(tally.finding)
    assert (len(traffic), 0) == (tally.requests, tally.leaked_pages)
    assert sum(one.params.max_new for one in traffic) == tally.new_tokens
    assert tally.evicted
    did = tally.scheduled
    assert did is not None
    assert (5, 5) == (did.preemptions, did.preempted)


class LosesATokenOfAReplay(SpecEngine):
    """The last of the tokens that are replayed is another one."""

    def apply(self, action: Action) -> Result:
        """Replay it wrong."""
        if isinstance(action, Replay):
            action = evolve(action, tokens=(*action.tokens[:-1], action.tokens[-1] ^ 1))
        return super().apply(action)


def test_a_wrong_replay_is_found() -> None:
    """A request can tell that it was preempted if its tokens come back changed."""
    engine = LosesATokenOfAReplay(SMALL, default_limits(SMALL), CleanupMode.INCREMENTAL)

    assert served(engine, requests(1)).finding is not None


def test_a_round_that_brings_the_oldest_no_further_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scheduler that lets requests wait for ever breaks PROG."""
    monkeypatch.setattr(scheduler, "turn", lambda _machine, _state, jobs, _do, **_lag: jobs)
    finding = served(
        SpecEngine(SMALL, default_limits(SMALL), CleanupMode.INCREMENTAL), requests(1)
    ).finding

    assert finding is not None
    assert ("PROG", scheduled.NO_FURTHER) == (finding.clause, finding.message)
    assert finding.message in replay.NOT_OF_A_STEP  # it is not shrunk


def test_the_command_reports_the_preempted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The share of preempted requests and the most overtakings are in the report."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(TRACE, encoding="utf-8")
    sizes = ("--slots=4", "--pages=8", "--page-size=16")
    words = ["replay", "t.csv", "--format=azure", "--preempt", "--engine=spec_engine:make"]
    status = main([*words, *sizes, "--in-process", "--json=r.json"])
    counts = json.loads(Path("r.json").read_text(encoding="utf-8"))

    assert 0 == status
    assert (20, 0) == (counts["requests"], counts["leaked_pages"])
    assert (1, 1, 0) == (counts["preempted"], counts["preemptions"], counts["most_overtaken"])
    assert "5.0% of the requests were preempted" in capsys.readouterr().out
    assert 1.0 < counts["tokens_per_round"]
    assert any("Submit and Admit" in line for line in counts["not_checked"])


def test_a_pool_that_is_too_small_for_a_request_is_refused() -> None:
    """The error names the request."""
    engine = SpecEngine(SMALL, default_limits(SMALL), CleanupMode.INCREMENTAL)
    asked = Request(id=7, prompt=(1,), params=Params(max_new=4), n_generations=5)

    with pytest.raises(InvalidInput, match=r"request 7.*NEVER_FITS"):
        served(engine, [asked])


@pytest.mark.parametrize("lacks", ["Preempt", "Share"])
def test_an_engine_that_cannot_be_scheduled_is_refused(
    lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refusal names the actions that lack."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(TRACE, encoding="utf-8")
    Path(f"lacks_{lacks}.py").write_text(
        "from spec_engine import ACTIONS, SpecEngine\n"
        f"from spec.machines.actions import {lacks}\n"
        "def make(*sizes):\n"
        "    return SpecEngine(*sizes, actions=ACTIONS - {" + lacks + "})\n",
        encoding="utf-8",
    )
    words = ["replay", "t.csv", "--format=azure", "--preempt", f"--engine=lacks_{lacks}:make"]

    assert 2 == main([*words, "--in-process"])
    assert f"an engine without {lacks}" in capsys.readouterr().err
