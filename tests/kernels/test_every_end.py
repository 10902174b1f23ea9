"""Every end of a process, of a kernel and of a compiler, and what each is called."""

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
from attrs import evolve
from deep import deep_after
from jax.errors import JaxRuntimeError
from test_bench import made

from conformance.cli import main
from conformance.kernels import answers, interpret, jobs, metamorphic, processes, trials
from conformance.kernels.batches import SIZES, Arrays, Batch, Sizes
from conformance.kernels.compile import launch
from conformance.kernels.coverage.lines import Reached
from conformance.kernels.interpret import Answer
from conformance.kernels.kernel_under_test import find
from conformance.kernels.processes import Tried
from conformance.kernels.trials import Covered, Job, Trial
from conformance.runtime import processes as children

__all__ = ["made"]  # a fixture

INTERPRETER: Final = "JaxRuntimeError: INTERNAL"
OWN: Final = "ValueError: no"
FINDINGS: Final = frozenset({"finding", "hangs", "died"})
OPEN: Final = frozenset({"slow", "killed", "broken"})
ENDS: Final = [
    (ended, cases, text)
    for ended in ("passed", *sorted(FINDINGS), *sorted(OPEN), "raised")
    for cases in (0, 3)
    for text in (("",) if ended != "raised" else (OWN, INTERPRETER))
]
"""The ends, whether a batch with queries was answered before, and what was raised."""


def is_open(ended: str, cases: int, text: str) -> bool:
    """Whether an end decides nothing: a kernel that has answered does not raise by itself."""
    refused = ended == "raised" and not (cases and text == OWN)
    return refused or ended in OPEN


@pytest.mark.parametrize(("ended", "cases", "text"), ENDS)
def test_every_end_is_a_finding_or_open_or_neither(ended: str, cases: int, text: str) -> None:
    """Each end has one meaning, and a planted bug counts as caught by a finding or a hang alone."""
    kit = Tried(jobs.of_mutants(cases=3, names=["no cap"])[0], cases, ended=ended, text=text)
    usual = evolve(kit)

    undecided = is_open(ended, cases, text)
    wrong = not undecided and ended != "passed"
    assert (undecided, wrong) == (kit.undecided, kit.wrong)
    scored = jobs.score(kit, usual)
    assert (ended in {"finding", "hangs"}, wrong) == (
        scored["caught"],
        scored["caught_by_usual_tests"],
    )
    assert [ended] == scored["by"]
    assert int(wrong) == len(jobs.totals([kit])["findings"])


@pytest.mark.parametrize("which", ["first", "other", "every"])
@pytest.mark.parametrize(("ended", "cases", "text"), ENDS)
def test_the_verdict_follows_from_every_end(
    ended: str, cases: int, text: str, which: str, made: Callable[..., None]
) -> None:
    """A finding of a job fails, a starved one leaves it open, and else the first shape decides."""
    first = jobs.plan(find("reference"), cases=3, seed=0).jobs[0]

    def end(job: Job) -> Tried:
        chosen = which == "every" or (job == first) == (which == "first")
        return (
            Tried(job, cases, 0.5, ended, [], None, text)
            if chosen
            else Tried(job, 4, 0.5, "passed")
        )

    made(end)
    seen = main.main(["kernel", "reference", "--cases", "3"])

    undecided = is_open(ended, cases, text)
    starved = ended in {"killed", "slow", "broken"}
    passed = (which == "other" and not starved) or (ended == "passed" and cases > 0)
    assert (1 if ended != "passed" and not undecided else 0 if passed else 3) == seen


@pytest.mark.parametrize("decides", [True, False])
@pytest.mark.parametrize("missed", [["a line: taken"], []])
@pytest.mark.parametrize("untraced", [True, False])
def test_what_was_not_reached_leaves_the_verdict_open(
    missed: list[str],
    made: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    *,
    decides: bool,
    untraced: bool,
) -> None:
    """An outcome of a shape with room for it, or a line of the kernel that no shape leads to."""
    last = jobs.plan(find("tpu"), cases=3, seed=0).jobs[-1]
    reached = Reached({"kernel.py": [1]}, {"kernel.py": [1, 2] if untraced else [1]})
    told = Covered(reached=1, of=2, unreachable=0, missed=missed, decides=decides)

    def end(job: Job) -> Tried:
        covered = told if job == last else None
        return Tried(job, 4, 0.5, "passed", pallas=True, covered=covered, lines=[reached])

    made(end)
    is_left = bool(missed) and decides
    assert (3 if is_left or untraced else 0) == main.main(["kernel", "tpu", "--cases", "3"])
    said = capsys.readouterr().out
    assert is_left == ("a line: taken: no batch reached it" in said)
    assert untraced == ("the branch at kernel.py:2: no shape leads there" in said)


def run_out(ends: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Processes that end as is said, one after another for each shape."""

    def start(some: list[Tried], _folder: Path) -> Any:
        def ended(_stall: float) -> list[Tried]:
            for tried in some:
                tried.ended = ends[tried.job.sizes].pop(0)
            return some

        return SimpleNamespace(left=(), sizes="", over=True, ended=ended, end=lambda: None)

    monkeypatch.setattr(processes, "_start", start)
    monkeypatch.setattr(processes, "cores", lambda: 1)
    return processes.make_all


@pytest.mark.parametrize("ended", ["hangs", "slow", "killed"])
@pytest.mark.parametrize("then", ["passed", "hangs", "slow"])
def test_a_job_that_starved_is_tried_once_more(
    ended: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its second end is the one that counts, whatever it is."""
    names = [one.name for one in SIZES[:2]]
    every = [Tried(Job(kernel="tpu", sizes=name)) for name in names]
    ends = {names[0]: [ended, then, "none"], names[1]: ["passed", "none"]}

    run_out(ends, monkeypatch)(every, update=lambda *_: None)

    assert [then, "passed"] == [one.ended for one in every]
    assert [True, False] == [one.again for one in every]


@pytest.mark.parametrize("stops", [True, False])
def test_nothing_is_tried_after_what_is_enough(
    monkeypatch: pytest.MonkeyPatch, *, stops: bool
) -> None:
    """A finding ends a run; without that every job is tried."""
    every = [Tried(Job(kernel="tpu", sizes=one.name)) for one in SIZES[:3]]
    ends = {one.job.sizes: ["passed"] for one in every} | {every[1].job.sizes: ["finding"]}
    enough = (lambda one: one.wrong) if stops else (lambda _one: False)

    run_out(ends, monkeypatch)(every, update=lambda *_: None, enough=enough)

    assert ["passed", "finding", "" if stops else "passed"] == [one.ended for one in every]


STEEP: Final = Batch(lens=((1, 40), (3, 37)), behind=True)
WINDOWED: Final = SIZES[2]
SAID: Final = ((), ("race",), ("race", "semaphore"))
KINDS: Final = ("right", "wrong", "nan", "none")


def trial(tmp_path: Path, sizes: str, twin: str | None = None) -> Trial:
    """A trial of the reference, of which no answer is asked for."""
    job = Job(kernel="reference", sizes=sizes, twin=twin, results=str(tmp_path / "lines"))
    return Trial(job, find("reference"), {})


def answered(kind: str, said: tuple[str, ...], case: trials.Case) -> Answer:
    """An answer of a kind to a case."""
    if kind == "none":
        return Answer(None, ("out_of_bounds", *said))
    right = answers.right(case.sizes, case.arrays)
    error = {"right": 0.0, "wrong": 1e6, "nan": np.nan}[kind]
    found = right.answer.copy()
    found[: case.rows] += error
    return Answer(found, said)


@pytest.mark.parametrize("sizes", [WINDOWED.name, SIZES[0].name])
@pytest.mark.parametrize("behind", deep_after(1, [True, False]))
@pytest.mark.parametrize(("kind", "milder"), list(product(KINDS, KINDS)))
def test_a_finding_is_named_by_both_answers(
    *,
    kind: str,
    milder: str,
    behind: bool,
    sizes: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wrong only with NaN behind a window has its own name, and what is said stays said."""
    one, said = trial(tmp_path, sizes), SAID[behind]
    given = iter([(kind, said), (milder, ())])
    monkeypatch.setattr(Trial, "_attend", lambda _, case: answered(*next(given), case))

    found, _ = one._judged(one._case(evolve(STEEP, behind=behind)))

    windowed = behind and sizes == WINDOWED.name
    name = "reads_behind_window" if windowed and milder == "right" else "wrong"
    expected = {"right": [], "none": ["out_of_bounds"]}.get(kind)
    if kind == "none":
        assert ["out_of_bounds", *said] == found
    else:
        assert [*said, *([name] if expected is None else [])] == found


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("twin", deep_after(1, ["order", "padding", "head_dim"]))
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_twin_shows_is_told(
    kind: str, twin: str, said: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twin that differs is a finding, and so is whatever else is said of its run."""
    one = trial(tmp_path, SIZES[0].name, twin)
    given = iter([("right", ()), (kind, said)])
    monkeypatch.setattr(Trial, "_attend", lambda _, case: answered(*next(given), case))

    found, _ = one._judged(one._case(STEEP))

    own = {"right": [], "none": []}.get(kind, ["twin"])
    assert [*(["out_of_bounds"] if kind == "none" else []), *said, *own] == found


@pytest.mark.parametrize("share", [0.99, 1.05])
@pytest.mark.parametrize("twin", metamorphic.TWINS)
def test_a_twin_may_be_as_far_off_as_both_bounds(
    twin: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number of either answer has its own bound, and is off by a share of it the other way."""
    one = trial(tmp_path, SIZES[0].name, twin)
    signs = iter([1.0, -1.0])

    def off(_: Trial, case: trials.Case) -> Answer:
        right, sign = answers.right(case.sizes, case.arrays), next(signs)
        return Answer(right.answer + sign * (share if sign < 0 else 0.99) * right.bound, ())

    monkeypatch.setattr(Trial, "_attend", off)

    found, _ = one._judged(one._case(STEEP))

    assert ([] if share < 1.0 else ["twin"]) == found


@pytest.mark.parametrize("stage", ["starting", "tracing", "compiling"])
@pytest.mark.parametrize("number", [0, 1, 9, 15, 255, *(-one for one in signal.Signals)])
def test_a_compiler_crashes_by_a_signal_of_its_own(stage: str, number: int) -> None:
    """Only a signal that nobody sends, while it compiles, fails the kernel; all else is open."""
    sent = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}

    found = launch._ending(number, stage, "a\nlast word\n\n", 5.0)

    crashed = stage == "compiling" and number < 0 and number not in sent
    name = signal.Signals(-number).name if number < 0 else f"status {number}"
    assert ("fails" if crashed else "undecided", "crash" if crashed else "process") == (
        found["verdict"],
        found["cause"],
    )
    assert f"the process ended with {name}, {stage}: last word" == found["reason"]


def test_a_command_with_one_finding_reports_it_alone(
    tmp_path: Path, made: Callable[..., None]
) -> None:
    """For each job in turn, a finding of it alone is the only one, at its own place."""
    every, target = jobs.plan(find("reference"), cases=3, seed=0).jobs, tmp_path / "k.json"
    for chosen in every[:: max(1, len(every) // 6)]:

        def end(job: Job, chosen: Any = chosen) -> Tried:
            return Tried(job, 4, 0.5, "finding" if job == chosen else "passed", ["wrong"])

        made(end)
        assert 1 == main.main(["kernel", "reference", "--cases", "3", "--json", str(target)])
        (found,) = json.loads(target.read_text(encoding="utf-8"))["findings"]
        place = ("sizes", "variant", "mode", "twin", "append")
        assert [getattr(chosen, name) for name in place] == [found[name] for name in place]


@pytest.mark.parametrize("seed", range(20))
def test_the_lines_of_a_worker_are_summed_up(seed: int) -> None:
    """Batches are counted, the largest errors are kept, and the farthest loose batch is named."""
    draws, tried = random.Random(seed), Tried(Job(kernel="reference", sizes=SIZES[0].name))
    told = [(2 * draws.random(), draws.choice([0.5, 1.0, 1.5, 3.0]), at % 3) for at in range(6)]

    for at, (ratio, looseness, rows) in enumerate(told):
        tried.take({"begin": Batch(lens=((1, at + 1),)).to_json()})
        tried.take({"ratio": ratio, "looseness": looseness, "rows": rows})

    right = [(at, looseness) for at, (ratio, looseness, _) in enumerate(told) if ratio <= 1.0]
    farthest = max((looseness for _, looseness in right), default=0.0)
    loose = [at for at, looseness in right if looseness > 1.0]
    assert (6, sum(rows > 0 for *_, rows in told)) == (tried.answered, tried.cases)
    assert (max(ratio for ratio, *_ in told), farthest) == (tried.ratio, tried.looseness)
    assert len(loose) == tried.loose
    named: list[Any] = [[[1, at + 1]] for at in loose if told[at][1] == farthest]
    assert (tried.loosest and tried.loosest["lens"]) in (named or [None])


@pytest.mark.parametrize("shown", [True, False])
def test_a_finding_is_told_with_its_own_batch(*, shown: bool) -> None:
    """The batch of the end is that of the finding; without one it is the last that was begun."""
    own, last = (Batch(lens=((1, cells),)).to_json() for cells in (3, 4))
    tried = Tried(Job(kernel="reference", sizes=SIZES[0].name))
    ended: Any = {"ended": "finding", "what": ["race"], "text": "a"} | (
        {"batch": own} if shown else {}
    )

    tried.take({"begin": own})
    tried.take({"begin": last})
    tried.take(ended)

    assert ("finding", ["race"], "a") == (tried.ended, tried.what, tried.text)
    assert (own if shown else last) == tried.batch


@pytest.mark.parametrize("kernel", ["tpu", "reference", "jax"])
@pytest.mark.parametrize("seed", [0, 7])
def test_every_job_has_what_was_asked_for(kernel: str, seed: int) -> None:
    """Each job has the kernel and the seed of the run, and no two of them are alike."""
    planned = jobs.plan(find(kernel), cases=12, seed=seed).jobs
    mutants = jobs.of_mutants(cases=5, seed=seed)

    assert {(kernel, seed)} == {(job.kernel, job.seed) for job in planned}
    assert {("tpu", seed, 5)} == {(job.kernel, job.seed, job.cases) for job in mutants}
    assert len(planned) == len(set(planned))
    assert {12, 3} == {job.cases for job in planned}


@pytest.mark.parametrize("later", [ValueError("nothing to do"), JaxRuntimeError("INTERNAL")])
@pytest.mark.parametrize("idle", [pytest.param(True, marks=pytest.mark.deep), False])
def test_a_finding_is_not_lost_when_the_kernel_raises_later(
    later: Exception, *, idle: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that was wrong stays so if it raises, on batches with queries or without."""
    calls = list[int]()

    def attend(_subject: object, sizes: Sizes, arrays: Arrays, **_: object) -> Answer:
        rows = int(arrays.cu_q_lens[int(arrays.num_seqs[0])])
        calls.append(rows)
        if len(calls) > 2 and (rows == 0) == idle:  # the first batches have none, then some
            raise later
        right = answers.right(sizes, arrays).answer
        return Answer(right + (9.0 if len(calls) == 2 else 0.0), ())

    monkeypatch.setattr(interpret, "attend", attend)
    tried = trial(tmp_path, SIZES[0].name)
    trials.run(evolve(tried, job=evolve(tried.job, cases=30)))

    *_, last = (tmp_path / "lines").read_text(encoding="utf-8").splitlines()
    assert (True, "finding") == (min(calls[2:]) == 0 or not idle, json.loads(last)["ended"])


SHARED: Final = """\
import json, os, sys, time
for job in json.loads(sys.argv[-1]):
    with open(job["results"], "a") as file:
        file.write(json.dumps({"ratio": 0.5, "looseness": 0.1, "rows": 1}) + "\\n")
    if job["mode"] == "eager" and not os.path.exists(MARK):
        open(MARK, "w").close()
        ENDS
    with open(job["results"], "a") as file:
        file.write(json.dumps({"ended": END}) + "\\n")
"""
"""A worker in which something happens at the first job with copies at once."""


@pytest.mark.parametrize(
    ("how", "expected", "processes_of"),
    [
        ("pass", "passed", [3]),
        ("sys.exit(3)", "died", [3, 1]),
        ("time.sleep(60)", "passed", [3, 1, 1]),
        ("job['found'] = True", "finding", [3, 1]),
    ],
)
def test_jobs_that_share_a_process_end_by_themselves(
    how: str,
    expected: str,
    processes_of: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those before one that dies, hangs or fails are done; those after it are tried in another."""
    end_of_job = "'finding' if 'found' in job else 'passed'"
    text = SHARED.replace("MARK", repr(str(tmp_path / "mark")))
    text = text.replace("ENDS", how).replace("END", end_of_job)
    started: list[int] = []

    def start(_module: str, *arguments: str, **_: object) -> Any:
        started.append(len(json.loads(arguments[-1])))
        return subprocess.Popen([sys.executable, "-c", text, *arguments], stdin=subprocess.PIPE)

    def end(process: Any) -> None:
        process.kill()
        process.wait()
        process.stdin.close()

    monkeypatch.setattr(children, "start", start)
    monkeypatch.setattr(children, "end", end)
    modes = ("on_wait", "eager", "on_wait")
    every = [Tried(Job(kernel="tpu", sizes=SIZES[0].name, mode=mode)) for mode in modes]

    processes.make_all(every, update=lambda *_: None, stall=4.0)

    assert ["passed", expected, "passed"] == [one.ended for one in every]
    assert [1, 1, 1] == [one.cases for one in every]
    assert processes_of == started
