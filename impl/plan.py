"""The batch planner, from metadata alone: the sequences of a batch, their order, and its refusals.

Nothing here changes a state. Tokens may come in any order, from any slots, with padding anywhere;
sorting them once by slot and position gives every later step a contiguous segment per sequence.
Pages are given lowest first, slots ascending. Each `require_*` returns one or more guards, which
refuse unless the condition that it names holds. Source: docs/sources.md, "Batch plan" and
"Batches".
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Int32

from impl.models.protocol import BatchPlan
from impl.state import Slots, State, flights, index
from impl.state.outputs import waiting
from impl.state.pages import in_use, lowest_free
from impl.status import Guard
from spec.vocabulary import INVALID, Geometry, Reason


class Batch(NamedTuple):
    """T tokens in plan order: by slot, then position, padding last; B sequences.

    order: index in the caller's batch. slots, positions: INVALID and 0 for padding. ranks: index
    of each token among those of its sequence.
    """

    order: Int32[Array, " T"]
    slots: Int32[Array, " T"]
    positions: Int32[Array, " T"]
    valid: Bool[Array, " T"]
    ranks: Int32[Array, " T"]
    slot_ids: Int32[Array, " B"]
    q_lens: Int32[Array, " B"]
    num_seqs: Int32[Array, ""]


class Grant(NamedTuple):
    """The tokens that begin a page, and the page of each, past the pool where there is none.

    wanted: how many pages the batch needs. found: how many of them there are, or more.
    """

    begins: Bool[Array, " T"]
    pages: Int32[Array, " T"]
    wanted: Int32[Array, ""]
    found: Int32[Array, ""]


def sort_batch(slots: Int32[Array, " T"], positions: Int32[Array, " T"], *, seqs: int) -> Batch:
    """Sort a batch of slots (INVALID is padding) and positions; at most `seqs` sequences."""
    width = slots.shape[0]
    assert 0 < seqs <= width, "a batch has no more sequences than tokens"
    index = jnp.arange(width, dtype=jnp.int32)
    slots, positions, order = lax.sort((slots, positions, index), num_keys=2, is_stable=True)
    valid = slots != INVALID
    begins = valid & (slots != jnp.concatenate([jnp.full((1,), INVALID), slots[:-1]]))
    seq_of = jnp.cumsum(begins, dtype=jnp.int32) - 1
    start = lax.cummax(jnp.where(begins, index, 0))
    seq_target = jnp.where(begins, seq_of, seqs)
    slot_ids = jnp.full((seqs,), INVALID, jnp.int32).at[seq_target].set(slots, mode="drop")
    counted = jnp.where(valid, seq_of, seqs)
    return Batch(
        order=order,
        slots=slots,
        positions=jnp.where(valid, positions, 0),
        valid=valid,
        ranks=index - start,
        slot_ids=slot_ids,
        q_lens=jnp.zeros((seqs,), jnp.int32).at[counted].add(1, mode="drop"),
        num_seqs=jnp.sum(begins, dtype=jnp.int32),
    )


def next_pages(state: State, wanted: Int32[Array, ""], size: int) -> Int32[Array, " {size}"]:
    """At least the `wanted` pages that are taken next, if there are so many; ids past the pool
    fill the array.

    First the lowest free ones that are not in the index, which one linear pass finds; then idle
    ones, each of which costs another. None that a step in flight names is taken.
    """
    named = jnp.maximum(in_use(state.pages), state.indexed.holds)
    return index.with_idle(state.indexed, state.pages, lowest_free(named, size), wanted)


def plan_pages(state: State, batch: Batch, geometry: Geometry) -> Grant:
    """Choose a page for each token that begins one, see `next_pages`."""
    assert state.pages.counts.shape == (geometry.pages,), "the counts are of this geometry"
    begins = batch.valid & (batch.positions % geometry.page_size == 0)
    width = batch.slots.shape[0]
    most = min(geometry.pages, width // geometry.page_size + batch.slot_ids.shape[0])
    wanted = jnp.sum(begins, dtype=jnp.int32)
    free = next_pages(state, wanted, most)
    place = jnp.cumsum(begins, dtype=jnp.int32) - 1
    pages = free.at[place].get(mode="fill", fill_value=geometry.pages)
    return Grant(begins, pages, wanted, jnp.sum(free < geometry.pages, dtype=jnp.int32))


def fork_pages(
    state: State, parents: Int32[Array, " N"], wants: Bool[Array, " N"], geometry: Geometry
) -> Int32[Array, " N"]:
    """A fresh page for each of N children whose parent ends in a partial page.

    wants: which children need one. The id is past the pool where none is needed or none is left.
    """
    wanted = jnp.sum(wants, dtype=jnp.int32)
    free = next_pages(state, wanted, min(parents.shape[0], geometry.pages))
    place = jnp.cumsum(wants, dtype=jnp.int32) - 1
    fresh = free.at[place].get(mode="fill", fill_value=geometry.pages)
    return jnp.where(wants, fresh, geometry.pages)


def batch_plan(state: State, batch: Batch, ok: Bool[Array, ""], geometry: Geometry) -> BatchPlan:
    """The plan for the model, from rows that cover the batch; a refused one has no destinations."""
    rows = state.pages.rows
    assert rows.shape == (geometry.slots, geometry.pages_per_seq), "the rows are of this geometry"
    last = jnp.cumsum(batch.q_lens) - 1
    present = batch.slot_ids != INVALID
    pages = rows.at[batch.slots, batch.positions // geometry.page_size].get(
        mode="fill", fill_value=INVALID
    )
    goes = ok & batch.valid & (pages != INVALID)
    destinations = pages * geometry.page_size + batch.positions % geometry.page_size
    return BatchPlan(
        slot_ids=batch.slot_ids,
        page_indices=rows.at[batch.slot_ids].get(mode="fill", fill_value=INVALID),
        kv_lens=jnp.where(present, batch.positions[last] + 1, 0),
        cu_q_lens=jnp.concatenate([jnp.zeros((1,), jnp.int32), last + 1]),
        num_seqs=batch.num_seqs,
        order=batch.order,
        destinations=jnp.where(goes, destinations, INVALID),
    )


def in_range(slot: Int32[Array, ""], geometry: Geometry) -> Bool[Array, ""]:
    """Whether this is a slot id."""
    return (slot >= 0) & (slot < geometry.slots)


def require_used(slots: Slots, slot: Int32[Array, ""], geometry: Geometry) -> tuple[Guard, ...]:
    """The slot is in range and in use."""
    inside = in_range(slot, geometry)
    return (
        (~inside, Reason.SLOT_RANGE, slot, geometry.slots - 1),
        (inside & ~slots.used[slot], Reason.SLOT_UNUSED, slot, geometry.slots - 1),
    )


def require_unused(slots: Slots, slot: Int32[Array, ""], geometry: Geometry) -> tuple[Guard, ...]:
    """The slot is in range and unused. INVALID means that no slot is unused."""
    inside = in_range(slot, geometry)
    return (
        (~inside & (slot != INVALID), Reason.SLOT_RANGE, slot, geometry.slots - 1),
        (slot == INVALID, Reason.NO_FREE_SLOT, 0, 1),
        (inside & slots.used[slot], Reason.SLOT_USED, slot, geometry.slots - 1),
    )


def require_prompt(slots: Slots, slot: Int32[Array, ""], geometry: Geometry) -> tuple[Guard, ...]:
    """The slot, if it is in use, has a prompt and has not finished."""
    last = geometry.slots - 1
    return (
        (slots.prompt_lens[slot] == 0, Reason.SLOT_EMPTY, slot, last),
        (slots.finished[slot] != 0, Reason.SLOT_FINISHED, slot, last),
    )


def require_no_proposal(slots: Slots, slot: Int32[Array, ""]) -> Guard:
    """The slot has no proposed tokens."""
    return (slots.proposed[slot] > 0, Reason.PROPOSED, slots.proposed[slot], 0)


def require_none_in_flight(state: State) -> Guard:
    """No step is in flight: steps are done in order."""
    return (state.flights.filled > 0, Reason.IN_FLIGHT, state.flights.filled, 0)


def require_not_in_flight(state: State, slots: Int32[Array, "*N"]) -> Guard:
    """No step in flight has positions of the sequence in a slot; INVALID is padding."""
    steps = flights.steps_of(state.flights).at[slots].get(mode="fill", fill_value=0)
    return (jnp.any(steps > 0), Reason.IN_FLIGHT, jnp.max(steps), 0)


def require_not_held(state: State, slot: Int32[Array, ""]) -> Guard:
    """No step in flight holds the slot."""
    steps = flights.held(state.flights)[slot]
    return (steps > 0, Reason.IN_FLIGHT, steps, 0)


def require_prompts(held: Slots, chunks: Int32[Array, " S"]) -> tuple[Guard, ...]:
    """Every slot with a chunk is in use, has a prompt, and has not finished."""
    last, reads = chunks.shape[0] - 1, chunks > 0
    unused, empty, finished = reads & ~held.used, held.prompt_lens == 0, held.finished != 0
    return (
        (jnp.any(unused), Reason.SLOT_UNUSED, jnp.argmax(unused), last),
        (jnp.any(reads & empty), Reason.SLOT_EMPTY, jnp.argmax(reads & empty), last),
        (jnp.any(reads & finished), Reason.SLOT_FINISHED, jnp.argmax(reads & finished), last),
    )


def require_live(slots: Slots, batch: Batch, geometry: Geometry) -> tuple[Guard, ...]:
    """Every slot of the batch is in range, in use, and not finished."""
    outside = batch.valid & ((batch.slots < 0) | (batch.slots >= geometry.slots))
    unused = batch.valid & ~slots.used[batch.slots]
    finished = batch.valid & (slots.finished[batch.slots] != 0)
    last = geometry.slots - 1
    return (
        (jnp.any(outside), Reason.SLOT_RANGE, _first(batch.slots, outside), last),
        (jnp.any(unused), Reason.SLOT_UNUSED, _first(batch.slots, unused), last),
        (jnp.any(finished), Reason.SLOT_FINISHED, _first(batch.slots, finished), last),
    )


def require_next(lengths: Int32[Array, " S"], batch: Batch) -> Guard:
    """A slot's positions are exactly the next ones after its length."""
    wanted = lengths[batch.slots] + batch.ranks
    wrong = batch.valid & (batch.positions != wanted)
    seen, allowed = _first(batch.positions, wrong), _first(wanted, wrong)
    return (jnp.any(wrong), Reason.BATCH_POSITIONS, seen, allowed)


def require_below(lengths: Int32[Array, " S"], batch: Batch, reason: Reason) -> Guard:
    """A slot's positions are below its length; otherwise the batch is refused with `reason`."""
    past = batch.valid & (batch.positions >= lengths[batch.slots])
    return jnp.any(past), reason, jnp.max(jnp.where(past, batch.positions, 0)), jnp.sum(past)


def require_length(batch: Batch, geometry: Geometry) -> Guard:
    """No position is past the end of a row."""
    longest = jnp.max(jnp.where(batch.valid, batch.positions, -1)) + 1
    return (longest > geometry.max_len, Reason.TOO_LONG, longest, geometry.max_len)


def require_pages(grant: Grant) -> Guard:
    """There are as many free pages as the batch begins."""
    return (grant.wanted > grant.found, Reason.OUT_OF_PAGES, grant.wanted, grant.found)


def require_unqueued(state: State, batch: Batch) -> Guard:
    """No token of the batch is queued, or follows a queued token of its sequence."""
    entry = jnp.arange(state.queue.slots.shape[0])
    first = (
        jnp.full_like(state.slots.known, INVALID)
        .at[jnp.where(entry < state.queue.filled, state.queue.slots, INVALID)]
        .min(state.queue.positions, mode="drop")
    )
    waits = batch.valid & (batch.positions >= first[batch.slots])
    return jnp.any(waits), Reason.BATCH_QUEUED, jnp.sum(waits), 0


def choice_taken(
    state: State, request: Int32[Array, ""], choice: Int32[Array, ""]
) -> Bool[Array, ""]:
    """Whether a (request, choice) pair is live, or its output is not taken yet."""
    slots, outputs = state.slots, state.outputs
    live = (slots.prompt_lens > 0) & (slots.requests == request) & (slots.choices == choice)
    waits = (outputs.requests == request) & (outputs.choices == choice)
    return jnp.any(live) | jnp.any(waits & waiting(outputs))


def any_choice_taken(
    state: State, requests: Int32[Array, " R"], generations: Int32[Array, " R"]
) -> Bool[Array, ""]:
    """Whether one of the first `generations` choices of R requests is taken."""

    def matches(held: Array, choices: Array, there: Array) -> Array:
        same = (held == requests[:, None]) & (choices < generations[:, None])
        return jnp.any(same & there)

    slots, outputs = state.slots, state.outputs
    return matches(slots.requests, slots.choices, slots.prompt_lens > 0) | matches(
        outputs.requests, outputs.choices, waiting(outputs)
    )


def _first(values: Int32[Array, " T"], wrong: Bool[Array, " T"]) -> Int32[Array, ""]:
    return values[jnp.argmax(wrong)]
