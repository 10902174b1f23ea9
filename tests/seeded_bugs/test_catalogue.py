"""The catalogue of planted bugs: well formed, removed after use, and caught."""

import re
import sys
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from deep import deep_after
from spec_engine import small
from spec_tools import grown

from conformance.engines import ours
from conformance.history import History
from conformance.lockstep.run import replay
from conformance.protocol import Engine
from conformance.seeded_bugs import Plant, find, planted
from conformance.seeded_bugs.catalogue import FAMILIES, NOT_YET, PLANTS
from conformance.seeded_bugs.scoring import refinement
from conformance.seeded_bugs.scoring.attempts import Budget
from spec import clauses
from spec.machines import actions as act
from spec.vocabulary import CleanupMode, InvalidInput, default_limits

SIZES = small()
NAME: Final = re.compile("[A-Z]{2}[1-9][0-9]?[b-z]?")
"""Two letters and a number, as in the catalogue of real bugs; a letter more for a twin."""
OF_PLANTS: Final = re.compile(r"of (\d+) plants are caught")


CAUGHT: Final[tuple[tuple[str, History], ...]] = (
    ("CW5", (*grown(0, 3), act.Clone(0, 1, 1))),
    ("RC2", (*grown(0, 4), act.Clone(0, 1, 1))),
    ("CL1", (*grown(0, 3)[:3], act.Free(0))),
    ("PT1", (*grown(0, 3), act.Free(0))),
    ("CW6", (*grown(0, 4), act.Clone(0, 1, 1), act.Free(0))),
    ("RS3", (act.Reserve(0), act.Reset())),
    ("SW4b", grown(0, 5)),
    ("SW5b", grown(0, 4)),
    ("HG8", (*grown(0, 8), act.Release(0, 4), act.Publish(0, 8))),
)


def engine(plant: str) -> Engine:
    """A new reference engine, with a window for a plant behind one."""
    sizes = small(window=3) if PLANTS[plant] in FAMILIES["window"] else SIZES
    return ours.make(sizes, default_limits(sizes), CleanupMode.INCREMENTAL)


def test_the_catalogue_is_whole() -> None:
    """Every plant is in one family, under a name of its own, and no row is both in it and not."""
    listed = [plant.id for family in FAMILIES.values() for plant in family]

    assert 38 <= len(PLANTS)
    assert sorted(PLANTS) == sorted(listed)
    assert all(FAMILIES.values())
    assert set() == set(PLANTS) & set(NOT_YET)
    assert [] == [name for name in (*PLANTS, *NOT_YET) if not NAME.fullmatch(name)]
    assert all(NOT_YET.values())


def test_the_pages_count_the_plants() -> None:
    """The README and the scores are of the catalogue as it is, each plant in one of them."""
    root = Path(__file__).parents[2]
    number = len(PLANTS)
    pages = [page.read_text(encoding="utf-8") for page in (root / "docs").glob("score*.md")]
    scored = [name for page in pages for name in re.findall(r"^\| \[(\w+)\]\(", page, re.M)]

    assert f"{number} bugs that public engines" in (root / "README.md").read_text(encoding="utf-8")
    assert sorted(PLANTS) == sorted(scored)
    assert number == sum(int(found) for page in pages for found in OF_PLANTS.findall(page))


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_plant_says_where_it_comes_from(plant: Plant) -> None:
    """A plant has a public thread, a mechanism, a clause, and functions to patch."""
    assert plant is find(plant.id)
    assert plant.thread.startswith("https://github.com/")
    assert plant.thread.rpartition("/")[0].endswith(("/pull", "/issues"))
    assert plant.thread.rpartition("/")[2].isdigit()
    assert plant.clause in clauses.CLAUSES
    assert plant.mechanism
    assert not plant.mechanism.endswith(".")
    assert plant.patches
    for patch in plant.patches:
        assert patch.module.startswith("impl.")
        assert callable(getattr(sys.modules[patch.module], patch.name))


def test_an_unknown_plant_is_bad_input() -> None:
    """The message lists all plants."""
    with pytest.raises(InvalidInput, match=r"saw 'CW99', allowed: .*CW5"):
        find("CW99")
    with pytest.raises(InvalidInput), planted("CW99"):
        pass


def functions() -> dict[tuple[str, str], object]:
    """Every function that the engine's modules hold."""
    return {
        (module_name, name): value
        for module_name, module in list(sys.modules.items())
        if module_name.partition(".")[0] == "impl"
        for name, value in vars(module).items()
        if callable(value)
    }


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_plant_is_gone_when_its_block_ends(plant: Plant) -> None:
    """Every function that a plant replaces is replaced wherever it is held, and is put back."""
    before = functions()

    with planted(plant.id) as found:
        during = functions()
        assert plant is found
        for patch in plant.patches:
            right = before[patch.module, patch.name]
            assert right is not during[patch.module, patch.name]
            assert [] == [at for at, value in during.items() if value is right]
    assert before == functions()


def test_a_plant_is_gone_when_its_block_fails() -> None:
    """An exception does not leave a bug behind."""
    before = functions()

    with pytest.raises(ZeroDivisionError), planted("CW5"):
        raise ZeroDivisionError
    assert before == functions()


@pytest.mark.parametrize(
    ("plant", "history"), deep_after(1, CAUGHT), ids=[plant for plant, _ in CAUGHT]
)
def test_a_plant_is_caught_on_a_short_history(plant: str, history: History) -> None:
    """The planted engine violates the plant's clause at the last step; ours violates none."""
    with planted(plant):
        found = replay(partial(engine, plant), history)

    assert found is not None
    assert PLANTS[plant].clause == found.clause
    assert history == found.history
    assert None is replay(partial(engine, plant), history)


def test_refining_what_breaks_down_is_no_catch_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plant that raises an exception is not caught, and its error is reported."""

    def raises(*_given: object) -> None:
        raise IndexError("of nothing")

    monkeypatch.setattr("conformance.seeded_bugs.scoring.refinement.refine_small", raises)
    attempt = refinement.refine("CW5", 0, Budget(steps=1))

    assert (False, "IndexError: of nothing") == (attempt.caught, attempt.error)
