"""Synthetic traffic in lockstep, every output compared with decoding its request alone."""

from collections.abc import Mapping
from typing import Final

from conformance.engines import ours
from conformance.lockstep.watchdog import Watchdog
from conformance.seeded_bugs.scoring.methods import GEOMETRY, made_up
from conformance.traffic import replay
from spec.vocabulary import CleanupMode, Geometry, Params, Request, default_limits

TRAFFIC: Final[Mapping[Geometry, int]] = {
    GEOMETRY: 120,
    Geometry(pages=850, page_size=1, slots=3, pages_per_seq=280): 8,
    Geometry(pages=600, page_size=2, slots=140, pages_per_seq=6): 160,
}
"""The requests at each size. Positions of the second do not fit in 8 bits, and the number of slots
of the third not in 8 bits with a sign.
"""
CROWDED: Final = Geometry(pages=640, page_size=2, slots=300, pages_per_seq=3)
CROWD: Final = Request(
    id=0, prompt=(1, 2, 3), params=Params(max_new=3), n_generations=CROWDED.slots
)
"""More choices share a page than 8 bits can count, and not as many as wrap to the right place."""
SECONDS: Final = 120.0
"""How long the traffic of a size may take before it counts as hanging."""


def judge(watchdog: Watchdog) -> str | None:
    """Serve the traffic of each size."""
    traffic = {
        size: made_up(0, count=count, longest=size.max_len) for size, count in TRAFFIC.items()
    }
    for geometry, requests in {**traffic, CROWDED: iter([CROWD])}.items():
        engine = ours.make_without_cells(
            geometry, default_limits(geometry), CleanupMode.INCREMENTAL
        )
        tally = replay.Tally()
        watchdog.begin(tally.history, SECONDS)
        try:
            replay.replay(engine, requests, tally=tally, update=lambda _: None)
        finally:
            watchdog.end()
        if tally.finding or tally.leaked_pages:
            return tally.finding.clause if tally.finding else "CONS"
    return None
