"""SPIN reaches as many allocator states as a search over the specification does."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deep import deep_after
from spec_tools import geometry, span

from conformance.exploration import cross_check
from conformance.exploration.cross_check import (
    PINNED,
    Count,
    NotRun,
    Outcome,
    Pinned,
    check,
    judge,
    parse,
)
from conformance.verdict import Verdict
from spec import ladder
from spec.machines.actions import Action, Allocate, Append, Clone, Free, Reserve, Write
from spec.state import State
from spec.vocabulary import Geometry, default_limits

ROOT = Path(__file__).resolve().parents[2]
SMALL = [pinned for pinned in PINNED if pinned.states < 10_000]
SMALLEST = min(PINNED, key=lambda pinned: pinned.states)
Instance = tuple[tuple[int, tuple[int, ...]] | None, ...]
"""A state of the allocator instance: (length, row) of each slot, None where it is unused."""

FINISHED = """
(Spin Version 6.5.2 -- 6 December 2019)

Full statespace search for:
	never claim         	- (none specified)
	assertion violations	+
	cycle checks       	- (disabled by -DSAFETY)
	invalid end states	+

State-vector 172 byte, depth reached 186029, errors: 0
   513716 states, stored
  4107845 states, matched
  4621561 transitions (= stored+matched)
        0 atomic steps
hash conflicts:     88034 (resolved)
"""
BROKEN = """pan:1: assertion violated (count[page]==tally[page]) (at depth 8)
pan: wrote allocator.pml.trail

(Spin Version 6.5.2 -- 6 December 2019)
Warning: Search not completed

State-vector 164 byte, depth reached 8, errors: 1
        9 states, stored
       10 states, matched
       19 transitions (= stored+matched)
"""
TOO_DEEP = FINISHED.replace("\n(Spin", "error: max search depth too small\n\n(Spin", 1)

SHARING = ladder.machine("sharing")


@pytest.fixture(name="spin")
def needs_spin() -> None:
    """Skip, naming the package to install, where SPIN cannot run."""
    missing = cross_check.missing_program()
    if missing:
        pytest.skip(f"not checked: {missing}")


def instance(state: State) -> Instance:
    """The observed part of a state."""
    return tuple(
        None if sequence is None else (sequence.written, sequence.row)
        for sequence in state.sequences
    )


def actions(state: State) -> Iterator[tuple[Action, ...]]:
    """Each action of the instance, as the steps of the specification that it consists of."""
    for slot, sequence in enumerate(state.sequences):
        if sequence is None:
            yield (Reserve(slot),)
            continue
        yield (Free(slot),)
        for more in range(1, state.geometry.page_size + 1):
            batch = span(slot, sequence.written, sequence.written + more)
            yield (Append(slot, (0,) * more), Allocate(batch), Write(batch))
        for child, other in enumerate(state.sequences):
            if other is None:
                yield (Clone(slot, child),)


def after(state: State, steps: tuple[Action, ...]) -> State:
    """The state after these steps; the same state if one of them is refused."""
    now = state
    for step in steps:
        if SHARING.refusals(now, step):
            return state
        now = SHARING.effect(now, step)
    return now


def search(sizes: Geometry) -> tuple[int, int]:
    """States of the instance and transitions between them, by plain breadth-first search."""
    first = SHARING.initial(sizes, default_limits(sizes))
    seen, waiting, transitions = {instance(first)}, [first], 0
    for state in waiting:
        for steps in actions(state):
            transitions += 1
            found = after(state, steps)
            if instance(found) not in seen:
                seen.add(instance(found))
                waiting.append(found)
    return len(seen), transitions


def name(pinned: Pinned) -> str:
    """The sizes as a short name."""
    sizes = pinned.geometry
    return f"{sizes.pages}-{sizes.slots}-{sizes.page_size}-{sizes.pages_per_seq}"


@pytest.mark.parametrize("pinned", deep_after(2, SMALL), ids=name)
def test_the_pinned_numbers_are_those_of_the_specification(pinned: Pinned) -> None:
    """A search over the real steps of the sharing rung finds the pinned states and transitions."""
    assert (pinned.states, pinned.transitions) == search(pinned.geometry)


@pytest.mark.usefixtures("spin")
@pytest.mark.parametrize("pinned", [SMALL[0], SMALLEST], ids=name)
def test_spin_reaches_the_pinned_numbers(pinned: Pinned) -> None:
    """SPIN has the pinned states and transitions; `make cross-check` takes all geometries."""
    outcome = check(pinned.geometry, pinned.states, expected_transitions=pinned.transitions)

    assert (Verdict.HOLDS, "") == (outcome.verdict, outcome.why)


@pytest.mark.usefixtures("spin")
@pytest.mark.parametrize(
    ("bug", "why"),
    [
        (1, r"assertion violated \(count\[page\]==tally\[page\]\)"),
        (2, r"assertion violated .*==1\)\|\|"),
        (3, r"SPIN has 6393 states, expected 6780"),
    ],
)
def test_a_planted_bug_is_found(bug: int, why: str) -> None:
    """Clones that do not count, clones that share too much, and a page too few all fail."""
    outcome = check(PINNED[0].geometry, PINNED[0].states, bug=bug)

    assert Verdict.FAILS is outcome.verdict
    assert re.search(why, outcome.why)


@pytest.mark.usefixtures("spin")
def test_a_geometry_too_large_for_the_model_is_undecided() -> None:
    """The model itself reports that its bytes do not suffice, and nothing is counted."""
    outcome = check(geometry(pages=255, page_size=1, slots=1, pages_per_seq=1), 1)

    assert Verdict.UNDECIDED is outcome.verdict
    assert "too large" in outcome.why


def test_a_finished_search_is_read() -> None:
    """The entry into the initial state, which SPIN counts as a transition, is subtracted."""
    found = Count(states=513_716, transitions=4_621_560, errors=0, violation=None, complete=True)

    assert found == parse(FINISHED)
    assert Verdict.HOLDS is judge(found, 513_716, 4_621_560).verdict
    assert Verdict.HOLDS is judge(found, 513_716).verdict


@pytest.mark.parametrize(
    ("text", "states", "transitions", "verdict", "why"),
    [
        (
            BROKEN,
            9,
            18,
            Verdict.FAILS,
            "assertion violated (count[page]==tally[page]) (at depth 8)",
        ),
        (FINISHED, 513_717, None, Verdict.FAILS, "SPIN has 513716 states, expected 513717"),
        (FINISHED, 513_716, 1, Verdict.FAILS, "SPIN has 4621560 transitions, expected 1"),
        (
            TOO_DEEP,
            513_715,
            None,
            Verdict.FAILS,
            "SPIN has at least 513716 states, expected 513715",
        ),
        (TOO_DEEP, 513_716, None, Verdict.UNDECIDED, "SPIN stopped early, after 513716 states"),
    ],
)
def test_other_searches_are_judged(
    text: str, states: int, transitions: int | None, verdict: Verdict, why: str
) -> None:
    """Errors and differences fail; a search that was cut short can fail, but not hold."""
    outcome = judge(parse(text), states, transitions)

    assert (verdict, why) == (outcome.verdict, outcome.why)


@pytest.mark.parametrize(
    "text",
    ["", "pan: out of memory\n", FINISHED.replace("   513716 states", "5.1371600e+08 states")],
)
def test_what_has_no_exact_count_is_not_read(text: str) -> None:
    """Numbers that SPIN rounds, and output without any, are no answer."""
    with pytest.raises(NotRun, match="no exact counts"):
        parse(text)


@pytest.mark.parametrize(("program", "package"), [("spin", "spin"), ("cc", "gcc")])
def test_without_its_programs_the_check_is_undecided(
    program: str,
    package: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The answer names what to install, and the exit status is 3, not a pass."""
    monkeypatch.setattr(
        shutil, "which", lambda wanted: None if wanted == program else f"bin/{wanted}"
    )
    why = f"not checked: {program} is not installed; apt-get install {package}"

    assert why == check(SMALLEST.geometry, SMALLEST.states).why
    assert 3 == cross_check.main([])
    assert why in capsys.readouterr().out


def test_a_program_that_fails_or_hangs_leaves_it_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash and a timeout are reported as such."""
    monkeypatch.setattr(cross_check, "missing_program", lambda: None)

    def crash(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, stdout="syntax error\n")

    monkeypatch.setattr(subprocess, "run", crash)
    crashed = check(SMALLEST.geometry, SMALLEST.states)

    def hang(command: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    hung = check(SMALLEST.geometry, SMALLEST.states)

    assert {Verdict.UNDECIDED} == {crashed.verdict, hung.verdict}
    assert "not checked: spin ended with status 1: syntax error" == crashed.why
    assert "not checked: spin did not end in time" == hung.why


@pytest.mark.parametrize(("odd", "status"), [(None, 0), (Verdict.UNDECIDED, 3), (Verdict.FAILS, 1)])
def test_the_worst_geometry_decides(
    odd: Verdict | None,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every pinned geometry is compared, and one that does not hold shows in the exit status."""
    given = [odd or Verdict.HOLDS] + [Verdict.HOLDS] * (len(PINNED) - 1)
    verdicts = iter(given)
    monkeypatch.setattr(cross_check, "missing_program", lambda: None)
    monkeypatch.setattr(
        cross_check, "check", lambda *_, **__: Outcome(verdict=next(verdicts), why="because")
    )

    assert status == cross_check.main([])
    printed = capsys.readouterr().out
    assert [] == list(verdicts)
    assert len(PINNED) == printed.count("because")
    assert Verdict.UNDECIDED is cross_check.overall([])


def test_the_table_of_the_document_is_the_pinned_one() -> None:
    """The page lists the geometries with their counts; if not, here are the rows to put there."""
    text = (ROOT / "docs" / "cross-check.md").read_text(encoding="utf-8")
    rows = [
        f"| {pinned.geometry.pages} | {pinned.geometry.slots} | {pinned.geometry.page_size} "
        f"| {pinned.geometry.pages_per_seq} | {pinned.states:,} | {pinned.transitions:,} "
        f"| {pinned.what} |"
        for pinned in PINNED
    ]

    assert "\n".join(rows) in text, rows
