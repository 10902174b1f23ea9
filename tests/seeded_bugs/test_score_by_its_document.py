"""The score of drawn tries beside a second reading of what its rows are said to be."""

import random
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Final

import pytest
from deep import deep_after

from conformance.seeded_bugs import find
from conformance.seeded_bugs.scoring import score
from conformance.seeded_bugs.scoring.attempts import CLEAN, Attempt, Attempts, Key
from conformance.seeded_bugs.scoring.blind import BLIND
from conformance.seeded_bugs.scoring.methods import METHODS
from conformance.seeded_bugs.scoring.rows import Tally
from conformance.seeded_bugs.scoring.score import Plan

SEEDS: Final = 3
BUGS: Final = ("CW5", "AL1", "CL6")
"""The last two are those of a blind oracle."""
ORACLE: Final = next(name for name, one in BLIND.items() if (one.misses, one.sees) == BUGS[1:])
CHOSEN: Final = ("fuzz", "replay", ORACLE)
EVERY: Final = Plan(
    names=(CLEAN, *BUGS),
    methods={name: METHODS[name] for name in CHOSEN},
    seeds=SEEDS,
    steps=100,
)
Made = dict[Key, Attempt]


def any_try(draws: random.Random) -> Attempt:
    """A try of which each field may be anything, limits included."""
    caught = draws.random() < 0.6
    return Attempt(
        caught=caught,
        steps=draws.randrange(9),
        seconds=draws.choice((0.0, 4.9, 5.0, 5.1, score.FUZZ_SECONDS, 30.1)),
        clause=draws.choice(("RC", "ROW", None)) if caught else None,
        shrunk=draws.choice((None, 0, score.MOST_SHRUNK, 9)) if caught else None,
        changed=draws.choice((None, None, True, False)) if caught else None,
        error=draws.choice((None, "it raised")) if not caught else None,
    )


def drawn(seed: int) -> Made:
    """Tries of every method at every bug and at none; some are lacking, and one is of no seed."""
    draws = random.Random(seed)
    lacking = draws.choice((0.0, 0.0, 0.2))
    keys = product((CLEAN, *BUGS), (*CHOSEN, "refine"), range(SEEDS + 1))
    return {key: any_try(draws) for key in keys if draws.random() >= lacking}


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of the draws."""
    return int(request.param)


@pytest.fixture
def tries(tmp_path: Path, seed: int) -> Attempts:
    """Drawn tries in a file."""
    attempts = Attempts(tmp_path / "tries", "now")
    for key, one in drawn(seed).items():
        attempts.add(key, one)
    return attempts


def of(made: Made, bug: str, method: str) -> list[Attempt]:
    """The tries of a method at a bug with the seeds of the plan."""
    return [made[bug, method, at] for at in range(SEEDS) if (bug, method, at) in made]


def of_one(some: list[Attempt]) -> dict[str, Any]:
    """The tally of these tries."""
    caught = [one for one in some if one.caught]
    soon = sum(one.seconds <= score.FUZZ_SECONDS for one in caught)
    small = [one.shrunk for one in caught if one.shrunk is not None]
    return {
        "tries": len(some),
        "caught": len(caught),
        "share": round(soon / len(some), 3) if some else 0.0,
        "steps": median(one.steps for one in caught) if caught else None,
        "seconds": round(median(one.seconds for one in caught), 3) if caught else None,
        "worst": round(max(one.seconds for one in caught), 3) if caught else None,
        "shrunk": small[0] if small else None,
        "clauses": sorted({one.clause for one in caught if one.clause is not None}),
        "errors": sorted({one.error for one in some if one.error is not None}),
    }


def is_changed(made: Made, bug: str) -> bool | None:
    """Whether every example fails with the bug alone, or else a seed finds it there alone."""
    caught = {key: one for key, one in made.items() if key[0] == bug and one.caught}
    examples = {one.changed for one in caught.values()} - {None}
    if examples:
        return examples == {True}
    clean = [made.get((CLEAN, method, at)) for _, method, at in caught]
    return True if any(one is not None and not one.caught for one in clean) else None


@pytest.mark.parametrize("seed", deep_after(6, range(20)), indirect=True)
@pytest.mark.parametrize("bug", BUGS)
def test_a_row_is_as_its_document_says(tries: Attempts, bug: str, seed: int) -> None:
    """Blind oracles catch nothing, and a try that is lacking or failed leaves a bug undecided."""
    made = drawn(seed)
    by = {name: of_one(of(made, bug, name)) for name in ("fuzz", "replay")}

    row: Any = score.row(find(bug), EVERY, tries)

    assert by == row["methods"]
    assert [name for name, one in by.items() if one["caught"]] == row["by"]
    assert any(one["caught"] for one in by.values()) == row["caught"]
    main = by["fuzz"]
    for figure in ("steps", "seconds", "share", "shrunk"):
        assert main[figure] == row[figure]
    assert all(one["tries"] == SEEDS and not one["errors"] for one in by.values()) == row["decided"]
    assert is_changed(made, bug) is row["changed"]


@pytest.mark.parametrize("seed", deep_after(6, range(20)), indirect=True)
def test_targets_are_missed_by_decided_bugs_alone(tries: Attempts) -> None:
    """Each target is missed by exactly the bugs that its name says, limits met being enough."""
    rows: Any = [score.row(find(bug), EVERY, tries) for bug in BUGS]
    whole = {one["id"]: one["methods"]["fuzz"] for one in rows if one["decided"]}
    decided = [one for one in rows if one["decided"]]

    missed = list(score.targets(rows).values())

    assert [one["id"] for one in decided if not one["caught"]] == missed[0]
    assert [bug for bug, one in whole.items() if one["share"] < 0.95] == missed[1]
    medians = [one["seconds"] if one["caught"] else 1e9 for one in whole.values()]
    over = [bug for bug, time in zip(whole, medians, strict=True) if time >= 5.0]
    assert (over if medians and median(medians) >= 5.0 else []) == missed[2]
    long = [bug for bug, one in whole.items() if one["shrunk"] is None or one["shrunk"] > 8]
    assert long == missed[3]
    assert [one["id"] for one in decided if one["changed"] is not True] == missed[4]


@pytest.mark.parametrize("seed", deep_after(6, range(20)), indirect=True)
def test_findings_without_a_bug_are_those_of_the_plan(tries: Attempts, seed: int) -> None:
    """Tries of other methods, and of seeds past those of the plan, are not counted."""
    some = {
        (method, at): made
        for (bug, method, at), made in drawn(seed).items()
        if bug == CLEAN and method in CHOSEN and at < SEEDS
    }
    found = [
        {"method": method, "seed": at, "clause": one.clause}
        for (method, at), one in some.items()
        if one.caught
    ]

    assert (len(some), found) == score.clean_findings(EVERY, tries)


@pytest.mark.parametrize("seed", deep_after(6, range(20)), indirect=True)
def test_an_oracle_is_blind_if_fuzzing_alone_sees_the_bug(tries: Attempts, seed: int) -> None:
    """It misses the bug that fuzzing catches and catches another, or is not shown to be blind."""
    made = drawn(seed)
    missed, kit, seen = (
        of_one(of(made, bug, method))
        for bug, method in ((BUGS[1], ORACLE), (BUGS[1], "fuzz"), (BUGS[2], ORACLE))
    )

    (row,) = score.blind(EVERY, tries)

    assert [missed, kit, seen] == [row["missed"], row["kit"], row["seen"]]
    tried = all(one["tries"] for one in (missed, kit, seen))
    shown = not missed["caught"] and bool(kit["caught"]) and bool(seen["caught"])
    assert ([ORACLE] if tried and not shown else []) == score.not_shown_blind([row])
    planned = {key: one for key, one in made.items() if key[1] in CHOSEN and key[2] < SEEDS}
    undecided = {bug for (bug, *_), one in planned.items() if one.error is not None}
    assert undecided | ({ORACLE} if not tried else set()) == score.undecided(EVERY, tries).keys()


def test_a_median_is_that_of_all_bugs_together(tmp_path: Path) -> None:
    """An even number of bugs has the mean of the middle two, and none at all misses no target."""
    tally: Tally = score._tally("CW5", "fuzz", EVERY, Attempts(tmp_path / "tries", "now"))

    assert 0.0 == score._median_seconds([])
    times = [("one", 2.0), ("two", 4.0), ("three", 6.0), ("four", 100.0)]
    assert 5.0 == score._median_seconds([(name, {**tally, "seconds": at}) for name, at in times])
