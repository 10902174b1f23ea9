"""Traffic under the scheduler: our engine in pools that are too small, and what is reported."""

import json
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

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
from spec.machines import naive
from spec.machines.actions import Action, Assign, Hit, MixedRound, Preempt, Publish, Replay, Reserve
from spec.rung import Machine
from spec.state import State
from spec.table import Entry
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


def served(engine: Engine, traffic: list[Request], lag: int | None = None) -> replay.Tally:
    """The tally of a replay under the scheduler."""
    tally = replay.Tally()
    replay.replay(engine, traffic, tally=tally, update=lambda _done: None, preempts=True, lag=lag)
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


@pytest.mark.parametrize(
    ("make", "lag"),
    deep_after(3, [*product([SpecEngine], (0, 1, 2)), (ours.make_without_cells, 2)]),
)
def test_with_a_lag_requests_get_the_tokens_that_they_get_alone(make: Factory, lag: int) -> None:
    """Several are preempted, one more step than the lag is in flight, and no page stays held."""
    traffic = requests(1)
    engine = make(SMALL, default_limits(SMALL), CleanupMode.INCREMENTAL)
    tally = served(engine, traffic, lag=lag)

    assert None is tally.finding, counterexamples.describe(tally.finding)
    assert (len(traffic), 0, 0) == (tally.requests, tally.leaked_pages, tally.held_pages)
    assert sum(one.params.max_new for one in traffic) == tally.new_tokens
    did = tally.scheduled
    assert did is not None
    assert did.preemptions > 1
    assert lag + 1 == did.most_in_flight
    assert 0 < did.most_held <= SMALL.pages


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


def preempts_at_once(
    machine: Machine, state: State, order: tuple[int, ...], requester: int, batch: tuple[Entry, ...]
) -> tuple[Action, ...]:
    """A wrong rule: nobody waits for the pages of a victim that steps in flight hold."""
    bare = state._replace(flights=())
    return tuple(map(Preempt, scheduler.victims(machine, bare, order, requester, batch)))


def without_the_oldest(state: State, jobs: scheduler.Jobs) -> tuple[int, ...]:
    """A wrong order: the oldest request waits as long as a newer one runs."""
    order = RIGHT_RUNNING(state, jobs)
    return order[1:] or order


RIGHT_RUNNING = scheduler.running


@pytest.mark.parametrize(
    ("name", "wrong", "told"),
    [
        ("running", without_the_oldest, scheduled.LATE),
        ("_before_another", preempts_at_once, scheduled.GAINS_NOTHING),
    ],
)
def test_what_the_scheduler_does_wrong_with_a_lag_is_found(
    name: str, wrong: object, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns bring the oldest no further, or a victim is preempted whose pages are held."""
    monkeypatch.setattr(scheduler, name, wrong)
    engine = SpecEngine(SMALL, default_limits(SMALL), CleanupMode.INCREMENTAL)
    tally = served(engine, requests(1), lag=2)

    assert tally.finding is not None
    assert ("PROG", told) == (tally.finding.clause, tally.finding.message)
    assert told in replay.NOT_OF_A_STEP


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


def test_the_command_reports_the_steps_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """How many there were at most, how many pages they held, and how many are held at the end."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(TRACE, encoding="utf-8")
    sizes = ("--slots=4", "--pages=8", "--page-size=16", "--lag=2")
    words = ["replay", "t.csv", "--format=azure", "--preempt", "--engine=spec_engine:make"]
    status = main([*words, *sizes, "--in-process", "--json=r.json"])
    counts = json.loads(Path("r.json").read_text(encoding="utf-8"))

    assert 0 == status
    assert (20, 0, 0) == (counts["requests"], counts["leaked_pages"], counts["held_pages_left"])
    assert (2, 3, 8) == (counts["lag"], counts["most_in_flight"], counts["most_held_pages"])
    assert 0 == counts["most_overtaken"]
    assert "3 steps in flight and 8 pages held at most; 0 pages held" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--lag=2",), ("--lag=3", "--preempt")])
def test_a_lag_that_cannot_be_served_is_refused(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It needs the scheduler, and no more steps are in flight than the rung allows."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(TRACE, encoding="utf-8")
    sizes = ("--engine=spec_engine:make", "--in-process")

    assert 2 == main(["replay", "t.csv", "--format=azure", *sizes, *words])
    assert "allowed: 0 to 2, with --preempt" in capsys.readouterr().err


@pytest.mark.parametrize("ends", [True, False])
def test_pages_that_stay_held_are_told(
    ends: bool,  # noqa: FBT001 - a parameter of the test
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A stop is seen when later steps are in flight, which a turn without requests delivers."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(TRACE, encoding="utf-8")
    drawn, _ = naive.generate((1, 2, 3), Params(max_new=9))
    asked = Request(id=0, prompt=(1, 2, 3), params=Params(max_new=9, stops=(drawn[1:2],)))
    monkeypatch.setattr(replay, "requests", lambda *_given, **_sizes: iter([asked]))
    right = scheduler.turn

    def turn(machine: Machine, state: State, jobs: scheduler.Jobs, *more: Any, **lag: Any) -> Any:
        return right(machine, state, jobs, *more, **lag) if jobs or ends else jobs

    monkeypatch.setattr(scheduler, "turn", turn)
    sizes = ("--slots=4", "--pages=8", "--page-size=16", "--lag=2", "--in-process")
    words = ["replay", "t.csv", "--format=azure", "--preempt", "--engine=spec_engine:make"]

    assert (0 if ends else 1) == main([*words, *sizes])
    assert ends == ("1 pages are held after the last step" not in capsys.readouterr().out)


def test_a_pool_that_is_too_small_for_a_request_is_refused() -> None:
    """The error names the request."""
    engine = SpecEngine(SMALL, default_limits(SMALL), CleanupMode.INCREMENTAL)
    asked = Request(id=7, prompt=(1,), params=Params(max_new=4), n_generations=5)

    with pytest.raises(InvalidInput, match=r"request 7.*NEVER_FITS"):
        served(engine, [asked])


@pytest.mark.parametrize("lacks", ["Preempt", "Share", "Deliver"])
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
    words += ["--lag=1"] if lacks == "Deliver" else []

    assert 2 == main([*words, "--in-process"])
    assert f"an engine without {lacks}" in capsys.readouterr().err
