"""Two engines change places: what `kvspec diff` says of A it then says of B, and nothing else."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import toy_engine
from deep import deep_after
from spec_engine import SpecEngine, WithoutCells, WithoutCounts, small

from conformance.cli import diff
from conformance.cli.main import main
from conformance.files import histories
from conformance.lockstep.not_checked import not_checked
from conformance.protocol import Factory
from spec.vocabulary import CleanupMode, Geometry, Limits, default_limits

SIZES = "pages=6,page_size=2,slots=3,pages_per_seq=4"
GEOMETRY = small(pages=6, page_size=2, slots=3, pages_per_seq=4)


def buggy(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> toy_engine.Adapter:
    """A toy that leaks."""
    engine = toy_engine.make(geometry, limits, cleanup)
    engine.allocator.bug = "leak"
    return engine


class Lacks:
    """The specification without some of what an engine may have beside its actions."""

    def __init__(
        self, geometry: Geometry, limits: Limits, cleanup: CleanupMode, *, names: tuple[str, ...]
    ) -> None:
        whole = SpecEngine(geometry, limits, cleanup)
        self.profile, self.apply, self.observe = whole.profile, whole.apply, whole.observe
        for name in {*OPTIONAL} - {*names}:
            setattr(self, name, getattr(whole, name))


OPTIONAL = ("attend", "statistics")
LACKING = {
    f"without {' and '.join(names)}": names
    for names in ((), ("attend",), ("statistics",), ("attend", "statistics"))
}
ENGINES: dict[str, Factory] = {
    "whole": SpecEngine,
    "uncounted": WithoutCounts,
    "without": WithoutCells,
    "toy": toy_engine.make,
    "buggy": buggy,
    **{name: partial(Lacks, names=names) for name, names in LACKING.items()},
}


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Run the command on two of ENGINES, each in a Python of its own name; the result."""
    monkeypatch.chdir(tmp_path)

    def factory_of(engine: str, *, python: str | None, in_process: bool) -> Factory:
        assert (f"python of {engine}", False) == (python, in_process)
        return ENGINES[engine]

    monkeypatch.setattr(diff, "factory_of", factory_of)

    def compared(a: str, b: str) -> dict[str, Any]:
        pythons = ("--python-a", f"python of {a}", "--python-b", f"python of {b}")
        words = ("diff", a, b, *pythons, "--geometry", SIZES, "--seconds", "0.3")
        status = main([*words, "--json", "r.json"])
        found: dict[str, Any] = json.loads(Path("r.json").read_text(encoding="utf-8"))
        return {**found, "status": status}

    return compared


@pytest.mark.parametrize(
    ("a", "b"),
    [("whole", "without"), ("without", "whole"), ("uncounted", "without"), ("toy", "whole"),
     ("whole", "toy")],
)  # fmt: skip
def test_what_is_not_checked_is_told_of_the_engine_that_it_is_about(
    a: str, b: str, compare: Callable[..., dict[str, Any]]
) -> None:
    """Each entry of one engine alone stands under its letter, and under no other."""
    found = compare(a, b)

    limits = default_limits(GEOMETRY)
    for letter, name in (("A", a), ("B", b)):
        engine = ENGINES[name](GEOMETRY, limits, CleanupMode.INCREMENTAL)
        expected = {f"{letter}: {what}: {why}" for what, why in not_checked(engine)}
        seen = {one for one in found["not_checked"] if one.startswith(f"{letter}: ")}
        only = "it is driven only if A has attend", "statistics are compared only if A has them"
        assert expected == {one for one in seen if not one.endswith(only)}


@pytest.mark.parametrize("other", ["whole", "toy", "without"])
@pytest.mark.parametrize("place", ["A", "B"])
def test_a_finding_is_kept_as_one_of_the_engine_that_goes_wrong(
    place: str, other: str, compare: Callable[..., dict[str, Any]]
) -> None:
    """Its letter, its name and its Python are in the files, wherever it stands."""
    found = compare(*(("buggy", other) if place == "A" else (other, "buggy")))

    kept = histories.load(Path(found["counterexample"]))
    assert (1, place) == (found["status"], found["at_fault"])
    assert ("buggy", "python of buggy", False) == (kept.engine, kept.python, kept.in_process)
    assert "python='python of buggy'" in Path(found["test"]).read_text(encoding="utf-8")
    assert re.match(r"(CONS|RC): counts", found["failures"][0])
    assert found["shrunk_steps"] == len(kept.history) < found["steps"]


@pytest.mark.parametrize("a", LACKING)
@pytest.mark.parametrize("b", deep_after(1, ["whole", "without attend and statistics"]))
def test_what_only_a_pair_cannot_compare_is_told_of_b(
    a: str, b: str, compare: Callable[..., dict[str, Any]]
) -> None:
    """Attention and statistics of B are compared only beside those of A, each for itself."""
    told = compare(a, b)["not_checked"]

    by_name = {
        "attend": "B: READ, by driving attention: it is driven only if A has attend",
        "statistics": "B: STAT: statistics are compared only if A has them",
    }
    for name, line in by_name.items():
        assert (name in LACKING[a]) == (line in told)
