"""Findings: shrunk, replayed, hung or crashed, and kept as files that reproduce them."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from counterexample_tools import GROW, SIZES, THREE, recorded, toy
from spec_engine import small

from conformance.cli import result_json
from conformance.cli.contract import Report
from conformance.files import histories
from conformance.files.histories import Recorded
from conformance.fuzzing import campaign, counterexamples
from conformance.fuzzing.shrinking import shrink, smaller_together
from conformance.fuzzing.state_machine import Campaign
from conformance.history import Attend, History
from conformance.lockstep import watchdog
from conformance.lockstep.lockstep import Lockstep, Violation
from conformance.lockstep.run import Finding, replay, take
from conformance.lockstep.watchdog import Watchdog
from spec.machines import actions as act
from spec.vocabulary import INVALID, CleanupMode, Params, default_limits

ONE = Params(max_new=1)
ROOT = Path(counterexamples.__file__).parents[2]


def python(*words: str | Path, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A Python process in this folder, for which kvspec and the toy are installed."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests" / "tools")))
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def found_at_random(bug: str, clause: str) -> Finding:
    """The first finding of fuzzing runs that violates this clause."""
    for start in range(40):
        target, report = Campaign(make=partial(toy, bug, small())), campaign.Run()
        campaign._take_turn(target, "lifecycle", start, report)
        if report.finding is not None and report.finding.clause == clause:
            return report.finding
    raise AssertionError(f"{bug}: not found as {clause}")


@pytest.mark.parametrize(
    ("bug", "clause", "most", "names"),
    [
        ("leak", "CONS", 3, {"Reserve", "Allocate", "Free"}),
        ("does what is illegal", "ATOMIC", 1, {"Free"}),
        ("forgets to count", "RC", 8, {"Reserve", "Assign", "Allocate", "Write", "Clone"}),
    ],
)
def test_a_long_history_shrinks_to_the_steps_that_matter(
    bug: str, clause: str, most: int, names: set[str]
) -> None:
    """The shrunk history violates the same clause, and no step of it can be left out."""
    found = found_at_random(bug, clause)
    long = Finding((*GROW[:3], *found.history), found.clause, found.message)

    least = shrink(partial(toy, bug, small()), long, seconds=60)

    assert clause == least.clause
    assert names == {type(step).__name__ for step in least.history}
    assert most >= len(least.history)
    for index in range(len(least.history)):
        shorter = least.history[:index] + least.history[index + 1 :]
        again = replay(partial(toy, bug, small()), shorter)
        assert again is None or again.clause != clause


def test_a_leak_shrinks_to_one_cell() -> None:
    """Batches lose the entries that are not needed."""
    found = replay(partial(toy, "leak"), (*GROW, act.Free(0)))
    assert found is not None
    least = shrink(partial(toy, "leak"), found, seconds=60)

    assert (act.Reserve(), act.Allocate(((0, 0),)), act.Free(0)) == least.history


def test_shrinking_keeps_to_its_time() -> None:
    """Without time left the finding is returned as it is."""
    found = replay(partial(toy, "leak"), (*GROW, act.Free(0)))
    assert found is not None

    assert found is shrink(partial(toy, "leak"), found, seconds=-1)


def test_a_replay_stops_where_it_goes_wrong() -> None:
    """The finding ends with the fatal step and comes back; the right engine has none."""
    found = replay(partial(toy, "leak"), (*GROW, act.Free(0)))
    assert found is not None

    assert GROW[:3] == found.history
    again = replay(partial(toy, "leak"), found.history)
    assert again is not None
    assert (found.clause, found.message) == (again.clause, again.message)
    assert None is replay(partial(toy, ""), (*GROW, act.Free(0)))


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        ("raises", "the engine raised IndexError: block table overflow"),
        ("exits", "the engine raised SystemExit: 1"),
    ],
)
def test_an_unexpected_exception_is_a_finding(bug: str, message: str) -> None:
    """An engine that fails in its own way, even by exiting, has violated ATOMIC."""
    found = replay(partial(toy, bug), GROW)

    assert found is not None
    assert ("ATOMIC", GROW) == (found.clause, found.history)
    assert found.message.startswith(f"{message} (toy_engine.py line ")
    assert "in _grow\n" in found.trace


def test_a_step_that_hangs_is_a_finding() -> None:
    """A step that takes too long violates PROG, and fuzzing goes on to shrink it."""
    started = time.monotonic()
    found = replay(partial(toy, "hangs"), GROW, seconds=0.3)
    lockstep = Lockstep(toy("hangs"))
    take(lockstep, act.Reserve(0))
    with pytest.raises(Violation, match=r"PROG: a step took more than 0\.2 seconds"):
        take(lockstep, THREE, seconds=0.2)

    assert found is not None
    assert ("PROG", "a step took more than 0.3 seconds") == (found.clause, found.message)
    assert GROW == found.history
    assert 5 > time.monotonic() - started


def test_a_step_that_cannot_be_interrupted_is_reported_by_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watchdog reports the history so far if a step does not end, and only then."""
    monkeypatch.setattr(watchdog, "GRACE_SECONDS", 0.1)
    told: list[tuple[History, str]] = []

    with Watchdog(lambda history, message: told.append((history, message))) as dog:
        dog.begin(GROW[:1], 0.1)
        dog.end()
        time.sleep(0.7)
        dog.begin(GROW, 0.1)
        time.sleep(1.2)

    assert [(GROW, "a step does not return from compiled code")] == told


def test_ctrl_c_is_no_finding() -> None:
    """An interrupt is raised again, since it says nothing about the engine."""
    lockstep = Lockstep(toy(""))

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    lockstep.do = interrupted  # type: ignore[assignment, method-assign]
    with pytest.raises(KeyboardInterrupt):
        take(lockstep, act.Reserve())


def test_a_finding_is_described_with_its_pages() -> None:
    """The text has the clause, the numbered steps, and the pages before and after the last."""
    found = replay(partial(toy, "leak"), GROW)
    assert found is not None

    assert [
        "CONS: counts[5] is 1, should be 0: no row names it, so it is not live",
        "  1. Reserve(slot=0)",
        "  2. Allocate(batch=((0, 0),))",
        "  3. Free(slot=0)",
        "before:",
        "  slot 0   row [5 - - -] allocated 1 written 0",
        "  page 5   count 1 |. .|",
        "  free 5 of 6 pages",
        "after:",
        "  page 5   count 1 |. .|",
        "  free 5 of 6 pages",
    ] == counterexamples.describe(found).splitlines()


def test_a_counterexample_is_a_history_and_a_test(tmp_path: Path) -> None:
    """Both files fail with the bug and pass without it, as a test and as a script."""
    kept = recorded("leak", GROW)
    history, test = counterexamples.write(kept, tmp_path / "corpus")
    pytest_words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", test)

    assert kept == histories.load(history)
    assert [(history, kept)] == [
        *counterexamples.corpus(tmp_path / "corpus", Report(command="t", seed=0))
    ]
    failing = python(*pytest_words, folder=tmp_path, TOY_BUG="leak")
    assert 1 == failing.returncode
    assert "CONS: counts[5] is 1, should be 0" in failing.stdout
    assert 0 == python(*pytest_words, folder=tmp_path).returncode
    script = python(test, folder=tmp_path, TOY_BUG="leak")
    assert (1, True) == (script.returncode, "CounterexampleFails: CONS" in script.stderr)
    passing = python(test, folder=tmp_path)
    assert (0, "holds\n") == (passing.returncode, passing.stdout)


def test_a_counterexample_holds_any_text_as_data(tmp_path: Path) -> None:
    """The message of an engine that fails cannot become code of the written test."""
    text = 'bad """\nraise SystemExit(7)\n"""\\N{oops}'
    kept = Recorded(
        engine="toy_engine:make",
        geometry=SIZES,
        limits=default_limits(SIZES),
        cleanup=CleanupMode.END,
        history=(act.Reserve(), act.Assign(0, (1,), Params(max_new=1), 1)),
        clause="ATOMIC",
        message=text,
    )
    history, test = counterexamples.write(kept, tmp_path)

    assert text == histories.load(history).message
    done = python("-W", "error", test, folder=tmp_path)
    assert (0, "holds\n") == (done.returncode, done.stdout)


COMMAND = (
    "import sys; from conformance.cli.main import main; status = main(sys.argv[1:]); "
    "print('heavy:', sorted({'jax', 'numpy', 'impl'} & set(sys.modules))); sys.exit(status)"
)


def test_a_foreign_engine_is_fuzzed_from_anywhere_without_jax(tmp_path: Path) -> None:
    """The command needs the adapter's module and the core of kvspec, nothing else."""
    (tmp_path / "mymodule.py").write_text("from toy_engine import make\n")
    words = ("-c", COMMAND, "fuzz", "--engine", "mymodule:make", "--seconds")

    right = python(*words, "1", "--not-checked", folder=tmp_path)
    wrong = python(*words, "40", folder=tmp_path, TOY_BUG="double free")

    assert right.returncode in {0, 3}, right.stderr
    assert "\nheavy: []\n" in right.stdout
    assert "  not checked: CONTENT: the engine does not show tokens, cells\n" in right.stdout
    assert "the engine does not offer these actions" in right.stdout
    assert 1 == wrong.returncode
    assert "heavy: []" in wrong.stdout
    clause = "uaf" if "FAILS: UAF: a row names page" in wrong.stdout else "rc"
    assert clause == "uaf" or "FAILS: RC: counts[" in wrong.stdout, wrong.stdout
    files = sorted(path.name for path in (tmp_path / ".kvspec" / "corpus").iterdir())
    assert {f"test_{clause}", clause} == {name.rpartition("_")[0] for name in files}
    again = python(*words, "1", folder=tmp_path, TOY_BUG="double free")
    assert 1 == again.returncode
    assert "corpus_replayed: 1" in again.stdout


def test_the_command_finds_a_planted_bug_and_keeps_it(tmp_path: Path) -> None:
    """A plant fails the command, and leaves files that fail with the bug and pass without it."""
    kvspec = ("-m", "kvspec")
    corpus, answer = tmp_path / "corpus", tmp_path / "f.json"
    fuzzed = python(*kvspec, "fuzz", "--plant", "CW5", "--seconds", "60", "--corpus", corpus,
                    "--json", answer, folder=tmp_path)  # fmt: skip
    assert 1 == fuzzed.returncode, fuzzed.stderr
    found = json.loads(answer.read_text(encoding="utf-8"))
    history, test = Path(found["counterexample"]), Path(found["test"])
    pytest_words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", test)

    assert set(result_json.KEYS) <= set(found)
    assert ("fuzz", "fails", "sampled") == (found["command"], found["verdict"], found["scope"])
    assert ("CW5", "CONTENT") == (histories.load(history).plant, histories.load(history).clause)
    assert 5 >= found["shrunk_steps"]
    assert "FAILS: CONTENT: slot " in fuzzed.stdout
    assert f"again: kvspec rerun {history}" in fuzzed.stdout
    assert 1 == python(*pytest_words, folder=tmp_path).returncode
    assert 0 == python(*pytest_words, folder=tmp_path, KVSPEC_PLANT="").returncode
    again = python(*kvspec, "rerun", history, folder=tmp_path)
    assert (1, True) == (again.returncode, "FAILS: CONTENT: slot " in again.stdout)
    without = python(*kvspec, "rerun", "--without-plant", history, folder=tmp_path)
    assert (0, True) == (without.returncode, "kvspec rerun: holds (complete)" in without.stdout)


def test_a_slot_is_taken_out_of_the_whole_history() -> None:
    """When a reservation is removed, the higher slots are lowered by one in the whole history."""
    history: History = (
        act.Reserve(),
        act.Reserve(),
        act.Assign(1, (5,), ONE, 3),
        act.Allocate(((1, 0), None, (0, 0))),
        act.Clone(1, 2, 1),
        act.Free(INVALID),
        Attend(),
    )

    assert (
        act.Reserve(),
        act.Assign(0, (5,), ONE, 3),
        act.Allocate(((0, 0), None, (0, 0))),
        act.Clone(0, 1, 1),
        act.Free(INVALID),
        Attend(),
    ) in list(smaller_together(history))


def test_slots_that_nobody_names_are_closed_up() -> None:
    """A gap in the slot numbers is closed without the removal of a step."""
    assert (act.Reserve(1), act.Free(1)) in list(smaller_together((act.Reserve(2), act.Free(2))))


def test_a_prompt_is_cut_with_what_was_written_of_it() -> None:
    """Positions past the shorter prompt leave the batches of this slot, and of no other."""
    batch = ((0, 0), (0, 1), (1, 1))
    history: History = (act.Assign(0, (1, 2), ONE, 3), act.Allocate(batch), act.Write(batch))
    shorter = ((0, 0), (1, 1))

    assert (act.Assign(0, (1,), ONE, 3), act.Allocate(shorter), act.Write(shorter)) in list(
        smaller_together(history)
    )


def test_two_batches_become_one() -> None:
    """The joined batch is in the place of the later one, and the steps between them stay."""
    history: History = (act.Write(((0, 0),)), act.Pack(), act.Write(((1, 0),)), act.Round())

    assert (act.Pack(), act.Write(((0, 0), (1, 0))), act.Round()) in list(smaller_together(history))
    assert [] == list(smaller_together((act.Write(((0, 0),)), act.Allocate(((0, 0),)))))
