"""Execution of a plan: changes of a whole state, delegated to its components.

Only the functions of this module change which pages a slot has. A refused plan changes nothing,
because its indices are then out of range. Source: docs/sources.md, "Plan, then commit".
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int32

from impl.plan import Batch, Grant
from impl.setup import Setup
from impl.state import Params, State, flights, index, pages, queue, slots
from impl.status import target
from spec.vocabulary import INVALID, Geometry


def commit_pages(
    state: State, batch: Batch, grant: Grant, ok: Bool[Array, ""], geometry: Geometry
) -> State:
    """Enter the granted pages in counts and rows, and advance the lengths.

    Idle pages among them leave the index.
    """
    goes, entries = ok & grant.begins, batch.positions // geometry.page_size
    at = target(ok, batch.slot_ids, geometry.slots)
    allocated = state.slots.allocated.at[at].add(batch.q_lens, mode="drop")
    return state._replace(
        pages=pages.grow(state.pages, batch.slots, entries, grant.pages, goes, geometry),
        indexed=index.without(state.indexed, grant.pages, goes),
        slots=state.slots._replace(allocated=allocated),
    )


def commit_cells(state: State, slot: Int32[Array, ""], length: Int32[Array, ""]) -> State:
    """Make the cells of a slot below `length` final, and proposed tokens there known."""
    held = state.slots
    accepted = jnp.clip(length - held.known[slot], 0, held.proposed[slot])
    lengths = {"known": held.known[slot] + accepted, "proposed": held.proposed[slot] - accepted}
    return state._replace(slots=slots.put(held, slot, committed=length, **lengths))


def cut_cells(
    state: State, slot: Int32[Array, ""], length: Int32[Array, ""], geometry: Geometry
) -> State:
    """Cut a slot off at `length`: its cells, pages, proposed tokens and queue entries."""
    held = state.slots
    proposed = jnp.clip(length - held.known[slot], 0, held.proposed[slot])
    lengths = {"written": jnp.minimum(held.written[slot], length), "allocated": length}
    kept = (length + geometry.page_size - 1) // geometry.page_size
    return state._replace(
        pages=pages.cut(state.pages, slot, kept, geometry),
        slots=slots.put(held, slot, proposed=proposed, **lengths),
        queue=queue.truncate(state.queue, slot, held.known[slot] + proposed),
    )


def end_cells(state: State, at: Int32[Array, " N"], geometry: Geometry) -> State:
    """Cut N slots, whose sequences have ended, off at their committed cells.

    Steps in flight then only hold them. INVALID, or a slot past the table, is dropped.
    """
    length = state.slots.committed.at[at].get(mode="fill", fill_value=0)
    kept = (length + geometry.page_size - 1) // geometry.page_size
    return state._replace(
        pages=pages.cut_rows(state.pages, at, kept, geometry),
        slots=slots.put(state.slots, at, proposed=0, written=length, allocated=length),
        flights=flights.abandon(state.flights, at),
    )


def slide(
    state: State, slot: Int32[Array, ""], before: Int32[Array, ""], geometry: Geometry
) -> State:
    """Release the whole pages of a slot that lie before a position."""
    first = before // geometry.page_size
    return state._replace(pages=pages.slide(state.pages, slot, first, geometry))


def begin_with(
    state: State,
    slot: Int32[Array, ""],
    row: Int32[Array, " M"],
    length: Int32[Array, ""],
    geometry: Geometry,
) -> State:
    """Give a slot without cells a row of written pages, with `length` committed cells."""
    lengths = dict.fromkeys(("allocated", "written", "committed"), length)
    return state._replace(
        pages=pages.replace(state.pages, slot, row, geometry),
        slots=slots.put(state.slots, slot, **lengths),
    )


def merge(
    state: State,
    slot: Int32[Array, ""],
    entry: Int32[Array, ""],
    page: Int32[Array, ""],
    geometry: Geometry,
) -> State:
    """Let a row entry name another page."""
    row = state.pages.rows.at[slot].get(mode="fill", fill_value=INVALID).at[entry].set(page)
    return state._replace(pages=pages.replace(state.pages, slot, row, geometry))


def drop_index(state: State, setup: Setup) -> State:
    """Forget the index; the slots that have written cells are stale from now on.

    So are those that a step in flight will write.
    """
    held = state.slots
    stale = held.stale | held.used & (held.written > 0) | (flights.steps_of(state.flights) > 0)
    left = index.forgotten(state.indexed, setup)
    return state._replace(indexed=left, slots=held._replace(stale=stale))


def begin(
    state: State,
    at: Int32[Array, " N"],
    choices: Int32[Array, " N"],
    prompt_lens: Int32[Array, " N"],
    params: Params,
) -> State:
    """Set prompt lengths and params of N slots; a slot id past the table is dropped."""
    return state._replace(slots=slots.begin(state.slots, at, choices, prompt_lens, params))


def fork(
    state: State,
    parents: Int32[Array, " N"],
    children: Int32[Array, " N"],
    choices: Int32[Array, " N"],
    fresh: Int32[Array, " N"],
    setup: Setup,
) -> State:
    """Make N children of N parents; a child past the table is dropped.

    Full pages are shared; a partial last page is copied to `fresh`, past the pool if there is none.
    Queued tokens of a parent are not copied.
    """
    full = state.slots.written[parents] // setup.geometry.page_size
    return state._replace(
        pages=pages.fork(state.pages, parents, children, full, fresh, setup.geometry),
        indexed=index.without(state.indexed, fresh, children < setup.geometry.slots),
        slots=slots.fork(state.slots, parents, children, choices),
    )


def release(state: State, at: Int32[Array, " N"], geometry: Geometry) -> State:
    """Free N slots; INVALID or a slot past the table is dropped. No K or V byte is touched.

    Their queued tokens stay: see `impl.state.queue.purge`. Steps in flight still hold them.
    """
    return state._replace(
        pages=pages.release(state.pages, at, geometry),
        slots=slots.release(state.slots, at),
        flights=flights.abandon(state.flights, at),
    )
