"""The blind oracles: the judgement of each on right and wrong views."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from attrs import evolve
from spec_engine import small

from conformance.engines import ours
from conformance.fuzzing.campaign import Run
from conformance.fuzzing.settings import Setting
from conformance.history import History
from conformance.lockstep.lockstep import by_clauses
from conformance.lockstep.run import replay
from conformance.seeded_bugs import find, planted
from conformance.seeded_bugs.catalogue import PLANTS
from conformance.seeded_bugs.scoring import methods, score, table
from conformance.seeded_bugs.scoring.attempts import CLEAN, Attempt, Attempts, Budget
from conformance.seeded_bugs.scoring.blind import BLIND
from conformance.seeded_bugs.scoring.methods import METHODS, blindly
from conformance.seeded_bugs.scoring.rows import BlindRow
from conformance.seeded_bugs.scoring.score import Plan
from spec.machines import actions as act
from spec.view import View
from spec.vocabulary import INVALID, CleanupMode, Geometry, Params, default_limits

SIZES = small()
NONE = INVALID
RIGHT = View(
    geometry=Geometry(pages=4, page_size=2, slots=2, pages_per_seq=2),
    counts=(1, 1, 1, 0),
    used=(True, True),
    rows=((0, 1), (2, NONE)),
)


def rows(*found: tuple[int, int]) -> Callable[[View], View]:
    """A view with other rows."""
    return lambda view: evolve(view, rows=found)


@pytest.mark.parametrize(
    ("name", "change", "clause"),
    [
        ("sums", rows((0, 0), (2, NONE)), None),
        ("sums", rows((0, NONE), (2, NONE)), "CONS"),
        ("negative", lambda view: evolve(view, counts=(2, 1, 1, 0)), None),
        ("negative", lambda view: evolve(view, counts=(1, 1, 1, -1)), "RC"),
        ("metadata", lambda view: evolve(view, cells=(None,) * 8, written=(1, 0)), None),
        ("metadata", lambda view: evolve(view, counts=(2, 1, 1, 0)), "RC"),
        ("renamed", rows((3, 1), (2, NONE)), None),
        ("renamed", rows((0, 0), (2, NONE)), "DET"),
        ("renamed", rows((0, NONE), (2, NONE)), "DET"),
    ],
)
def test_an_oracle_sees_what_it_looks_at(
    name: str, change: Callable[[View], View], clause: str | None
) -> None:
    """Each oracle finds a fault in the property that it checks, and in no other."""
    judge = BLIND[name].judge
    found = [broken for broken, _ in judge(RIGHT, change(RIGHT), RIGHT)]

    assert [] == list(judge(RIGHT, RIGHT, RIGHT))
    assert ([clause] if clause else []) == found[:1]


def test_each_is_tried_at_two_plants() -> None:
    """Each is tried at the bug that it misses and at one that it sees, and at no other."""
    for name, oracle in BLIND.items():
        tried = {plant.id for plant in PLANTS.values() if METHODS[name].applies(name, plant)}
        assert {oracle.misses, oracle.sees} == tried


def test_one_of_them_is_blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit sees a row that moves without its K and V; the oracle `renamed` does not."""
    batch = ((1, 0),)
    history: History = (
        *(act.Reserve(0), act.Reserve(1)),
        *(act.Assign(slot, (1,), Params(max_new=1), slot) for slot in range(2)),
        *(act.Allocate(((0, 0),)), act.Allocate(batch), act.Write(batch)),
        act.Free(0),
    )
    cleanup = CleanupMode.INCREMENTAL
    make = partial(ours.make, SIZES, default_limits(SIZES), cleanup)
    blind, budget = BLIND["renamed"], Budget(steps=1)

    with planted("DF1"):
        found = replay(make, history)
        assert found is not None
        assert "CONTENT" == found.clause
        shown = Run(finding=found, setting=Setting(SIZES, cleanup, default_limits(SIZES)))
        monkeypatch.setattr(methods, "_campaign", lambda *_: shown)
        silent = blindly(blind, "DF1", 0, budget)
        seeing = blindly(evolve(blind, judge=by_clauses), "DF1", 0, budget)
    monkeypatch.setattr(methods, "_campaign", lambda *_: Run())
    nothing = blindly(blind, "DF1", 0, budget)

    assert (False, None, None) == (silent.caught, silent.clause, silent.error)
    assert (True, "CONTENT") == (seeing.caught, seeing.clause)
    assert len(history) == silent.steps == seeing.steps
    assert not nothing.caught
    assert "nothing to show" in str(nothing.error)


CAUGHT = Attempt(caught=True, steps=7, seconds=0.5, clause="RC", shrunk=3)
MISSED = Attempt(caught=False, steps=100, seconds=2.0)


def asked(*methods: str) -> Plan:
    """One seed of these methods at the bug that `sums` misses and the one that it sees."""
    chosen = {name: METHODS[name] for name in methods}
    return Plan(names=(CLEAN, "AL1", "CL6"), methods=chosen, seeds=1, steps=100)


def test_a_blind_oracle_is_shown_blind(tmp_path: Path) -> None:
    """It misses a bug that the kit catches, and catches another."""
    attempts, plan = Attempts(tmp_path / "tries", "now"), asked("fuzz", "sums")
    attempts.add(("AL1", "fuzz", 0), CAUGHT)
    attempts.add(("AL1", "sums", 0), MISSED)
    attempts.add(("CL6", "sums", 0), CAUGHT)
    (row,) = score.blind(plan, attempts)

    assert [] == score.not_shown_blind([row])
    assert {} == score.undecided(plan, attempts)
    assert ("AL1", "0/1", "1/1", "CL6", "1/1") == table.blind_cells(row)[1:]
    turned: list[BlindRow] = [
        {**row, "missed": {**row["missed"], "caught": 1 - row["missed"]["caught"]}},
        {**row, "seen": {**row["seen"], "caught": 1 - row["seen"]["caught"]}},
        {**row, "kit": {**row["kit"], "caught": 1 - row["kit"]["caught"]}},
    ]
    for other in turned:
        assert ["sums"] == score.not_shown_blind([other])
    assert [] == score.blind(evolve(plan, names=(CLEAN, "AL1")), attempts)
    assert "sums" not in score.row(find("AL1"), plan, attempts)["methods"]


def test_without_the_kit_an_oracle_is_not_shown_blind(tmp_path: Path) -> None:
    """There is nothing to compare it with, and the score does not hold."""
    attempts, plan = Attempts(tmp_path / "tries", "now"), asked("sums")
    attempts.add(("AL1", "sums", 0), MISSED)
    attempts.add(("CL6", "sums", 0), CAUGHT)

    assert ["sums"] == [*score.undecided(plan, attempts)]
