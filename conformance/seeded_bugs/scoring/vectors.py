"""The method `vectors`: every line of every vector, in turn.

Nothing is drawn, so that one try is enough. Its time includes compilation, but not the construction
of the vectors.
"""

import time

from attrs import evolve

from conformance.engines import ours
from conformance.seeded_bugs.scoring.attempts import Attempt, Budget
from conformance.vectors.build import Vector, build
from conformance.vectors.play import play
from conformance.vectors.suites import suites


def vectors(_plant: str | None, _seed: int, _budget: Budget) -> Attempt:
    """Play vectors until one fails.

    steps: the actions taken. shrunk: those of the failing vector up to its failure. A plant that
    raises an exception has not been caught: that is an error of the plant.
    """
    steps, seconds = 0, 0.0
    for suite in suites():
        made = build(suite).vectors
        started = time.perf_counter()
        tried = _play(made)
        steps, seconds = steps + tried.steps, seconds + time.perf_counter() - started
        if tried.caught or tried.error:
            return evolve(tried, steps=steps, seconds=seconds)
    return Attempt(caught=False, steps=steps, seconds=seconds)


def _play(made: tuple[Vector, ...]) -> Attempt:
    """Play the vectors of one suite. seconds: not measured here."""
    steps = 0
    for vector in made:
        header = vector.header
        try:
            engine = ours.make_without_cells(header.geometry, header.limits, header.cleanup)
            found = play(engine, vector)
        except Exception as raised:
            error = f"{vector.name}: {type(raised).__name__}: {raised}"
            return Attempt(caught=False, steps=steps, seconds=0.0, error=error)
        if found is not None:
            taken = found.line - 1
            return Attempt(
                caught=True, steps=steps + taken, seconds=0.0, clause=found.clause, shrunk=taken
            )
        steps += len(vector.lines)
    return Attempt(caught=False, steps=steps, seconds=0.0)
