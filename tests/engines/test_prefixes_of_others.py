"""Adapters of other engines with their prefix caches, where the environments of the engines are.

A target `engine-...` of the Makefile makes such an environment, and fuzzes for longer.
"""

from pathlib import Path
from typing import Final

import pytest
from spec_engine import small

from conformance.fuzzing import campaign
from conformance.isolation.placement import factory_of
from conformance.lockstep.lockstep import Lockstep
from conformance.protocol import Action, Factory
from spec.machines import actions as act
from spec.machines.actions import Merge, Publish
from spec.vocabulary import CleanupMode, Geometry, Params, default_limits

ROOT: Final = Path(__file__).resolve().parents[2]
SIZES: Final = Geometry(pages=6, page_size=4, slots=3, pages_per_seq=3)
TEXT: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9)
WRITTEN: Final = {
    "lmdeploy": "lmdeploy:make_caching_written",
    "transformers": "transformers_cache:make_sharing",
}
"""Factories by the environment of their engine: a page is published when it is written."""
HOLD: Final = {**WRITTEN, "mini-sglang": "mini_sglang:make_ended"}
"""Those that fuzzing finds nothing in."""
FAIL: Final = {
    "lmdeploy": ("lmdeploy:make_caching", {"SHARE", "DET"}),
    "mini-sglang": ("mini_sglang:make", {"UAF"}),
}
"""Those with a known finding, and the clauses that show it."""
STEPS: Final = 600


def factory(environment: str, name: str) -> Factory:
    """A factory in the environment of its engine; skips without it."""
    home = ROOT / f".venv-{environment}"
    if not (home / ".done").exists():
        pytest.skip(f"NOT CHECKED: no environment; make engine-{environment} makes it")
    return factory_of(f"conformance.engines.{name}", python=str(home / "bin" / "python"))


@pytest.fixture(params=HOLD)
def holds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Factory:
    """A factory that fuzzing finds nothing in."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return factory(request.param, HOLD[request.param])


def fuzzed(engine: Factory) -> campaign.Run:
    """Fuzz an engine for STEPS, or until a step fails."""
    report = campaign.Run()
    options = campaign.Options(geometry=small(), steps=STEPS, ceiling=False)
    campaign.run(engine, options, report=report, update=lambda *_: None)
    return report


def begun(slot: int, text: tuple[int, ...] = TEXT) -> tuple[Action, ...]:
    """A sequence with a prompt."""
    return (act.Reserve(slot), act.Assign(slot, text, Params(max_new=1), request=slot))


def written(slot: int, text: tuple[int, ...] = TEXT) -> tuple[Action, ...]:
    """A sequence with all of its cells."""
    cells = tuple((slot, position) for position in range(len(text)))
    return (*begun(slot, text), act.Allocate(cells), act.Write(cells))


@pytest.mark.parametrize("environment", WRITTEN)
def test_pages_are_published_found_again_and_merged(environment: str) -> None:
    """Full pages are in the index when they are written, stay idle, are hit, and merged with."""
    made = factory(environment, WRITTEN[environment])
    lockstep = Lockstep(made(SIZES, default_limits(SIZES), CleanupMode.NONE))
    unasked = list[type]()
    for action in (*written(0), act.Free(0), *begun(1), act.Hit(1, 8), *written(2)):
        assert not lockstep.do(action)
        unasked += [type(taken.action) for taken in lockstep.unasked]
    hit, merged = lockstep.seen.rows[1], lockstep.seen.rows[2]

    assert unasked == [Publish, Publish, Merge, Merge]
    assert [(0, *TEXT[:4]), (0, *TEXT[:8])] == [
        lockstep.seen.indexed[page] for page in hit[:2] if lockstep.seen.indexed
    ]
    assert hit[:2] == merged[:2]


def test_idle_pages_make_room(holds: Factory) -> None:
    """Where no other page is left, pages of the index are evicted, and another text is written."""
    lockstep = Lockstep(holds(SIZES, default_limits(SIZES), CleanupMode.NONE))
    for action in (*written(0), act.Free(0), *written(1, (8,) * 11), *written(2, (9,) * 11)):
        assert not lockstep.do(action)

    assert (0, *TEXT[:8]) not in (lockstep.seen.indexed or ())


def test_fuzzing_finds_nothing(holds: Factory) -> None:
    """In the steps of this test, the engine publishes, hits and frees."""
    report = fuzzed(holds)

    assert report.finding is None, report.finding
    assert {"Publish: done", "Hit: done", "Free: done"} <= report.coverage.outcomes.keys()


@pytest.mark.parametrize("environment", FAIL)
def test_fuzzing_shows_what_is_known(environment: str) -> None:
    """The finding of each engine, with one of its clauses."""
    name, clauses = FAIL[environment]

    found = fuzzed(factory(environment, name)).finding

    assert found is not None
    assert found.clause in clauses
