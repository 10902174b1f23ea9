"""Metamorphic tests: another layout of the same sequences must have the same answer."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from attrs import evolve

from conformance.kernels.batches import FAR, Arrays, Batch, Sizes, loud
from conformance.numerics.oracle import Floats

TWINS: Final[Mapping[str, str]] = {
    "order": "sequences in the opposite order",
    "pages": "pages of twice the size",
    "padding": "room for more sequences, more tokens, and longer rows of the table",
    "head_dim": "a head_dim of twice the size, filled with zeros",
}
"""The layouts by name, each with its differences."""


def other(sizes: Sizes, twin: str) -> Sizes:
    """The sizes of the twin."""
    if twin == "pages":
        pages_per_seq = -(-sizes.pages_per_seq // 2)
        return evolve(sizes, page_size=2 * sizes.page_size, pages_per_seq=pages_per_seq)
    if twin == "padding":
        return evolve(
            sizes,
            rows=sizes.rows + 3,
            tokens=sizes.tokens + 11,
            pages_per_seq=sizes.pages_per_seq + 2,
        )
    if twin == "head_dim":
        q_heads, kv_heads, width = sizes.heads
        return evolve(sizes, heads=(q_heads, kv_heads, 2 * width))
    return sizes


def laid_out(sizes: Sizes, batch: Batch, arrays: Arrays, twin: str) -> Arrays:
    """The arrays of the twin: each sequence has pages of its own, all others are NaN."""
    there, width = other(sizes, twin), sizes.heads[2]
    order = _order(batch, twin)
    draws = np.random.default_rng(batch.seed + 1)
    table = draws.permutation(there.rows * there.pages_per_seq).astype(np.int32)
    table = table.reshape(there.rows, there.pages_per_seq)
    q_heads, kv_heads, wide = there.heads
    q = np.zeros((there.tokens, q_heads, wide), np.float32)
    pool = np.full((there.pages, there.page_size, 2 * kv_heads, wide), loud(sizes), np.float32)
    scales = None if arrays.scales is None else np.full(pool.shape[:3], np.nan, np.float32)
    starts = np.zeros(there.rows + 1, np.int32)
    lens = np.zeros(there.rows, np.int32)
    for row, old in enumerate(order):
        queries, length = batch.lens[old]
        first, starts[row + 1 :] = starts[row], starts[row] + queries
        lens[row] = length
        begins = arrays.cu_q_lens[old]
        q[first : first + queries, :, :width] = arrays.q[begins : begins + queries]
        for position in range(length):
            page, offset = divmod(position, sizes.page_size)
            held = arrays.page_indices[old, page], offset
            new, place = divmod(position, there.page_size)
            pool[table[row, new], place] = 0.0
            pool[table[row, new], place, :, :width] = arrays.kv_pages[held]
            if scales is not None and arrays.scales is not None:
                scales[table[row, new], place] = arrays.scales[held]
        table[row, -(-length // there.page_size) :] = FAR
    return Arrays(q, pool, lens, table, starts, arrays.num_seqs, arrays.sinks, scales)


def in_order(sizes: Sizes, batch: Batch, twin: str, found: Floats) -> Floats:
    """The rows of the twin's answer in the original order and head_dim."""
    order = _order(batch, twin)
    counts = [queries for queries, _ in batch.lens]
    starts = np.cumsum([0, *(counts[old] for old in order)])
    parts = [found[starts[order.index(old)] :][: counts[old]] for old in range(len(counts))]
    return np.concatenate(parts)[..., : sizes.heads[2]]


def _order(batch: Batch, twin: str) -> list[int]:
    every = list(range(len(batch.lens)))
    return every[::-1] if twin == "order" else every
