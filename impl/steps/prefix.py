"""Steps on the index: publish pages, begin with pages of it or of a slot, merge, evict, drop.

Source: docs/sources.md, "Prefix cache".
"""

from itertools import chain

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int32

from impl import commit
from impl.models.protocol import Weights
from impl.plan import require_prompt, require_used
from impl.setup import Setup
from impl.state import State, index, queue, slots
from impl.state.pages import is_released
from impl.status import Guard, accepted, first_refusal, target
from impl.steps.answer import Answer, done, nothing
from spec.vocabulary import INVALID, Geometry, Reason


def hit(
    setup: Setup,
    weights: Weights,
    state: State,
    slot: Int32[Array, ""],
    length: Int32[Array, ""],
) -> Answer:
    """Begin a slot with the pages of the index that hold its first `length` tokens."""
    geometry, held = setup.geometry, state.slots
    size = geometry.page_size
    found = _found(state, slot, length // size)
    cells = size * jnp.sum(found != INVALID, dtype=jnp.int32)
    there = ((length == 0) | (length != cells), Reason.NOT_INDEXED, length, cells)
    status = first_refusal(
        *require_used(held, slot, geometry),
        *_require_beginning(state, slot, length, there, geometry),
    )
    at = target(accepted(status), slot, geometry.slots)
    begun = commit.begin_with(state, at, found, length, geometry)
    counted = index.with_hits(state.indexed, jnp.where(accepted(status), length // size, 0))
    return begun._replace(indexed=counted), status, nothing()


def share(
    setup: Setup,
    weights: Weights,
    state: State,
    parent: Int32[Array, ""],
    slot: Int32[Array, ""],
    length: Int32[Array, ""],
) -> Answer:
    """Begin a slot with the pages of a parent that hold its first `length` tokens."""
    geometry, held = setup.geometry, state.slots
    size = geometry.page_size
    row = state.pages.rows[parent]
    some = ~is_released(row, jnp.int32(0), geometry)  # pages are released from the first one on
    cells = jnp.where(some, size * (_common(state, parent, slot) // size), 0)
    whole = (length > 0) & (length % size == 0)
    both = (require_used(held, one, geometry) for one in (parent, slot))
    there = (~whole | (length > cells), Reason.NOT_COMMON, length, cells)
    status = first_refusal(
        *chain(*zip(*both, strict=True)),  # both are in range before either must be in use
        *_require_beginning(state, slot, length, there, geometry),
    )
    at = target(accepted(status), slot, geometry.slots)
    pages = jnp.where(jnp.arange(row.shape[0]) < length // size, row, INVALID)
    begun = commit.begin_with(state, at, pages, length, geometry)
    stale = slots.put(begun.slots, at, stale=held.stale[parent])
    return begun._replace(slots=stale), status, nothing()


def publish(
    setup: Setup,
    weights: Weights,
    state: State,
    slot: Int32[Array, ""],
    length: Int32[Array, ""],
) -> Answer:
    """Enter the whole pages of a slot below `length` in the index.

    Released pages are skipped: what follows one enters only if another page has its key there.
    """
    held = state.slots
    committed = held.committed[slot]
    status = first_refusal(
        *require_used(held, slot, setup.geometry),
        _require_fresh(state, slot),
        (length > committed, Reason.UNCOMMITTED, length, committed),
    )
    count = jnp.where(accepted(status), length // setup.geometry.page_size, 0)
    count = _before_hole(setup.geometry, state, slot, count)
    row, tokens = state.pages.rows[slot], held.tokens[slot]
    entered = index.enter(state.indexed, held.contexts[slot], tokens, row, count)
    return state._replace(indexed=entered), status, nothing()


def merge(
    setup: Setup,
    weights: Weights,
    state: State,
    slot: Int32[Array, ""],
    entry: Int32[Array, ""],
) -> Answer:
    """Move a row entry of a slot to the page of the index with the same key."""
    geometry, held = setup.geometry, state.slots
    pages = held.committed[slot] // geometry.page_size
    inside = jnp.minimum(entry, geometry.pages_per_seq - 1)
    page = _found(state, slot, inside + 1)[inside]
    row = state.pages.rows[slot]
    named, gone = row[inside], is_released(row, inside, geometry)
    status = first_refusal(
        *require_used(held, slot, geometry),
        _require_fresh(state, slot),
        (entry >= pages, Reason.UNCOMMITTED, entry, pages - 1),
        (gone | (page == INVALID) | (page == named), Reason.NOT_INDEXED, entry, named),
    )
    at = target(accepted(status), slot, geometry.slots)
    return commit.merge(state, at, inside, page, geometry), status, nothing()


def evict(
    setup: Setup,
    weights: Weights,
    state: State,
    tokens: Int32[Array, " L"],
    length: Int32[Array, ""],
    context: Int32[Array, ""],
) -> Answer:
    """Remove the idle page with a key, its tokens padded, and all that extend it."""
    geometry = setup.geometry
    whole = (length <= geometry.max_len) & (length % geometry.page_size == 0)
    count = jnp.where(whole, length // geometry.page_size, 0)
    page = index.find(state.indexed, context, tokens, count)[jnp.maximum(count - 1, 0)]
    named = state.pages.counts[page]
    status = first_refusal(
        (page == INVALID, Reason.NOT_INDEXED, length, 0),
        (named > 0, Reason.NOT_IDLE, named, 0),
    )
    left = index.without(state.indexed, page[None], accepted(status)[None])
    return state._replace(indexed=left), status, nothing()


def drop(setup: Setup, weights: Weights, state: State) -> Answer:
    """Forget the whole index. What was written before is never published or merged."""
    return commit.drop_index(state, setup), done(), nothing()


def _found(state: State, slot: Int32[Array, ""], pages: Int32[Array, ""]) -> Int32[Array, " M"]:
    """The pages of the index with the first keys of a slot, so many at most."""
    held, most = state.slots, state.pages.rows.shape[1]
    known = held.known[slot] // state.indexed.tokens.shape[1]
    count = jnp.minimum(jnp.minimum(pages, known), most)
    return index.find(state.indexed, held.contexts[slot], held.tokens[slot], count)


def _before_hole(
    geometry: Geometry, state: State, slot: Int32[Array, ""], count: Int32[Array, ""]
) -> Int32[Array, ""]:
    """How many of the first `count` pages of a slot can enter the index.

    The first released one whose key the index lacks ends them: what follows would enter without the
    page before it. Without a window there is none.
    """
    if geometry.window is None:
        return count
    known = jnp.sum(_found(state, slot, count) != INVALID, dtype=jnp.int32)
    ends = is_released(state.pages.rows[slot], known, geometry)
    return jnp.where(ends, jnp.minimum(known, count), count)


def _common(state: State, parent: Int32[Array, ""], slot: Int32[Array, ""]) -> Int32[Array, ""]:
    """The committed cells of a parent whose tokens and context a slot has too."""
    held = state.slots
    same = (held.tokens[parent] == held.tokens[slot]) & (
        held.contexts[parent] == held.contexts[slot]
    )
    known = jnp.minimum(held.committed[parent], held.known[slot])
    begins = jnp.cumprod(same & (jnp.arange(same.shape[0]) < known), dtype=jnp.int32)
    return jnp.sum(begins, dtype=jnp.int32)


def _require_beginning(
    state: State,
    slot: Int32[Array, ""],
    length: Int32[Array, ""],
    there: Guard,
    geometry: Geometry,
) -> tuple[Guard, ...]:
    """The slot, in use, can begin with so many cells. there: of the pages that have them."""
    held = state.slots
    waits = queue.pending(state.queue, slot) & (state.queue.positions < length)
    return (
        *require_prompt(held, slot, geometry),
        (held.allocated[slot] > 0, Reason.SLOT_BEGUN, held.allocated[slot], 0),
        (length >= held.known[slot], Reason.TOO_LONG, length, held.known[slot] - 1),
        there,
        (jnp.any(waits), Reason.BATCH_QUEUED, jnp.sum(waits), 0),
    )


def _require_fresh(state: State, slot: Int32[Array, ""]) -> Guard:
    """The slot has no cells from before the index was dropped."""
    return state.slots.stale[slot], Reason.STALE, slot, 0
