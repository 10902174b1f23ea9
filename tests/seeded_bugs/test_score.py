"""Scoring the kit on planted bugs: the tries, their file, resumption and totals."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from attrs import evolve
from deep import deep_after

from conformance.cli import main
from conformance.engines.ours import Ours
from conformance.protocol import EngineFailed
from conformance.rungs.registry import WARMUP
from conformance.seeded_bugs import NO_VIEW, find, planted, replaced
from conformance.seeded_bugs.catalogue import FAMILIES, NOT_YET, PLANTS
from conformance.seeded_bugs.scoring import score, table, worker
from conformance.seeded_bugs.scoring import vectors as by_vectors
from conformance.seeded_bugs.scoring.attempts import CLEAN, Attempt, Attempts, Budget, stamp
from conformance.seeded_bugs.scoring.methods import METHODS, Method
from conformance.seeded_bugs.scoring.rows import Row, Tally
from conformance.seeded_bugs.scoring.score import Plan
from conformance.seeded_bugs.scoring.worker import Job, work
from impl.engine import compiled
from spec.machines.actions import Round
from spec.vocabulary import InvalidInput

CAUGHT = Attempt(caught=True, steps=7, seconds=0.5, clause="RC", shrunk=3)
MISSED = Attempt(caught=False, steps=100, seconds=2.0)
Asked = list[tuple[str | None, int]]


class Ended:
    """A process that has ended at once."""

    stdin = None

    def __init__(self, status: int) -> None:
        self.status = status

    def poll(self) -> int:
        """It has ended."""
        return self.status

    wait = poll


def catching(asked: Asked, *, fails_at: int | None = None) -> Method:
    """A method that catches every plant and records its calls."""

    def run(plant: str | None, seed: int, budget: Budget) -> Attempt:
        del budget
        if len(asked) == fails_at:
            raise KeyboardInterrupt
        asked.append((plant, seed))
        return CAUGHT if plant else MISSED

    return Method(what="catches all", run=run)


def plan(methods: dict[str, Method], *names: str, seeds: int = 2) -> Plan:
    """A plan of these plants, and the engine without a bug."""
    return Plan(names=(CLEAN, *names), methods=methods, seeds=seeds, steps=100)


def in_this_process(methods: dict[str, Method]) -> score.Start:
    """Does each job at once, with these methods."""

    def start(job: Job) -> Ended:
        work(job, methods, Attempts(Path(job.results), job.stamp))
        return Ended(0)

    return cast(score.Start, start)


def quiet(done: float, note: str) -> None:
    """Ignore progress."""
    del done, note


def make(methods: dict[str, Method], path: Path, *names: str, seeds: int = 2) -> Attempts:
    """Make every try that is left, here; the tries."""
    attempts = Attempts(path, "now")
    todo = plan(methods, *names, seeds=seeds)
    score.make_all(todo, attempts, update=quiet, start=in_this_process(methods))
    return attempts


def test_a_run_that_is_cut_off_goes_on_where_it_was(tmp_path: Path) -> None:
    """Tries in the file are not made again after an interruption."""
    first: Asked = []
    with pytest.raises(KeyboardInterrupt):
        make({"fuzz": catching(first, fails_at=5)}, tmp_path / "tries", "CW5", "RC2")
    second: Asked = []
    attempts = make({"fuzz": catching(second)}, tmp_path / "tries", "CW5", "RC2")

    assert [(None, 0), (None, 1), ("CW5", 0), ("CW5", 1), ("RC2", 0)] == first
    assert [("RC2", 1)] == second
    assert 6 == len(attempts.made)
    third: Asked = []
    make({"fuzz": catching(third)}, tmp_path / "tries", "CW5", "RC2", seeds=3)
    assert [(None, 2), ("CW5", 2), ("RC2", 2)] == third


def test_tries_of_another_stamp_are_kept_and_not_used(tmp_path: Path) -> None:
    """Tries with other sources, versions or budgets are kept and not used."""
    path = tmp_path / "tries"
    Attempts(path, "then").add(("CW5", "fuzz", 0), CAUGHT)
    now = Attempts(path, "now")
    now.add(("CW5", "fuzz", 1), MISSED)

    assert {("CW5", "fuzz", 1): MISSED} == Attempts(path, "now").made
    assert {("CW5", "fuzz", 0): CAUGHT} == Attempts(path, "then").made
    assert stamp({"a": "1"}, steps=1) == stamp({"a": "1"}, steps=1)
    assert 3 == len({stamp({"a": "1"}, steps=1), stamp({"a": "2"}, steps=1), stamp({}, steps=2)})


def test_a_line_that_was_cut_off_costs_one_try(tmp_path: Path) -> None:
    """A process that dies while it writes leaves half a line, and the next try is still read."""
    path = tmp_path / "tries"
    Attempts(path, "now").add(("CW5", "fuzz", 0), CAUGHT)
    with path.open("ab") as file:
        file.write(b'{"stamp": "now", "plant": "CW5", "me')
    again = Attempts(path, "now")
    again.add(("CW5", "fuzz", 2), MISSED)

    assert {("CW5", "fuzz", 0), ("CW5", "fuzz", 2)} == set(Attempts(path, "now").made)
    assert {("CW5", "fuzz", 0), ("CW5", "fuzz", 2)} == set(again.made)


def test_a_file_of_something_else_is_bad_input(tmp_path: Path) -> None:
    """It is neither read nor added to."""
    path = tmp_path / "notes"
    path.write_text('["hello"]\n')

    with pytest.raises(InvalidInput, match="one that kvspec plant has written"):
        Attempts(path, "now")


def test_a_process_that_ends_without_a_try_leaves_it_undecided(tmp_path: Path) -> None:
    """A try whose process ends early is not repeated, and does not count as a miss."""
    attempts = Attempts(tmp_path / "tries", "now")
    methods = {"fuzz": catching([])}
    todo = plan(methods, "CW5", seeds=1)
    score.make_all(todo, attempts, update=quiet, start=cast(score.Start, lambda _: Ended(-11)))
    row = score.row(find("CW5"), todo, attempts)

    assert [] == todo.left(attempts)
    assert {"CW5", CLEAN} == set(score.undecided(todo, attempts))
    assert {} == score.undecided(evolve(todo, seeds=0), attempts)
    assert {} == score.undecided(evolve(todo, methods={}), attempts)
    assert not row["decided"]
    assert not any(score.targets([row]).values())


def test_a_hang_in_the_warm_up_is_one_of_every_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hang in the warm-up, which has no seed, counts for every seed; a later one for its own."""
    monkeypatch.setattr("conformance.seeded_bugs.scoring.hangs.shrunk", lambda _recorded: None)
    attempts = Attempts(tmp_path / "tries", "now")
    todo = plan({"fuzz": catching([])}, "QS1", seeds=3).left_of("QS1", attempts)

    worker._keep_hang(attempts, todo[0], todo, (Round(), Round()), 3.0)
    assert [0] == [seed for _, _, seed in attempts.made]
    worker._keep_hang(attempts, todo[1], todo, WARMUP[:5], 3.0)
    assert [0, 1, 2] == [seed for _, _, seed in attempts.made]
    assert {("PROG", 5)} == {
        (attempts.made["QS1", "fuzz", seed].clause, attempts.made["QS1", "fuzz", seed].steps)
        for seed in (1, 2)
    }


def test_a_row_adds_up_the_tries_of_every_method(tmp_path: Path) -> None:
    """A row has shares, medians, the methods that caught the plant and those that could not."""
    attempts = Attempts(tmp_path / "tries", "now")
    tries = [CAUGHT, evolve(CAUGHT, steps=9, seconds=40.0, shrunk=None), MISSED]
    for seed, one in enumerate(tries):
        attempts.add(("CW5", "fuzz", seed), one)
        attempts.add(("CW5", "replay", seed), MISSED)
        attempts.add((CLEAN, "fuzz", seed), MISSED)
    unwritten = METHODS | {"refine": evolve(METHODS["refine"], run=None)}
    row = score.row(find("CW5"), plan(unwritten, "CW5", seeds=3), attempts)

    assert (True, ["fuzz"], 8, 20.25) == (row["caught"], row["by"], row["steps"], row["seconds"])
    assert (round(1 / 3, 3), 3, True) == (row["share"], row["shrunk"], row["changed"])
    fuzzed = row["methods"]["fuzz"]
    assert isinstance(fuzzed, dict)
    assert (2, 40.0) == (fuzzed["caught"], fuzzed["worst"])
    assert ("not checked", "not applicable") == tuple(
        row["methods"][name] for name in ("refine", "kernel")
    )
    missed = score.targets([row | {"decided": True}])
    assert [[], ["CW5"], ["CW5"], [], []] == list(missed.values())
    assert ["CW5"] == score.slow([row])
    quick: Tally = {**fuzzed, "seconds": 1.0}
    fast: Row = {**row, "decided": True, "methods": row["methods"] | {"fuzz": quick}}
    assert [] == list(score.targets([fast, fast, row | {"decided": True}]).values())[2]
    assert (3, []) == score.clean_findings(plan(METHODS, "CW5", seeds=3), attempts)


def test_an_engine_that_breaks_down_has_not_been_caught() -> None:
    """An exception is an error of the plant, in whichever method it is raised."""

    def wrong(_release: object) -> Callable[..., object]:
        def raises(*_given: object) -> object:
            raise ZeroDivisionError

        return raises

    with replaced("impl.commit", "release", wrong):
        compiled.cache_clear()
        tries = [run(name)("CW5", 0, Budget(steps=60)) for name in ("fuzz", "replay")]
    compiled.cache_clear()

    assert [False] * 2 == [attempt.caught for attempt in tries]
    assert all("ZeroDivisionError" in (attempt.error or "") for attempt in tries)


@pytest.mark.parametrize(
    ("way", "caught"),
    deep_after(
        1, [("invariants", (False, None)), ("fuzz", (True, "DET")), ("replay", (True, "DET"))]
    ),
)
def test_what_an_adapter_tells_is_a_catch_but_not_of_an_oracle(
    way: str, caught: tuple[bool, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no exception out of the engine; an oracle alone has not seen it."""

    def tells(_engine: object) -> None:
        raise EngineFailed("one waits twice", clause="DET")

    monkeypatch.setattr(Ours, "_admit", tells)
    attempt = run(way)(None, 0, Budget(steps=60, shrink=False))

    assert (*caught, None) == (attempt.caught, attempt.clause, attempt.error)


def test_what_is_found_without_a_bug_is_told(tmp_path: Path) -> None:
    """The control names the method, the seed and the clause."""
    attempts = Attempts(tmp_path / "tries", "now")
    attempts.add((CLEAN, "fuzz", 1), CAUGHT)

    assert (1, [{"method": "fuzz", "seed": 1, "clause": "RC"}]) == score.clean_findings(
        plan(METHODS, seeds=2), attempts
    )
    assert (0, []) == score.clean_findings(plan(METHODS, seeds=1), attempts)


def test_a_method_is_not_held_to_what_it_cannot_see() -> None:
    """Kernels are for attention, and a plant names its own exceptions."""
    seen = {
        name: {method for method in METHODS if METHODS[method].applies(method, PLANTS[name])}
        for name in ("CW5", "AK1", "AK3", "SW5", "QS1", "QS4")
    }

    assert {"fuzz", "invariants", "refine", "vectors", "replay"} == seen["CW5"]
    assert {"fuzz", "kernel"} == seen["AK1"]
    assert {"fuzz", "kernel"} == seen["SW5"]
    assert {"kernel"} == seen["AK3"]
    assert "invariants" not in seen["QS1"]
    assert "refine" not in seen["QS4"]  # admission is the host's, and refining goes past it
    assert {plant.blind for plant in PLANTS.values()} >= {NO_VIEW, frozenset()}
    assert all(plant.blind <= set(METHODS) for plant in PLANTS.values())


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Method]], None]:
    """Replaces the methods."""

    def put(methods: dict[str, Method]) -> None:
        monkeypatch.setattr("conformance.seeded_bugs.scoring.methods.METHODS", methods)
        monkeypatch.setattr(score, "start", in_this_process(methods))

    return put


def test_the_command_keeps_the_contract(
    tmp_path: Path, fakes: Callable[[dict[str, Method]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """It holds if all bugs are caught, and has the methods, steps and shares of each bug."""
    fakes({"fuzz": catching([]), "later": Method(what="to come", run=None)})
    answer, page = tmp_path / "p.json", tmp_path / "score.md"
    words = ["plant", "--only", "CW5,RC2", "--seeds", "2", "--results", str(tmp_path / "tries")]

    assert 0 == main.main([*words, "--json", str(answer), "--write", str(page)])
    found = json.loads(answer.read_text(encoding="utf-8"))
    assert ["CW5", "RC2"] == [bug["id"] for bug in found["bugs"]]
    wanted = {
        "mechanism",
        "thread",
        "clause",
        "first_sight",
        "caught",
        "by",
        "steps",
        "seconds",
        "share",
        "shrunk",
    }
    assert wanted <= set(found["bugs"][0])
    assert (2, 0) == (found["controls"]["clean_tries"], found["controls"]["clean_findings"])
    assert (2, 2) == (found["score"]["caught"], found["controls"]["changed"])
    assert not any(found["score"]["missed"].values())
    assert any(line.startswith("later: to come") for line in found["not_checked"])
    assert ("holds", "sampled", 0) == (found["verdict"], found["scope"], found["tries_left"])
    assert "| [CW5](https://github.com/" in page.read_text(encoding="utf-8")
    assert "  CW5    not kept        2/2" in capsys.readouterr().out


def test_the_command_fails_where_a_bug_is_missed(
    tmp_path: Path, fakes: Callable[[dict[str, Method]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A plant that no method catches is named, and so is a finding without a bug."""
    miss = Method(what="sees nothing", run=lambda *_: MISSED)
    cry = Method(what="sees ghosts", run=lambda *_: CAUGHT)
    words = ["plant", "--only", "CW5", "--seeds", "1", "--results", str(tmp_path / "tries")]

    fakes({"fuzz": miss})
    assert 1 == main.main(words)
    assert "FAILS: caught by at least one method: not CW5" in capsys.readouterr().out
    fakes({"fuzz": cry})
    assert 1 == main.main([*words, "--fresh"])
    assert "FAILS: the engine without a bug: " in capsys.readouterr().out


def test_an_interrupted_command_is_undecided(
    tmp_path: Path, fakes: Callable[[dict[str, Method]], None]
) -> None:
    """The tries that are made and those that are left are counted."""
    fakes({"fuzz": catching([], fails_at=3)})
    answer = tmp_path / "p.json"
    words = ["plant", "--only", "CW5,RC2", "--seeds", "2", "--results", str(tmp_path / "tries")]

    assert 3 == main.main([*words, "--json", str(answer)])
    found = json.loads(answer.read_text(encoding="utf-8"))
    assert (True, 3) == (found["interrupted"], found["tries_left"])


def test_what_came_to_nothing_is_on_the_page(
    tmp_path: Path, fakes: Callable[[dict[str, Method]], None]
) -> None:
    """The page lists a try that failed as undecided."""
    broken = evolve(MISSED, error="the engine raised")
    fakes({"fuzz": Method(what="breaks down", run=lambda plant, *_: broken if plant else MISSED)})
    page, tries = tmp_path / "score.md", str(tmp_path / "tries")

    words = ["plant", "--only", "CW5", "--seeds", "1", "--results", tries, "--write", str(page)]
    assert 3 == main.main(words)
    assert "## Undecided\n\n- CW5: the engine raised\n" in page.read_text(encoding="utf-8")


def test_the_catalogue_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every plant with its thread, and every row that is not in it with the reason."""
    answer = tmp_path / "p.json"

    assert 0 == main.main(["plant", "--list", "--json", str(answer)])
    out, found = capsys.readouterr().out, json.loads(answer.read_text(encoding="utf-8"))
    assert list(PLANTS) == [bug["id"] for bug in found["bugs"]]
    assert NOT_YET == found["not_yet"]
    assert all(plant.thread in out and plant.mechanism in out for plant in PLANTS.values())
    assert all(f"{family}:" in out for family in FAMILIES)


@pytest.mark.parametrize("words", [["--only", "CW99"], ["--methods", "magic"], ["--seeds", "0"]])
def test_bad_usage_of_plant_is_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line says what is allowed."""
    assert 2 == main.main(["plant", *words])
    assert 1 == capsys.readouterr().err.count("\n")


# Each is compiled anew, which takes ten seconds and more; `make plant` has all.
@pytest.mark.deep
@pytest.mark.parametrize("name", ["CW5", "CL3", "RS5"])
def test_fuzz_catches_a_plant_and_shrinks_it(name: str) -> None:
    """One seed and a short budget are enough, and eight actions or fewer are left."""
    with planted(name):
        attempt = run("fuzz")(name, 0, Budget(steps=4000, shrink=True))

    assert attempt.caught
    assert attempt.shrunk is not None
    assert attempt.shrunk <= score.MOST_SHRUNK


def run(method: str) -> Callable[[str | None, int, Budget], Attempt]:
    """The function of a method that is written."""
    found = METHODS[method].run
    assert found is not None
    return found


@pytest.mark.deep
def test_the_engine_without_a_bug_gives_nothing() -> None:
    """No method finds anything in it under a short budget."""
    budgets = {"fuzz": 300, "invariants": 300, "replay": 100, "kernel": 8}
    found = {name: run(name)(None, 0, Budget(steps=steps)) for name, steps in budgets.items()}

    assert [] == [name for name, attempt in found.items() if attempt.caught]
    assert {"fuzz", "invariants", "replay", "kernel"} == {
        name for name, attempt in found.items() if attempt.steps >= budgets[name] // 2
    }


@pytest.mark.parametrize("name", [pytest.param("KG1", marks=pytest.mark.deep), "SW5"])
def test_kernel_checks_catch_what_fuzzing_cannot(name: str) -> None:
    """Blocks that end past a row, and windows, are options that the engine does not use."""
    with planted(name):
        attempt = run("kernel")(name, 0, Budget(steps=20))

    assert (True, "ATT") == (attempt.caught, attempt.clause)


def test_the_table_has_a_line_for_each_plant(tmp_path: Path) -> None:
    """Numbers where a method was tried, words where it was not."""
    attempts = Attempts(tmp_path / "tries", "now")
    rows = [score.row(plant, plan(METHODS), attempts) for plant in PLANTS.values()]
    lines = table.lines(rows)

    assert 1 + len(PLANTS) == len(lines)
    assert all(name in line for name, line in zip(PLANTS, lines[1:], strict=True))


@pytest.mark.parametrize("first", range(4))
def test_each_method_shrinks_until_it_has_caught_a_plant(tmp_path: Path, first: int) -> None:
    """A counterexample is shrunk at the first catch of each method, and never without a bug."""
    asked: list[tuple[str | None, str, int, bool]] = []

    def named(name: str, catches: int) -> Method:
        def run(plant: str | None, seed: int, budget: Budget) -> Attempt:
            asked.append((plant, name, seed, budget.shrink))
            return CAUGHT if plant and seed >= catches else MISSED

        return Method(what=name, run=run)

    catches = {"fuzz": first, "replay": 1, "vectors": 0}
    make({name: named(name, at) for name, at in catches.items()}, tmp_path / "t", "CW5", seeds=3)

    for plant in (None, "CW5"):
        expected = [
            (plant, name, seed, plant is not None and seed <= at)
            for name, at in catches.items()
            for seed in range(3)
        ]
        assert expected == [one for one in asked if one[0] == plant]


@pytest.mark.parametrize("ends", [None, ZeroDivisionError("no"), "RC"])
@pytest.mark.parametrize("at", range(4))
def test_the_first_vector_that_ends_otherwise_decides(
    monkeypatch: pytest.MonkeyPatch, at: int, ends: Exception | str | None
) -> None:
    """Whichever vector it is, one that raises is an error, and one that fails is a catch."""
    header = SimpleNamespace(geometry=None, limits=None, cleanup=None)
    every = [SimpleNamespace(header=header, name=f"v{one}", lines=range(5)) for one in range(4)]
    parts = {"a": every[:2], "b": every[2:]}

    def play(_engine: object, vector: SimpleNamespace) -> SimpleNamespace | None:
        later = vector.name > f"v{at}"
        if vector.name == f"v{at}" and isinstance(ends, Exception):
            raise ends
        if later or (vector.name == f"v{at}" and ends):
            return SimpleNamespace(line=4, clause="DET" if later else ends)
        return None

    monkeypatch.setattr(by_vectors, "suites", lambda: list(parts))
    monkeypatch.setattr(by_vectors, "build", lambda name: SimpleNamespace(vectors=parts[name]))
    monkeypatch.setattr(by_vectors, "play", play)
    monkeypatch.setattr("conformance.engines.ours.make_without_cells", lambda *_: None)

    found = by_vectors.vectors(None, 0, Budget(steps=1))

    place = at + (ends is None)
    raised = isinstance(ends, Exception)
    assert (not raised and place < 4) == found.caught
    assert (f"v{at}: ZeroDivisionError: no" if raised else None) == found.error
    assert 5 * place + (3 if found.caught else 0) == found.steps
    assert ((ends or "DET", 3) if found.caught else (None, None)) == (found.clause, found.shrunk)
