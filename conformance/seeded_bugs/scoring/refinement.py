"""The method `refine`: every transition of the small graphs, in turn.

Nothing is drawn, so that one try is enough. Its time includes compilation.
"""

import time

from conformance.refinement.run import SMALL, Refinement, refine_small
from conformance.seeded_bugs.scoring.attempts import Attempt, Budget


def refine(_plant: str | None, _seed: int, _budget: Budget) -> Attempt:
    """Check graphs until one shows a mismatch.

    steps: the transitions checked. shrunk: the moves of a shortest history to the mismatch. A plant
    that raises an exception has not been caught: that is an error of the plant.
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
