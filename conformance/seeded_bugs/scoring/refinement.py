"""Refining as a way to catch a planted bug: every transition of the small graphs, in turn.

Nothing is drawn, so that one try says all. Compiling what is checked is part of the work here, and
counts.
"""

import time

from conformance.refinement.run import SMALL, Refinement, refine_small
from conformance.seeded_bugs.scoring.attempts import Attempt, Budget


def refine(_plant: str | None, _seed: int, _budget: Budget) -> Attempt:
    """Until a graph shows a mismatch. steps: transitions checked; shrunk: the shortest moves.

    A plant that does not even run has not been caught: that is an error of the plant.
    """
    started, checked = time.perf_counter(), 0
    for small in SMALL:
        run = Refinement()
        try:
            refine_small(small, run, None)
        except Exception as raised:
            seconds, error = time.perf_counter() - started, f"{type(raised).__name__}: {raised}"
            return Attempt(caught=False, steps=checked, seconds=seconds, error=error)
        checked += run.tally.checked
        if run.tally.mismatches:
            seconds, length = time.perf_counter() - started, len(run.history)
            return Attempt(caught=True, steps=checked, seconds=seconds, shrunk=length)
    return Attempt(caught=False, steps=checked, seconds=time.perf_counter() - started)
