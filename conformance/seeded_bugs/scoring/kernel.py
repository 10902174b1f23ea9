"""Ragged batches for the reference attention, and the float64 oracle that judges its output.

Every cell that no query may see holds NaN, so that a read past a mask shows.
"""

from collections.abc import Iterator
from typing import Final

import jax.numpy as jnp
import numpy as np
from attrs import frozen
from jax import Array
from numpy.typing import NDArray

from conformance.numerics import oracle
from impl.attention import reference
from spec.attention import visible
from spec.vocabulary import INVALID

TOKENS: Final = 24
ROWS: Final = 6
HEADS: Final = (4, 2, 8)
"""Query heads, KV heads, head_dim."""
SCALE: Final = 0.4
DEEP: Final = 400.0
"""The factor on q and K in a case with all scores far below zero."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Sequences = list[tuple[int, int]]
"""(queries, cells) of each sequence."""


@frozen(kw_only=True)
class Shape:
    """Static arguments, each set of which is compiled: sizes, the window and the blocks."""

    page_size: int
    pages_per_seq: int
    window: int | None
    q_block: int
    kv_block_pages: int


SHAPES: Final = (
    Shape(page_size=4, pages_per_seq=7, window=None, q_block=16, kv_block_pages=16),
    Shape(page_size=4, pages_per_seq=7, window=6, q_block=3, kv_block_pages=2),
    Shape(page_size=1, pages_per_seq=20, window=3, q_block=1, kv_block_pages=3),
    Shape(page_size=2, pages_per_seq=13, window=None, q_block=5, kv_block_pages=4),
)

Case = tuple[Floats, Floats, Ints, Ints, Ints, Ints]
"""The arrays of one call, in the order of the interface."""


def check(seed: int, *, cases: int) -> tuple[int, bool]:
    """The number of cases tried, and whether the last of them is out of its bound."""
    draws = np.random.default_rng(seed)
    for index in range(cases):
        shape = SHAPES[index % len(SHAPES)]
        if not within_bound(shape, build(shape, draws)):
            return index + 1, True
    return cases, False


def compile_all() -> None:
    """Call the attention once with each shape."""
    for shape in SHAPES:
        attend(shape, build(shape, np.random.default_rng(0)))


def attend(shape: Shape, case: Case) -> Array:
    """The output of the reference attention, with the bug that is planted, if one is."""
    return reference.ragged_paged_attention(
        *map(jnp.asarray, case),
        scale=SCALE,
        sliding_window=shape.window,
        q_block=shape.q_block,
        kv_block_pages=shape.kv_block_pages,
    )


def within_bound(shape: Shape, case: Case) -> bool:
    """Whether every element is as near the oracle as a correct kernel must be."""
    cells = min(shape.kv_block_pages, shape.pages_per_seq) * shape.page_size
    window = shape.window
    expected = oracle.ragged_paged_attention(*case, scale=SCALE, sliding_window=window)
    bound = oracle.error_bound(*case, scale=SCALE, sliding_window=window, block_cells=cells)
    out = np.asarray(attend(shape, case), np.float64)
    return bool((np.abs(out - expected) <= bound).all())


def build(shape: Shape, draws: np.random.Generator) -> Case:
    """A random batch with pages in random order; NaN in every cell that no query may see."""
    sequences = _sequences(shape, draws)
    pages = ROWS * shape.pages_per_seq
    table = np.full((ROWS, shape.pages_per_seq), INVALID, np.int32)
    order = draws.permutation(pages).astype(np.int32).reshape(table.shape)
    lengths = np.zeros(ROWS, np.int32)
    starts = np.full(ROWS + 1, sum(queries for queries, _ in sequences), np.int32)
    starts[: len(sequences)] = np.cumsum([0, *(queries for queries, _ in sequences)])[:-1]
    for index, (_, length) in enumerate(sequences):
        used = -(-length // shape.page_size)
        table[index, :used] = order[index, :used]
        lengths[index] = length
    q, cells = _numbers(shape, draws, deep=draws.integers(4) == 0)
    live = sorted(set(_live(shape, sequences, table)))
    kept = cells[live]
    cells[:] = np.nan
    cells[live] = kept
    count = np.asarray(len(sequences), np.int32)
    return q, cells.reshape(pages, shape.page_size, *cells.shape[1:]), lengths, table, starts, count


def _sequences(shape: Shape, draws: np.random.Generator) -> Sequences:
    """Prefills, decodes, and sequences of more queries than cells, until the batch is full."""
    longest, left, found = shape.page_size * shape.pages_per_seq, TOKENS, Sequences()
    while left and len(found) < ROWS:
        length = int(draws.integers(1, longest + 1))
        wanted = int(draws.choice((1, 2, length, length + 2, TOKENS)))
        queries = min(left, wanted, length + 2)
        found.append((queries, length))
        left -= queries
    return found


def _numbers(shape: Shape, draws: np.random.Generator, *, deep: bool) -> tuple[Floats, Floats]:
    """q and the cells; deep: every score is far below zero."""
    q_heads, kv_heads, width = HEADS
    q = draws.normal(size=(TOKENS, q_heads, width)).astype(np.float32)
    count = ROWS * shape.pages_per_seq * shape.page_size
    cells = draws.normal(size=(count, 2 * kv_heads, width)).astype(np.float32)
    if deep:
        q = np.abs(q) * np.float32(DEEP)
        cells[:, 0::2] = -np.abs(cells[:, 0::2]) * np.float32(DEEP)
    return q, cells


def _live(shape: Shape, sequences: Sequences, table: Ints) -> Iterator[int]:
    """The cells that some query may see."""
    for index, (queries, length) in enumerate(sequences):
        for position in range(length - queries, length):
            for seen in visible(position, length, shape.window) if position >= 0 else ():
                page = int(table[index, seen // shape.page_size])
                yield page * shape.page_size + seen % shape.page_size
