"""A small Llama beside the float64 oracle of it."""

from itertools import chain
from typing import Final

from conformance.lockstep.watchdog import Watchdog
from conformance.numerics import llama, llama_cells
from impl.models.llama import DTYPES

SECONDS: Final = 120.0
"""How long it may take before it counts as hanging."""
TABLES: Final = 10
"""The histories of a table."""


def judge(watchdog: Watchdog) -> str | None:
    """Requests served by our engine, histories of its table, and long texts in every dtype."""
    weights = llama.drawn_weights(0)
    steps = (llama_cells.differences(weights, seed=seed) for seed in range(TABLES))
    far = map(llama_cells.far_differences, DTYPES)
    watchdog.begin((), SECONDS)
    try:
        return next(chain(llama.differences(weights), *steps, *far), None)
    finally:
        watchdog.end()
