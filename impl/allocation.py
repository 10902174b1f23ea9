"""Giving pages to a batch: the lowest free ones, slots ascending, or nothing at all.

One linear pass over the counts finds the free pages; everything else costs what the batch costs.
Source: seed 000, section 5.2, phases B and C.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from impl.plan import Batch
from impl.state import State
from impl.status import Guard, target
from spec.vocabulary import Geometry, Reason


class Grant(NamedTuple):
    """Which tokens begin a page, and the page each of them gets.

    begins bool[T]. pages i32[T], past the pool where there is none. wanted, found i32[].
    """

    begins: Array
    pages: Array
    wanted: Array
    found: Array


def lowest_free(counts: Array, size: int) -> Array:
    """i32[size]: the lowest free pages, filled up with an id past the pool."""
    (free,) = jnp.nonzero(counts == 0, size=size, fill_value=counts.shape[0])
    return free.astype(jnp.int32)


def plan_pages(counts: Array, batch: Batch, geometry: Geometry) -> Grant:
    """Choose a page for each token that begins one."""
    begins = batch.valid & (batch.positions % geometry.page_size == 0)
    width = batch.slots.shape[0]
    most = min(geometry.pages, width // geometry.page_size + batch.slot_ids.shape[0])
    free = lowest_free(counts, most)
    place = jnp.cumsum(begins, dtype=jnp.int32) - 1
    pages = free.at[place].get(mode="fill", fill_value=geometry.pages)
    found = jnp.sum(free < geometry.pages, dtype=jnp.int32)
    return Grant(begins, pages, jnp.sum(begins, dtype=jnp.int32), found)


def page_guard(grant: Grant) -> Guard:
    """There are as many free pages as the batch begins."""
    return (grant.wanted > grant.found, Reason.OUT_OF_PAGES, grant.wanted, grant.found)


def commit_pages(
    state: State, batch: Batch, grant: Grant, ok: ArrayLike, geometry: Geometry
) -> State:
    """Enter the granted pages in counts, rows and lengths."""
    goes = ok & grant.begins
    slots = target(goes, batch.slots, geometry.slots)
    entries = batch.positions // geometry.page_size
    grown = target(ok, batch.slot_ids, geometry.slots)
    return state._replace(
        counts=state.counts.at[target(goes, grant.pages, geometry.pages)].add(1, mode="drop"),
        rows=state.rows.at[slots, entries].set(grant.pages, mode="drop"),
        allocated=state.allocated.at[grown].add(batch.q_lens, mode="drop"),
    )
