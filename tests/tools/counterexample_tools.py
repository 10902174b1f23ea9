"""Counterexamples to keep, to shrink and to damage."""

import toy_engine
from spec_engine import small

from conformance.engines.registry import OUR_ENGINE
from conformance.files.histories import Recorded
from conformance.history import History
from conformance.lockstep.run import replay
from spec.machines import actions as act
from spec.vocabulary import CleanupMode, Geometry, default_limits

SIZES = small(pages=6, page_size=2, slots=3, pages_per_seq=4)


THREE = act.Allocate(((0, 0), (0, 1), (0, 2)))


GROW: History = (act.Reserve(0), act.Allocate(((0, 0),)), act.Free(0), act.Reserve(0), THREE)


def toy(bug: str, sizes: Geometry = SIZES) -> toy_engine.Adapter:
    """A toy engine with one of its bugs."""
    adapter = toy_engine.Adapter(sizes, default_limits(sizes), CleanupMode.INCREMENTAL)
    adapter.allocator.bug = bug
    return adapter


def recorded(bug: str, history: History) -> Recorded:
    """The recorded finding of the toy on this history."""
    finding = replay(lambda: toy(bug), history)
    assert finding is not None
    return Recorded(
        engine="toy_engine:make",
        geometry=SIZES,
        limits=default_limits(SIZES),
        cleanup=CleanupMode.INCREMENTAL,
        history=finding.history,
        clause=finding.clause,
        message=finding.message,
    )


USUAL = Geometry(pages=16, page_size=4, slots=4, pages_per_seq=4)


OURS = Recorded(
    engine=OUR_ENGINE,
    geometry=USUAL,
    limits=default_limits(USUAL),
    cleanup=CleanupMode.INCREMENTAL,
    history=(act.Reserve(0), act.Free(0)),
    clause="CONS",
)
