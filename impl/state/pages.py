"""The pool of pages, the rows of the page table, and the reference counts.

The count of a page is the number of rows that name it. This module is the only one that changes
counts, and the only one that says which pages are free: those that neither a row nor a step in
flight names.
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
from spec.vocabulary.rules import INT32_MAX


class Pages(NamedTuple):
    """cache: one pool per layer. counts: reference counts. rows: INVALID where there is no page.

    With a window a row begins with the entries of its released pages, which are INVALID.

    released: the time at which a row last let go of a page. clock: how often a row has let go of
    pages, which wraps around. `released - clock` tells which of two pages has waited longer, unless
    one waits while rows let go 2^31 times.

    held: how many steps in flight name each page.
    """

    cache: Cache
    counts: Int32[Array, " P"]
    rows: Int32[Array, "S M"]
    released: Int32[Array, " P"]
    clock: Int32[Array, ""]
    held: Int32[Array, " P"]


def make(setup: Setup, cache: Cache) -> Pages:
    """Every page free and every row empty, around a given pool."""
    geometry = setup.geometry
    sizes = (geometry.pages, geometry.page_size)
    assert all(pool.shape[:2] == sizes for pool in cache), "a pool has the geometry's pages"
    return Pages(
        cache=cache,
        counts=jnp.zeros((geometry.pages,), jnp.int32),
        rows=jnp.full((geometry.slots, geometry.pages_per_seq), INVALID, jnp.int32),
        released=jnp.zeros((geometry.pages,), jnp.int32),
        clock=jnp.zeros((), jnp.int32),
        held=jnp.zeros((geometry.pages,), jnp.int32),
    )


def in_use(pages: Pages) -> Int32[Array, " P"]:
    """The counts, where each step in flight that names a page counts as a row that names it."""
    return pages.counts + pages.held


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


def replace(
    pages: Pages, slot: Int32[Array, ""], row: Int32[Array, " M"], geometry: Geometry
) -> Pages:
    """Give a slot another row; a slot past the table is dropped. No K or V byte is touched."""
    old = pages.rows.at[slot].get(mode="fill", fill_value=INVALID)
    changed = (slot < geometry.slots) & (row != old)
    pages = pages._replace(
        counts=pages.counts.at[target(changed, row, geometry.pages)].add(1, mode="drop"),
        rows=pages.rows.at[slot].set(row, mode="drop"),
    )
    return _let_go(pages, jnp.where(changed, old, INVALID)[None], geometry)


def cut(pages: Pages, slot: Int32[Array, ""], kept: Int32[Array, ""], geometry: Geometry) -> Pages:
    """Empty the entries of a row from `kept` on; a slot past the table is dropped.

    No K or V byte is touched.
    """
    return cut_rows(pages, slot[None], kept[None], geometry)


def cut_rows(
    pages: Pages, slots: Int32[Array, " N"], kept: Int32[Array, " N"], geometry: Geometry
) -> Pages:
    """Empty the entries of N rows from `kept` on; a slot past the table is dropped.

    No K or V byte is touched.
    """
    return _emptied(pages, slots, jnp.arange(geometry.pages_per_seq) >= kept[:, None], geometry)


def slide(
    pages: Pages, slot: Int32[Array, ""], first: Int32[Array, ""], geometry: Geometry
) -> Pages:
    """Empty the entries of a row before `first`; a slot past the table is dropped.

    No K or V byte is touched.
    """
    before = jnp.arange(geometry.pages_per_seq) < first
    return _emptied(pages, slot[None], before[None], geometry)


def is_released(
    row: Int32[Array, " M"], entry: Int32[Array, ""], geometry: Geometry
) -> Bool[Array, ""]:
    """Whether the page of an entry, whose cells were committed, is released."""
    if geometry.window is None:
        return jnp.zeros((), jnp.bool_)
    return row.at[entry].get(mode="fill", fill_value=0) == INVALID


def _emptied(
    pages: Pages, slots: Int32[Array, " N"], empties: Bool[Array, "N M"], geometry: Geometry
) -> Pages:
    rows = pages.rows.at[slots].get(mode="fill", fill_value=INVALID)
    gone = empties & (rows != INVALID)
    kept = pages.rows.at[slots].set(jnp.where(gone, INVALID, rows), mode="drop")
    return _let_go(pages._replace(rows=kept), jnp.where(gone, rows, INVALID), geometry)


def release(pages: Pages, slots: Int32[Array, " N"], geometry: Geometry) -> Pages:
    """Empty the rows of N slots, one after another; INVALID, or a slot past the table, is dropped.

    No K or V byte is touched.
    """
    rows = pages.rows.at[slots].get(mode="fill", fill_value=INVALID)
    at = target(slots != INVALID, slots, geometry.slots)
    pages = pages._replace(rows=pages.rows.at[at].set(INVALID, mode="drop"))
    return _let_go(pages, rows, geometry)


def hold(pages: Pages, rows: Int32[Array, "S M"], geometry: Geometry) -> Pages:
    """Let one more step in flight name the pages of S rows; INVALID is no page."""
    return _held_by(pages, rows, 1, geometry)


def unhold(pages: Pages, rows: Int32[Array, "S M"], geometry: Geometry) -> Pages:
    """Let one step in flight less name the pages of S rows; INVALID is no page."""
    return _held_by(pages, rows, -1, geometry)


def _held_by(pages: Pages, rows: Int32[Array, "S M"], more: int, geometry: Geometry) -> Pages:
    """Change once the number of each page that some of S rows name.

    Rows that share a page all set the same number.
    """
    at = target(rows != INVALID, rows, geometry.pages)
    held = pages.held.at[at].get(mode="fill", fill_value=0) + more
    return pages._replace(held=pages.held.at[at].set(held, mode="drop"))


def _let_go(pages: Pages, gone: Int32[Array, "N M"], geometry: Geometry) -> Pages:
    """Lower the counts of the pages that N rows name no more, and note the time of each row.

    INVALID is no page. Counts are not clamped: one below zero is a bug that must be seen.
    """
    there = gone != INVALID
    named = target(there, gone, geometry.pages)
    turns = jnp.cumsum(jnp.any(there, axis=1), dtype=jnp.int32)
    at_end = pages.clock > INT32_MAX - turns[-1]
    clock = jnp.where(at_end, ~INT32_MAX, pages.clock)  # no time of one call is before another
    times = jnp.broadcast_to((clock + turns)[:, None], gone.shape)
    begun = pages.released.at[named].set(clock, mode="drop")
    return pages._replace(
        counts=pages.counts.at[named].add(-1, mode="drop"),
        released=begun.at[named].max(times, mode="drop"),
        clock=clock + turns[-1],
    )
