"""The pool of pages, the rows of the page table, and the reference counts.

The count of a page is the number of rows that name it. This module is the only one that changes
counts, and the only one that says which pages are free.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int32

from impl.cache.paged import copy_page
from impl.models.protocol import Cache
from impl.setup import Setup
from impl.status import target
from spec.vocabulary import INVALID, Geometry


class Pages(NamedTuple):
    """cache: one pool per layer. counts: reference counts. rows: INVALID where there is no page."""

    cache: Cache
    counts: Int32[Array, " P"]
    rows: Int32[Array, "S M"]


def make(setup: Setup, cache: Cache) -> Pages:
    """Every page free and every row empty, around a given pool."""
    geometry = setup.geometry
    sizes = (geometry.pages, geometry.page_size)
    assert all(pool.shape[:2] == sizes for pool in cache), "a pool has the geometry's pages"
    return Pages(
        cache=cache,
        counts=jnp.zeros((geometry.pages,), jnp.int32),
        rows=jnp.full((geometry.slots, geometry.pages_per_seq), INVALID, jnp.int32),
    )


def is_free(counts: Int32[Array, " P"]) -> Bool[Array, " P"]:
    """Which pages may be allocated."""
    return counts == 0


def number_free(counts: Int32[Array, " P"]) -> Int32[Array, ""]:
    """The number of pages that may be allocated."""
    return jnp.sum(is_free(counts), dtype=jnp.int32)


def lowest_free(counts: Int32[Array, " P"], size: int) -> Int32[Array, " {size}"]:
    """The `size` lowest free pages; where fewer are free, ids past the pool fill the array."""
    assert 0 < size <= counts.shape[0], "the pool has this many pages"
    (free,) = jnp.nonzero(is_free(counts), size=size, fill_value=counts.shape[0])
    return free.astype(jnp.int32)


def grow(
    pages: Pages,
    slots: Int32[Array, " T"],
    entries: Int32[Array, " T"],
    given: Int32[Array, " T"],
    goes: Bool[Array, " T"],
    geometry: Geometry,
) -> Pages:
    """Enter the pages `given` at `entries` of the rows of `slots`, where `goes`."""
    at = target(goes, slots, geometry.slots)
    return pages._replace(
        counts=pages.counts.at[target(goes, given, geometry.pages)].add(1, mode="drop"),
        rows=pages.rows.at[at, entries].set(given, mode="drop"),
    )


def fork(
    pages: Pages,
    parents: Int32[Array, " N"],
    children: Int32[Array, " N"],
    full: Int32[Array, " N"],
    fresh: Int32[Array, " N"],
    geometry: Geometry,
) -> Pages:
    """Give N children the pages of their parents; a child past the table is dropped.

    The first `full` pages are shared; the next is copied to `fresh`, which is past the pool if no
    page is copied.
    """
    there = children < geometry.slots
    entry = jnp.arange(geometry.pages_per_seq)
    shared = jnp.where(entry < full[:, None], pages.rows[parents], INVALID)
    last = jnp.where(entry == full[:, None], fresh[:, None], INVALID)
    row = jnp.where(last < geometry.pages, last, shared)
    held = target(there[:, None], row, geometry.pages)
    source = pages.rows.at[parents, full].get(mode="fill", fill_value=INVALID)
    copied = target(there & (fresh < geometry.pages), fresh, geometry.pages)
    return pages._replace(
        cache=tuple(copy_page(pool, source, copied) for pool in pages.cache),
        counts=pages.counts.at[held].add(1, mode="drop"),
        rows=pages.rows.at[children].set(row, mode="drop"),
    )


def cut(pages: Pages, slot: Int32[Array, ""], kept: Int32[Array, ""], geometry: Geometry) -> Pages:
    """Empty the entries of a row from `kept` on; a slot past the table is dropped.

    No K or V byte is touched.
    """
    row = pages.rows.at[slot].get(mode="fill", fill_value=INVALID)
    gone = (jnp.arange(geometry.pages_per_seq) >= kept) & (row != INVALID)
    return pages._replace(
        counts=pages.counts.at[target(gone, row, geometry.pages)].add(-1, mode="drop"),
        rows=pages.rows.at[slot].set(jnp.where(gone, INVALID, row), mode="drop"),
    )


def release(pages: Pages, slots: Int32[Array, " N"], geometry: Geometry) -> Pages:
    """Empty the rows of N slots; INVALID, or a slot past the table, is dropped.

    No K or V byte is touched. Counts are not clamped: one below zero is a bug that must be seen.
    """
    rows = pages.rows.at[slots].get(mode="fill", fill_value=INVALID)
    named = target(rows != INVALID, rows, geometry.pages)
    at = target(slots != INVALID, slots, geometry.slots)
    return pages._replace(
        counts=pages.counts.at[named].add(-1, mode="drop"),
        rows=pages.rows.at[at].set(INVALID, mode="drop"),
    )
