"""Small Llamas beside the float64 oracle of them, and what they and their parts take and refuse."""

from collections.abc import Iterator
from itertools import count, islice, product
from typing import Final

from attrs import evolve

from conformance.kernels.in_engine import interpreted
from conformance.lockstep.watchdog import Watchdog
from conformance.numerics import (
    array_shapes,
    documented_defaults,
    llama,
    llama_arguments,
    llama_cells,
)
from conformance.seeded_bugs import forget_compiled
from impl.models.llama import DTYPES

SECONDS: Final = 600.0
"""How long it may take before it counts as hanging."""
TABLES: Final = 2
"""The histories of a table, for each model and dtype."""


def judge(watchdog: Watchdog) -> str | None:
    """Requests served, histories of a table, tokens, weights and shapes that are refused, defaults,
    long texts in every dtype, and the kernel for TPUs.
    """
    watchdog.begin((), SECONDS)
    try:
        return next(_differences(), None)
    finally:
        watchdog.end()


def _differences() -> Iterator[str]:
    seeds = count()
    for model in llama.MODELS:
        weights = llama.drawn_weights(0, model)
        for dtype in DTYPES:
            narrow = evolve(model, dtype=dtype)
            for seed in islice(seeds, TABLES):
                given = llama.loud(weights) if seed % 2 else weights
                yield from llama_cells.differences(given, narrow, seed=seed)
                scale = llama.LOUD if seed % 2 else 1
                yield from llama.differences(given, narrow, scale=scale)
    for dtype in DTYPES:
        yield from llama.draw_differences(dtype)
        yield from llama.sample_differences(dtype)
    yield from llama_arguments.differences(llama.MODEL)
    yield from array_shapes.differences()
    yield from documented_defaults.differences()
    with interpreted():
        model = evolve(llama.MODEL, attention="tpu")
        yield from llama.differences(llama.drawn_weights(0), model)
    forget_compiled()
    for dtype, size in product(DTYPES, llama_cells.PAGE_SIZES):
        yield from llama_cells.far_differences(dtype, page_size=size)
