"""Mechanical mutants: each is well formed and a change, and every survivor is explained."""

import ast
import sys
from pathlib import Path
from typing import Final

import jax.numpy as jnp
import pytest

from conformance.mutation import run
from conformance.mutation.explained import EQUIVALENT
from conformance.mutation.operator import TARGETS, Mutant, _of, mutants
from conformance.seeded_bugs import replaced
from impl.state import pages
from spec.vocabulary import CleanupMode, Geometry

ALL = tuple(mutants())
LITTLE: Final = '''
def little(rows: list[int], at: int) -> bool:
    """Text, and its constant 7, are left alone."""
    guard = (at < 3, Reason.TOO_LONG, at + 9, 4)
    return rows[at] == -1 or rows[at, 0] > 0
'''


def test_every_mutant_has_a_name_of_its_own() -> None:
    """No two mutants have the same name, and each explanation belongs to a mutant."""
    names = [mutant.id for mutant in ALL]

    assert 200 < len(names)
    assert len(names) == len(set(names))
    assert [] == sorted(set(EQUIVALENT) - set(names))
    assert {f"{module}.{one}" for module, some in TARGETS.items() for one in some} >= {
        name.partition(":")[0] for name in names
    }


@pytest.mark.parametrize("function", TARGETS.items(), ids=TARGETS)
def test_a_mutant_is_a_function_with_one_change(function: tuple[str, tuple[str, ...]]) -> None:
    """A mutant differs from the right function in one expression, and can be called."""
    module, names = function
    for mutant in ALL:
        if mutant.module == module and mutant.function in names:
            assert mutant.before != mutant.after
            assert callable(mutant.build(getattr(sys.modules[module], mutant.function)))


def test_comparisons_constants_and_indices_are_changed() -> None:
    """Comparisons, constants and indices are mutated, but not the values of refusals or text."""
    found = [f"{one.before} -> {one.after}" for one in _of("builtins", "little", LITTLE)]

    assert [
        "at < 3 -> at <= 3",
        "3 -> 4",
        "rows[at] == -1 -> rows[at] != -1",
        "rows[at] -> rows[at + 1]",
        "1 -> 2",
        "rows[at, 0] > 0 -> rows[at, 0] >= 0",
        "rows[at, 0] -> rows[at + 1, 0]",
        "0 -> 1",
        "0 -> 1",
    ] == found
    assert [0, 1] == [one.number for one in _of("builtins", "little", LITTLE)][-2:]


def test_a_mutant_does_something_else() -> None:
    """A mutant of the search for free pages gives away a page that is in use."""
    (wrong,) = (one for one in ALL if one.id.endswith("is_free: counts == 0 -> counts != 0"))

    with replaced(wrong.module, wrong.function, wrong.build):
        assert [1, 2] == pages.lowest_free(jnp.array([0, 1, 1]), 2).tolist()


@pytest.fixture(scope="module")
def graph() -> run.Kept:
    """The transitions of a graph of 31 states, for mutants to be run on."""
    geometry = Geometry(pages=1, slots=1, page_size=2, pages_per_seq=2)
    return run._keep(("scheduling", geometry, CleanupMode.INCREMENTAL))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new file of results."""
    monkeypatch.setattr(run, "RESULTS", tmp_path / "mutants.jsonl")
    return tmp_path / "mutants.jsonl"


def test_what_was_judged_is_not_judged_again(results: Path) -> None:
    """A mutant is not run again, unless the sources changed or its line is cut off."""
    run._append(run.Fate("one", "somewhere"))
    run._append(run.Fate("two", None))
    results.write_text(results.read_text() + results.read_text()[:20])
    assert {"one": "somewhere", "two": None} == run._done()

    results.write_text(results.read_text().replace(run._sources(), "another"))
    assert {} == run._done()


def test_a_survivor_must_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """A survivor needs an explanation, and an explained mutant must survive."""
    explained: dict[str, str | None] = dict.fromkeys(EQUIVALENT)

    assert 0 == run._tell(explained | {"one": "somewhere"})
    assert 1 == run._tell(explained | {"one": None})
    assert "NOT noticed and not explained: one" in capsys.readouterr().out
    name = next(iter(EQUIVALENT))
    assert 1 == run._tell(explained | {name: "somewhere"})
    assert f"noticed or gone: {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "noticed"),
    [
        ("queue.nowhere", "raises AttributeError"),
        ("queue", "free from state 2"),
        ("_keep(queue, ~jnp.any(queue.slots[:, None] == slots, axis=1))", None),
    ],
)
def test_a_mutant_is_noticed_or_survives(graph: run.Kept, text: str, noticed: str | None) -> None:
    """A mutant is noticed by a wrong result or an exception, and the right function survives."""
    tree = ast.parse(f"def purge(queue, slots):\n    return {text}")
    fate = run.fate(Mutant("impl.state.queue", "purge", "a", "b", 0, tree), [graph])

    assert (noticed or "None") in str(fate.noticed)
