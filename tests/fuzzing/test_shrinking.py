"""Findings: shrunk, replayed, hung or crashed, and kept as files that reproduce them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import toy_engine
from attrs import evolve
from counterexample_tools import GROW, SIZES, THREE, recorded, toy
from spec_engine import SpecEngine, small

from conformance.cli import result_json
from conformance.cli.contract import Report
from conformance.files import histories
from conformance.files.histories import Recorded
from conformance.fuzzing import campaign, counterexamples, shrinking
from conformance.fuzzing.shrinking import (
    MOST_SLOTS,
    shrink,
    shrink_difference,
    shrink_with,
    smaller_together,
)
from conformance.fuzzing.state_machine import Campaign
from conformance.history import Attend, History, PoisonDead, Step
from conformance.lockstep import watchdog
from conformance.lockstep.differential import PAGES, REASONS, PairFactory
from conformance.lockstep.lockstep import Lockstep, Violation
from conformance.lockstep.run import Finding, replay, take
from conformance.lockstep.watchdog import Watchdog
from conformance.protocol import EngineFailed, Poison
from conformance.rungs.registry import simpler_steps
from spec.machines import actions as act
from spec.view import View
from spec.vocabulary import (
    INVALID,
    CleanupMode,
    Geometry,
    InvalidInput,
    Limits,
    Params,
    Request,
    default_limits,
)

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


def test_what_a_replay_finds_first_is_shrunk() -> None:
    """A run may have compared only at a later step what a replay compares at each."""
    found = replay(partial(toy, "leak"), (*GROW, act.Free(0)))
    assert found is not None
    later = Finding((*found.history, act.Reserve(), act.Free(3)), "ATOMIC", "it is done")

    least = shrink(partial(toy, "leak"), later, seconds=60)

    assert found.clause == least.clause != later.clause
    assert (act.Reserve(), act.Allocate(((0, 0),)), act.Free(0)) == least.history


def test_what_a_replay_does_not_find_is_shrunk_no_further() -> None:
    """The finding stays as it was seen."""
    found = Finding(GROW[:2], "ATOMIC", "it is done")
    assert found is shrink(partial(toy, "leak"), found, seconds=60)


def test_an_interrupt_of_the_first_replay_keeps_the_finding() -> None:
    """It ends the shrinking and not the run."""

    def interrupted() -> SpecEngine:
        raise KeyboardInterrupt

    found = Finding(GROW, "CONS", "it leaks")
    assert found is shrink(interrupted, found, seconds=60)


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


@pytest.mark.deep
def test_the_command_finds_a_planted_bug_and_keeps_it(tmp_path: Path) -> None:
    """A plant fails the command, and leaves files that fail with the bug and pass without it."""
    kvspec = ("-m", "kvspec")
    corpus, answer = tmp_path / "corpus", tmp_path / "f.json"
    fuzzed = python(*kvspec, "fuzz", "--plant", "CW5", "--seed", "1", "--corpus", corpus,
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


def step_of(draws: Random, slots: tuple[int, ...]) -> Step:
    """A step of any kind, with some of these slots."""
    one, two = draws.choice(slots), draws.choice(slots)
    batch = tuple(
        draws.choice((None, (draws.choice(slots), draws.randrange(4))))
        for _ in range(draws.randrange(4))
    )
    tokens = tuple(range(draws.randrange(1, 6)))
    return draws.choice(
        (
            *(
                act.Reserve(),
                act.Reserve(one),
                act.Assign(one, tokens, ONE, 3),
                act.Append(one, tokens),
            ),
            *(
                act.Allocate(batch),
                act.Write(batch),
                act.Clone(one, two, 1),
                act.Clone(one, None, 1),
            ),
            *(act.Free(one), act.Purge(one), act.Enqueue(one, 3), act.Propose(one, tokens)),
            *(act.Commit(one, 3), act.Truncate(one, 3), act.Release(one, 3), act.Round()),
            *(act.Prefill((Request(id=1, prompt=tokens, params=ONE),)), Attend()),
            PoisonDead(Poison.NAN),
        )
    )


def with_slots(step: Step, name: Callable[[int], int]) -> Step:
    """The step with other names for its slots."""
    if isinstance(step, act.Allocate | act.Write):
        return type(step)(
            tuple(one if one is None else (name(one[0]), one[1]) for one in step.batch)
        )
    held: Any = step
    fields = [one for one in ("slot", "parent", "child") if getattr(step, one, None) is not None]
    found: Step = evolve(held, **{one: name(getattr(held, one)) for one in fields})
    return found


def slots_in(history: History) -> set[int]:
    """The slots that a history names."""
    found = list[int]()

    def noted(slot: int) -> int:
        found.append(slot)
        return slot

    for step in history:
        with_slots(step, noted)
    return {*found}


def lowered(history: History) -> Iterator[History]:
    """What has lower slots: one is closed up, without one reservation or with every step."""
    slots = {slot for slot in slots_in(history) if 0 <= slot < MOST_SLOTS}
    for gone in range(max(slots, default=0)):
        names = {slot: slot - (gone < slot < MOST_SLOTS) for slot in slots_in(history)}
        lower = tuple(with_slots(step, names.__getitem__) for step in history)
        yield from (
            (*lower[:at], *lower[at + 1 :])
            for at, step in enumerate(lower)
            if type(step) is act.Reserve
        )
        if gone not in slots:
            yield lower


def cut_short(history: History) -> Iterator[History]:
    """What has a prompt of half its length, or of one token less, and nothing past it."""
    for at, assign in enumerate(history):
        if not isinstance(assign, act.Assign):
            continue
        tokens = len(assign.prompt)
        for length in sorted({tokens // 2, tokens - 1}):
            if length:
                cut: list[Step] = []
                for step in history:
                    if isinstance(step, act.Allocate | act.Write):
                        kept = (
                            one
                            for one in step.batch
                            if not (one and one[0] == assign.slot and one[1] >= length)
                        )
                        cut.append(type(step)(tuple(kept)))
                    else:
                        cut.append(step)
                cut[at] = evolve(assign, prompt=assign.prompt[:length])
                yield tuple(cut)


def put_together(history: History) -> Iterator[History]:
    """What has two batches as one, where the later stands."""
    for late in range(len(history)):
        for early in range(late):
            one, two = history[early], history[late]
            if type(one) is type(two) and isinstance(one, act.Allocate | act.Write):
                assert isinstance(two, act.Allocate | act.Write)
                changed = [*history]
                changed[late] = type(two)((*one.batch, *two.batch))
                del changed[early]
                yield tuple(changed)


@pytest.mark.parametrize("seed", range(30))
def test_several_steps_are_made_smaller_as_a_second_reader_makes_them(seed: int) -> None:
    """Slots are closed up, prompts are cut and batches are joined, in every way and in no other."""
    draws = Random(seed)
    edge = (MOST_SLOTS - 1, MOST_SLOTS, MOST_SLOTS + 1, -1, INVALID)
    slots = ((0, 1, 3), (0, 2, 4, *edge), (0, 1))[seed % 3]
    history = tuple(step_of(draws, slots) for _ in range(7))

    seen = list(smaller_together(history))

    assert [*lowered(history), *cut_short(history), *put_together(history)] == seen


def found_if(
    fails: Callable[[History], bool], tried: list[History]
) -> Callable[[History], Finding | None]:
    """A replay that finds a violation in the histories for which this holds."""

    def again(history: History) -> Finding | None:
        tried.append(history)
        return Finding(history, "CONS" if fails(history) else "RC", "") if history else None

    return again


@pytest.mark.parametrize("count", range(1, 12))
def test_every_way_to_make_a_history_smaller_is_tried_once_in_order(count: int) -> None:
    """Runs of half the steps go first, then of a quarter; then come several steps, and each one."""
    draws, tried = Random(count), list[History]()
    history = tuple(step_of(draws, (0, 1)) for _ in range(count))
    expected, size = list[History](), count // 2
    while size:
        runs = [range(start, start + size) for start in range(0, count, size)]
        for run in runs:
            if run.stop <= count:
                kept = [step for at, step in enumerate(history) if at not in run]
                expected.append(tuple(kept))
        size //= 2
    expected += [*lowered(history), *cut_short(history), *put_together(history)]
    for at, step in enumerate(history):
        expected += [(*history[:at], one, *history[at + 1 :]) for one in simpler_steps(step)]

    found = Finding(history, "CONS", "")
    least = shrink_with(found_if(lambda _: False, tried), found, seconds=60)

    assert least is found
    assert [*dict.fromkeys(expected)] == tried


@pytest.mark.parametrize("least", [0, 1000])
def test_a_name_is_large_only_if_the_finding_needs_that(least: int) -> None:
    """A name becomes 1, or less than twice what it must be; the choice of a prompt becomes 0."""
    large = 2**31 - 1
    history = (
        act.Prefill((Request(id=large, prompt=(0,), params=ONE),)),
        act.Assign(0, (0,), ONE, large, large),
        act.Clone(0, None, large),
    )

    def names(shorter: History) -> list[int]:
        prefill, assign, clone = cast(tuple[Any, Any, Any], shorter)
        return [prefill.requests[0].id, assign.request, assign.choice, clone.choice]

    def fails(shorter: History) -> bool:
        return len(shorter) == len(history) and least <= min(names(shorter))

    found = Finding(history, "CONS", "")
    seen = names(shrink_with(found_if(fails, []), found, seconds=60).history)

    assert [1, 1, 0, 1] == seen if least == 0 else max(seen) < 2 * least


@pytest.mark.parametrize("seed", range(10))
def test_steps_that_the_clause_needs_are_left_and_no_others(seed: int) -> None:
    """Steps go until each that is left is needed, whatever else is violated without them."""
    draws = Random(seed)
    history = tuple(act.Enqueue(0, 100 + at) for at in range(draws.randrange(2, 24)))
    needed = {*draws.sample(history, draws.randrange(1, min(5, len(history) + 1)))}

    def fails(shorter: History) -> bool:
        return needed <= {*shorter}

    least = shrink_with(found_if(fails, []), Finding(history, "CONS", ""), seconds=60)

    assert ("CONS", [step for step in history if step in needed]) == (
        least.clause,
        [*least.history],
    )


@pytest.mark.parametrize(("ticks", "left"), [(3, 8), (5, 4), (7, 2)])
def test_the_smallest_history_of_the_time_is_kept(
    ticks: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its deadline shrinking ends with what it has found, and so it does at an interrupt."""
    history = tuple(act.Enqueue(0, 100 + at) for at in range(16))
    clock = iter(range(1000))
    monkeypatch.setattr(shrinking, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    tried = list[History]()
    least = shrink_with(found_if(bool, tried), Finding(history, "CONS", ""), seconds=ticks - 1)

    assert left == len(least.history)

    def again(history: History) -> Finding | None:
        if len(history) < left:
            raise KeyboardInterrupt
        return Finding(history, "CONS", "")

    kept = shrink_with(again, Finding(history, "CONS", ""), seconds=900)
    assert left == len(kept.history)


class FailsWhenNew(SpecEngine):
    """An engine that is wrong before any step."""

    def observe(self) -> View:
        """A view in which a page that no row names is counted."""
        counts = (1, *[0] * (self.profile.geometry.pages - 1))
        return evolve(super().observe(), counts=counts)


class ServesWrongly(SpecEngine):
    """An engine that is wrong only in what it serves at the end."""

    def serve(self, requests: Any) -> Any:
        """What is served, and once more what comes first."""
        served = super().serve(requests)
        return (*served, *served[:1])


def test_an_engine_that_is_not_new_is_told_where_a_step_was_to_blame() -> None:
    """A finding after steps is none of the steps if the engine is wrong before the first."""
    sizes = small()

    def make(kind: type[SpecEngine]) -> SpecEngine:
        return kind(sizes, default_limits(sizes), CleanupMode.END)

    found, before = (Finding(one, "RC", "") for one in ((act.Reserve(),), ()))

    with pytest.raises(InvalidInput, match=r"does not begin in its initial state.*counts"):
        shrink(partial(make, FailsWhenNew), found, seconds=1)
    assert before is shrink(partial(make, FailsWhenNew), before, seconds=1)
    served = replay(partial(make, ServesWrongly), (act.Reserve(0), act.Free(0)))
    assert served is not None
    assert 1 == len(shrink(partial(make, ServesWrongly), served, seconds=60).history)


def test_only_what_is_left_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most histories are tried without serving; what is left is then tried with it, too."""
    found, served = replay(partial(toy, "leak"), (*GROW, act.Free(0))), list[bool]()
    assert found is not None

    def noted(*given: Any, serve: bool = True, **more: Any) -> Finding | None:
        served.append(serve)
        return replay(*given, serve=serve, **more)

    monkeypatch.setattr(shrinking, "replay", noted)
    shrink(partial(toy, "leak"), found, seconds=60)

    quick, slow = served.count(False), served.count(True)
    assert 0 < quick
    assert 2 < slow
    assert [True] * 2 + [False] * quick + [True] * (slow - 2) == served


def test_an_engine_that_cannot_be_made_again_is_not_new() -> None:
    """A factory that fails at once is told as such, not by the steps of the finding."""

    def make() -> SpecEngine:
        raise EngineFailed("no memory is left")

    with pytest.raises(InvalidInput, match="no memory is left"):
        shrink(make, Finding((act.Reserve(),), "RC", ""), seconds=1)


def test_nothing_is_tried_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no time is given none is taken, though the clock stands still."""
    monkeypatch.setattr(shrinking, "time", SimpleNamespace(monotonic=lambda: 7))
    tried, found = list[History](), Finding(GROW, "CONS", "")

    least = shrink_with(found_if(bool, tried), found, seconds=0)

    assert (found, []) == (least, tried)


def test_the_engines_of_a_difference_keep_their_places() -> None:
    """In every history that is tried the first engine is made before the second."""
    made = list[str]()

    def first(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> SpecEngine:
        made.append("first")
        return SpecEngine(geometry, limits, cleanup)

    def second(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> toy_engine.Adapter:
        made.append("second")
        return toy_engine.make(geometry, limits, cleanup)

    pairs = PairFactory(first, second)
    profile = pairs(SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL).profile
    pairs.seen.first[PAGES] = (profile, (act.Reserve(0), act.Allocate(((0, 0), (0, 1)))))

    shrink_difference(pairs, PAGES)

    assert 2 < len(made)
    assert ["first", "second"] * (len(made) // 2) == made


class Dog:
    """A watchdog that remembers how long each step may take."""

    def __init__(self) -> None:
        self.seconds = set[float]()
        self.ends = 0

    def begin(self, _history: object, seconds: float) -> None:
        """A step begins."""
        self.seconds.add(seconds)

    def end(self) -> None:
        """The steps have ended."""
        self.ends += 1


def test_each_step_of_a_replay_has_its_time_and_is_watched() -> None:
    """The limit of a step and the watchdog go with every history that is tried."""
    found = replay(partial(toy, "leak"), GROW)
    assert found is not None
    dog: Any = Dog()

    shrink(partial(toy, "leak"), found, seconds=60, step_seconds=7.5, watchdog=dog)

    assert {7.5} == dog.seconds
    assert 5 < dog.ends


@pytest.mark.parametrize("kind", [PAGES, REASONS])
def test_a_permitted_difference_is_shrunk_to_the_steps_that_make_it(kind: str) -> None:
    """A long history that ends in a difference becomes a shortest one that ends in the same."""
    pairs = PairFactory(SpecEngine, toy_engine.make)
    profile = pairs(SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL).profile
    long = (act.Reserve(0), act.Reserve(1), act.Free(1), act.Allocate(((0, 0), (0, 1))))
    pairs.seen.first[kind] = (profile, long)

    least = shrink_difference(pairs, kind)

    assert (long if kind == REASONS else (act.Reserve(), act.Allocate(((0, 0),)))) == least
    assert {kind: (profile, long)} == pairs.seen.first
    assert not pairs.seen.counts
