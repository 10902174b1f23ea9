"""`kvspec adapter check` takes one history, explains what goes wrong, and says what it saw."""

import json
from pathlib import Path

import pytest
from capacity_toys import AHEAD, LAZY, FrugalAdapter
from mistaken_adapters import Halfway, Taking, with_bug

from conformance.cli.main import main
from conformance.fuzzing import adapter_check
from conformance.fuzzing.adapter_check import Checked, check
from conformance.fuzzing.settings import Setting
from conformance.lockstep.called import called
from conformance.lockstep.lockstep import Lockstep, Violation
from conformance.lockstep.run import take
from spec.machines.actions import Allocate, Reserve
from spec.vocabulary import (
    STANDARD,
    Capacity,
    CleanupMode,
    Geometry,
    Limits,
    default_limits,
)

SIZES = Geometry(pages=5, slots=3, page_size=2, pages_per_seq=3)
LIMITS = default_limits(SIZES)
NONE = "mistaken_adapters:Adapter"


def checked(engine: str, *words: str) -> int:
    """The exit status of the command, in this process."""
    return main(["adapter", "check", engine, "--in-process", "--json", "r.json", *words])


@pytest.fixture(autouse=True)
def _less_time_to_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_check, "SHRINK_SECONDS", 1.0)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def cells(slot: int, start: int, stop: int) -> tuple[tuple[int, int], ...]:
    """The positions from `start` to `stop - 1` of a slot."""
    return tuple((slot, position) for position in range(start, stop))


def result() -> dict[str, object]:
    """The JSON result of the last command."""
    found: dict[str, object] = json.loads(Path("r.json").read_text(encoding="utf-8"))
    return found


def test_what_was_seen_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each action has a line with its outcomes; what will not be checked is listed."""
    assert 0 == checked(NONE)

    said = capsys.readouterr().out
    for part in ("Allocate     OUT_OF_PAGES ", "shows used, rows, counts, allocated", "Free "):
        assert part in said
    listed = result()["not_checked"]
    assert isinstance(listed, list)
    assert "batches of several slots: the engine takes one slot: Profile.batches" in listed
    assert not Path(".kvspec/corpus").exists()


def test_an_outcome_that_was_not_seen_leaves_it_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """At sizes where the pool is never short, a full pool is no part of what is wanted."""
    fits = "pages=16,slots=4,page_size=4,pages_per_seq=4"

    assert 0 == checked(NONE, "--geometry", fits)
    assert 0 == checked("mistaken_adapters:Idle")  # no row can lack a page: none begins
    monkeypatch.setattr(adapter_check, "MOST", 1)
    assert 3 == checked(NONE)
    assert "outcomes that the script did not reach: Allocate: OUT_OF_PAGES" in str(result())


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ("ApplyRaises", "in ApplyRaises.apply: self.pool.release()"),
        ("Untranslated", "which translates it; or declare in Profile.guarded"),
        ("Counting", "observe(): saw 'two views, one right after the other: it differs in counts"),
        ("Shared", "factory: saw 'an engine that does not begin in its initial state"),
        ("Negative", "factory: saw 'an engine that does not begin in its initial state"),
        ("PoisonsNothing", "poison: saw 'no dead cell that the view shows has changed'"),
    ],
)
def test_a_mistake_is_explained(engine: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is bad input, and one line says what and where; nothing is kept."""
    assert 2 == checked(f"mistaken_adapters:{engine}")

    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("kvspec adapter: ")
    assert says in last
    assert not Path(".kvspec").exists()


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ("OfLeaks", "CONS: counts["),
        ("OfRaises", "IndexError: list index out of range"),
        ("Forgetful", "hint: the view is the same before and after: has apply a case for Free?"),
        ("Lowest", 'hint: an engine that takes any free page declares policy="any"'),
        ("Misleading", "hint: docs/actions.md has the reasons of Allocate"),
        ("Unchosen", "hint: Reserve leaves the slot to the engine: guard NO_FREE_SLOT, or choose"),
        ("OfRefuses", 'hint: an engine that refuses more than it must declares refuses="may_ref'),
        ("Unguarded", "hint: a check that the layer above the engine makes is declared in"),
    ],
)
def test_a_violation_is_shrunk_and_has_a_hint(
    engine: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a failure with its history, and what an adapter may have to do with it."""
    assert 1 == checked(f"mistaken_adapters:{engine}")

    said = capsys.readouterr().out
    assert says in said
    assert "before:" in said


def test_events_that_are_wrong_are_no_missing_case(capsys: pytest.CaptureFixture[str]) -> None:
    """The view is the same before and after, since they are not in it."""
    assert 1 == checked("spec_engine:Untold")

    said = capsys.readouterr().out
    assert "by its events, is False, should be True" in said
    assert "has apply a case" not in said


@pytest.mark.parametrize(
    ("capacity", "says"),
    [
        (LAZY, 'an engine that copies a partial page at the first append declares copy="lazy"'),
        (AHEAD, "an engine that takes pages ahead declares lookahead (here 0), one that takes"),
    ],
)
def test_a_policy_that_is_not_declared_has_a_hint(capacity: Capacity, says: str) -> None:
    """The hint names the field of the profile, and what it says now."""
    found = Checked()

    def make(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> FrugalAdapter:
        return FrugalAdapter(geometry, limits, cleanup, capacity=capacity, declared=STANDARD)

    check(make, Setting(SIZES, CleanupMode.NONE, LIMITS), found=found)

    assert any(hint.startswith(says) for hint in found.hints)
    assert not any("policy" in hint for hint in found.hints)


def test_an_exception_after_a_change_is_the_engines() -> None:
    """It says that the specification refuses too and what changed, and shows the changed view."""
    lockstep = Lockstep(called(lambda: with_bug(Taking)(SIZES, LIMITS, CleanupMode.NONE)))
    for action in (Reserve(0), Allocate(cells(0, 0, 6)), Reserve(1), Allocate(cells(1, 0, 2))):
        take(lockstep, action)

    with pytest.raises(Violation) as found:
        take(lockstep, Allocate(cells(1, 2, 6)))

    assert "IndexError: pop from empty list" in found.value.message
    assert found.value.message.endswith(
        "; the specification refuses too: OUT_OF_PAGES; changed: counts"
    )
    free = [(view.counts or ()).count(0) for view in (found.value.before, found.value.after)]
    assert 0 == free[1] < free[0]


def test_a_violation_by_a_refused_step_says_so() -> None:
    """A refusal that changes the view names the reason that the engine gave."""
    lockstep = Lockstep(called(lambda: with_bug(Halfway)(SIZES, LIMITS, CleanupMode.NONE)))
    for action in (Reserve(0), Allocate(cells(0, 0, 6)), Reserve(1), Allocate(cells(1, 0, 2))):
        take(lockstep, action)

    with pytest.raises(Violation) as found:
        take(lockstep, Allocate(cells(1, 2, 6)))

    assert found.value.message.endswith("; the engine refused the action: OUT_OF_PAGES")
