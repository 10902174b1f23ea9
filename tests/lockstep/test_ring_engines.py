"""A paged ring behind the protocol: a right one holds, and each planted bug is found."""

import pytest
from attrs import evolve
from deep import deep_after
from ring_toy import BUGS, RingAdapter, make_ring, ring_of, with_bug
from spec_engine import SpecEngine, small
from spec_tools import grown

from conformance.fuzzing import campaign
from conformance.lockstep.lockstep import Lockstep
from conformance.lockstep.not_checked import not_checked
from conformance.protocol import Factory
from spec.machines import actions as act
from spec.table import unrolled
from spec.vocabulary import (
    INVALID,
    Capacity,
    CleanupMode,
    Geometry,
    InvalidInput,
    Limits,
    default_limits,
)

WINDOWED = small(window=4)
GONE = INVALID


def fuzzed(factory: Factory, *, steps: int, seed: int = 0) -> campaign.Run:
    """Fuzz an engine with rings of two pages, until so many steps or a finding."""
    report, sizes = campaign.Run(), small(pages=8, page_size=3, pages_per_seq=5, window=4)
    options = campaign.Options(geometry=sizes, alone=True, steps=steps, seed=seed, ceiling=False)
    campaign.run(factory, options, report=report, update=lambda *_: None)
    return report


def test_a_ring_holds() -> None:
    """Nothing is found, and rows of rings give pages up in every way that there is."""
    report = fuzzed(make_ring, steps=2000)

    assert report.finding is None, report.finding
    rings = {name for name in report.coverage.corners if "ring" in name}
    assert {
        "row of a ring that gives up a page",
        "row of a ring that gives up a page for the second time in its place",
        "row of a ring that gives up a shared page",
        "row of a ring that gives up a page of a full pool",
        "refuse cells past a ring",
    } == rings


@pytest.mark.parametrize("seed", deep_after(1, [0, 100, 200]))
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_a_ring_is_found(bug: str, seed: int) -> None:
    """Each violates one of its clauses within 4,000 steps."""
    finding = fuzzed(with_bug(bug), steps=4000, seed=seed).finding

    assert finding is not None
    assert finding.clause in BUGS[bug], finding.message


def test_a_ring_that_is_not_declared_is_found() -> None:
    """An engine that gives pages up without a word has rows that lack pages."""

    def silent(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> RingAdapter:
        engine = make_ring(geometry, limits, cleanup)
        engine.profile = evolve(engine.profile, ring=0)
        return engine

    finding = fuzzed(silent, steps=4000).finding

    assert finding is not None
    assert finding.clause in {"ROW", "ATOMIC"}, finding.message


def test_a_profile_with_a_ring_is_held_to_the_window() -> None:
    """It releases by itself, so that WIN is checked whether or not it offers Release."""
    engine = make_ring(WINDOWED, default_limits(WINDOWED), CleanupMode.NONE)

    assert Capacity(ring=2) == engine.profile.capacity
    assert act.Release not in engine.profile.taken
    assert "window" in engine.profile.machine.names
    assert "WIN" not in dict(not_checked(engine))
    lockstep = Lockstep(engine)
    for action in grown(0, 8):
        lockstep.do(action)
    lockstep.do(act.Allocate(((0, 8),)))
    row = lockstep.seen.rows[0]
    assert (GONE, 1) == (row[0], lockstep.seen.first_page[0] if lockstep.seen.first_page else 0)


@pytest.mark.parametrize(("ring", "listed"), [(2, []), (3, []), (4, ["a ring of 4 pages"])])
def test_a_ring_that_rows_do_not_reach_is_reported(ring: int, listed: list[str]) -> None:
    """Where rows have no more entries than the ring, none ever gives a page up."""
    limits, capacity = default_limits(WINDOWED), Capacity(ring=ring)
    engine = SpecEngine(WINDOWED, limits, CleanupMode.NONE, capacity=capacity)

    assert listed == [what for what, _ in not_checked(engine) if what.startswith("a ring")]


def test_a_ring_is_read_in_order_of_position() -> None:
    """Entry i of a row is entry `i % 3` of a ring of three."""
    assert () == unrolled((), 0, 0)
    assert (7, 8) == unrolled((7, 8), 0, 2)
    assert (7, 8, 9) == unrolled((7, 8, 9), 0, 3)
    assert (GONE, GONE, 9, 7, 8) == unrolled((7, 8, 9), 2, 5)
    assert (GONE, GONE, 9, 7) == unrolled((7, 8, 9), 2, 4)  # after a truncation


def test_a_ring_too_short_for_the_window_is_refused() -> None:
    """The lockstep cannot begin: no row could hold a window and the next cell."""
    sizes = small(window=10)

    with pytest.raises(InvalidInput, match=r"Capacity\.ring: saw 2, allowed: 0, or 4 and more"):
        SpecEngine(sizes, default_limits(sizes), CleanupMode.NONE, capacity=Capacity(ring=2))
    assert 4 == ring_of(sizes)
