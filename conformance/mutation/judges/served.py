"""A small Llama beside the float64 oracle of it."""

from itertools import chain, product
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
    far = (
        llama_cells.far_differences(dtype, page_size=size)
        for dtype, size in product(DTYPES, llama_cells.PAGE_SIZES)
    )
    watchdog.begin((), SECONDS)
    try:
        wrong = chain(llama.differences(weights), *steps, chain.from_iterable(far))
        return next(wrong, None)
    finally:
        watchdog.end()
