"""Refining as a way to catch a planted bug: every transition of the small graphs, in turn.

Nothing is drawn, so that one try says all. Compiling what is checked is part of the work here, and
counts.
"""

import time

from conformance.plants.attempts import Attempt, Budget
from conformance.refine.run import SMALL, Refinement, refine_small


def refine(_plant: str | None, _seed: int, _budget: Budget) -> Attempt:
    """Until a graph shows a mismatch. steps: transitions checked; shrunk: the shortest moves."""
    started, checked = time.perf_counter(), 0
    for small in SMALL:
        run = Refinement()
        error = None
        try:
            refine_small(small, run, None)
        except Exception as raised:  # an engine that cannot be run is caught too
            error = type(raised).__name__
        checked += run.tally.checked
        if run.tally.mismatches or error is not None:
            seconds = time.perf_counter() - started
            length = len(run.history) or None
            return Attempt(caught=True, steps=checked, seconds=seconds, shrunk=length, error=error)
    return Attempt(caught=False, steps=checked, seconds=time.perf_counter() - started)
