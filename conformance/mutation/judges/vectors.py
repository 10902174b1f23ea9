"""Every vector that `kvspec vectors` writes."""

from functools import cache
from typing import Final

from conformance.engines import ours
from conformance.lockstep.watchdog import Watchdog
from conformance.vectors.build import Vector, build
from conformance.vectors.play import play
from conformance.vectors.suites import suites

SECONDS: Final = 60.0
"""How long a vector may take before it counts as hanging."""


def judge(watchdog: Watchdog) -> str | None:
    """Play them one after another."""
    for vector in _every():
        header = vector.header
        watchdog.begin((), SECONDS)
        try:
            engine = ours.make_without_cells(header.geometry, header.limits, header.cleanup)
            found = play(engine, vector)
        finally:
            watchdog.end()
        if found is not None:
            return found.clause
    return None


@cache
def _every() -> tuple[Vector, ...]:
    return tuple(vector for suite in suites() for vector in build(suite).vectors)
