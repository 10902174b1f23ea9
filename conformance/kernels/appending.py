"""Batches for kernels that write new cells: their inputs, and the expected pool.

The pool that a kernel receives lacks the cells of its queries' own tokens: they are NaN there, so a
kernel that reads them from the pool is noticed. As far as the dtype allows, no two NaN have the
same bits, so a moved or overwritten cell is noticed as well. The tokens of a lost sequence have no
cell, or some of them have none if destinations are given: nothing is to be written for them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from random import Random
from typing import Final

import ml_dtypes
import numpy as np
from attrs import evolve, frozen

from conformance.kernels.batches import (
    FAR,
    Arrays,
    Batch,
    Integers,
    Ints,
    Lost,
    Numbers,
    Sizes,
    integers,
    rows_of,
)
from conformance.kernels.kernel_under_test import DESTINATIONS, NEW_CELLS
from spec.vocabulary import INVALID

WORDS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32}
FREE: Final = {1: 0x80, 2: 0x803F, 4: 0x803FFFFF}
"""The free bits of a NaN, by its size in bytes."""
SHARE: Final = 1 / 2
"""Of the tokens of a sequence, how many are lost if some are."""
ABSENT: Final = -128
"""The int8 value of a missing cell, and of padding."""


@frozen(eq=False)
class Task:
    """arrays: without the new cells, the pool in its dtype. new: K and V by the names of NEW_CELLS,
    and the destinations of their cells, if they are given.

    pool: the expected pool. places: page and offset of each new cell.
    """

    arrays: Arrays
    new: Mapping[str, Numbers]
    pool: Numbers
    places: frozenset[tuple[int, int]]


def apart(sizes: Sizes, batch: Batch) -> Batch:
    """The batch without page sharing, where a new cell would lie in a shared page."""
    held = batch.shared or batch.repeated
    table = integers(sizes, batch).page_indices if held else None
    if table is None:
        return batch
    named = [
        (int(table[row, at // sizes.page_size]), at % sizes.page_size)
        for row, (_, cells) in enumerate(batch.lens)
        for at in range(cells)
    ]
    several = {place for place, count in Counter(named).items() if count > 1}
    new = {place for _, place in _new(sizes, batch, table)}
    return evolve(batch, shared=(), repeated=()) if new & several else batch


def _new(sizes: Sizes, batch: Batch, table: Ints) -> Iterator[tuple[int, tuple[int, int]]]:
    """The token of each new cell, and its page and offset."""
    token = 0
    for row, (queries, cells) in enumerate(batch.lens):
        first = cells - queries
        for position in range(first, first + rows_of(sizes, batch, row)):
            page, offset = divmod(position, sizes.page_size)
            yield token, (int(table[row, page]), offset)
            token += 1


def task(sizes: Sizes, batch: Batch, arrays: Arrays, *, destinations: bool = False) -> Task:
    """The task of a batch from `apart`, and its arrays. destinations: whether they are given."""
    draws = np.random.default_rng((batch.seed, 2))
    kind = np.dtype(getattr(ml_dtypes, sizes.kinds[1], sizes.kinds[1]))
    pool = arrays.kv_pages.astype(kind)
    nothing = ABSENT if kind == np.int8 else np.nan
    absent = 0.0 if batch.plain else nothing
    cells = np.full((sizes.tokens, *pool.shape[2:]), absent).astype(kind)
    new = dict(_new(sizes, batch, arrays.page_indices))
    for token, place in new.items():
        cells[token], pool[place] = pool[place], absent
    given = _marked(pool, draws)
    pool = given.copy()
    written = _written(sizes, batch, arrays.page_indices)
    for token, place in written.items():
        pool[place] = cells[token]
    operands: dict[str, Numbers] = dict(
        zip(NEW_CELLS, (cells[:, 0::2], cells[:, 1::2]), strict=True)
    )
    if destinations:
        operands[DESTINATIONS] = _destinations(sizes, written)
    lens, table = _without_cells(sizes, batch, arrays.kv_lens, arrays.page_indices)
    arrays = evolve(arrays, kv_pages=given, kv_lens=lens, page_indices=table)
    return Task(arrays, operands, pool, frozenset(written.values()))


def steered(
    sizes: Sizes, batch: Batch, *, destinations: bool = False
) -> tuple[Integers, Ints | None]:
    """What steers a kernel in the task of this batch, and the destinations if they are given."""
    plain = integers(sizes, batch)
    written = _written(sizes, batch, plain.page_indices)
    lens, table = _without_cells(sizes, batch, plain.kv_lens, plain.page_indices)
    found = evolve(plain, kv_lens=lens, page_indices=table)
    return found, _destinations(sizes, written) if destinations else None


def _written(sizes: Sizes, batch: Batch, table: Ints) -> dict[int, tuple[int, int]]:
    """Page and offset of each token that has a cell."""
    lost = {*range(sizes.tokens)[batch.undefined]}
    if batch.lost is not None and batch.lost[1] is Lost.SOME:
        draws = Random(batch.seed)
        lost = {token for token in lost if draws.random() < SHARE}
    return {token: place for token, place in _new(sizes, batch, table) if token not in lost}


def _destinations(sizes: Sizes, written: Mapping[int, tuple[int, int]]) -> Ints:
    """The number of the cell of each token; that of no cell where it has none."""
    cells = sizes.pages * sizes.page_size
    found = np.resize(np.array([-1, -cells, cells, INVALID], np.int32), sizes.tokens)
    for token, (page, offset) in written.items():
        found[token] = page * sizes.page_size + offset
    return found


def _without_cells(
    sizes: Sizes, batch: Batch, kv_lens: Ints, page_indices: Ints
) -> tuple[Ints, Ints]:
    """The lengths and the table in which the tokens of the lost sequence have no cell."""
    if batch.lost is None:
        return kv_lens, page_indices
    row, why = batch.lost
    queries, cells = batch.lens[row]
    lens, table = kv_lens.copy(), page_indices.copy()
    match why:
        case Lost.SOME:  # their destinations say so
            pass
        case Lost.BEFORE:
            lens[row] = 0
        case Lost.PAST:
            lens[row] = sizes.capacity + queries
        case Lost.OUTSIDE:
            # In 32 bits the number of such a cell is that of a cell of page 0.
            far = FAR if sizes.page_size == 1 else -(-(1 << 32) // sizes.page_size)
            table[row, (cells - queries) // sizes.page_size :] = (far, -far)[batch.seed % 2]
    return lens, table


def _marked(cells: Numbers, draws: np.random.Generator) -> Numbers:
    """The array with other bits in every NaN."""
    if cells.dtype == np.int8:
        return cells
    size = cells.dtype.itemsize
    bits = cells.view(WORDS[size])
    noise = draws.integers(0, 1 << 8 * size, cells.shape, bits.dtype)
    marked = np.where(np.isnan(cells), bits | noise & WORDS[size](FREE[size]), bits)
    return marked.view(cells.dtype)


def wrong(task: Task, pool: Numbers) -> list[str]:
    """The errors in the returned pool: in new cells, or in others."""
    word = WORDS[pool.dtype.itemsize]
    other = (pool.view(word) != task.pool.view(word)).any(axis=(2, 3))
    found = {(int(page), int(offset)) for page, offset in np.argwhere(other)}
    said = {"not_appended": found & task.places, "overwritten": found - task.places}
    return [name for name, cells in said.items() if cells]
