"""Planning a batch from metadata alone: who is in it, in what order, and what is wrong with it.

Tokens may come in any order, from any slots, with padding anywhere; sorting them once by slot and
position gives every later step a contiguous segment per sequence. Source: seed 000, section 5.2;
DESIGN, "Batches".
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from impl.models.protocol import BatchPlan
from impl.state import State
from impl.status import Guard
from spec.vocabulary import INVALID, Geometry, Reason


class Batch(NamedTuple):
    """T tokens in plan order: by slot, then position, padding last; B sequences.

    order i32[T]: index in the caller's batch. slots, positions i32[T]: INVALID and 0 for padding.
    valid bool[T]. ranks i32[T]: which token of its sequence. slot_ids i32[B], q_lens i32[B],
    num_seqs i32[].
    """

    order: Array
    slots: Array
    positions: Array
    valid: Array
    ranks: Array
    slot_ids: Array
    q_lens: Array
    num_seqs: Array


def sort_batch(slots: Array, positions: Array, *, seqs: int) -> Batch:
    """Sort a batch of i32[T] slots (INVALID is padding) and positions; at most `seqs` sequences."""
    width = slots.shape[0]
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


def slot_guards(state: State, batch: Batch, geometry: Geometry) -> tuple[Guard, ...]:
    """Every slot in range, in use, and not finished."""
    outside = batch.valid & ((batch.slots < 0) | (batch.slots >= geometry.slots))
    unused = batch.valid & ~state.used[batch.slots]
    finished = batch.valid & (state.finished[batch.slots] != 0)
    last = geometry.slots - 1
    return (
        (jnp.any(outside), Reason.SLOT_RANGE, _first(batch.slots, outside), last),
        (jnp.any(unused), Reason.SLOT_UNUSED, _first(batch.slots, unused), last),
        (jnp.any(finished), Reason.SLOT_FINISHED, _first(batch.slots, finished), last),
    )


def position_guard(lengths: Array, batch: Batch) -> Guard:
    """A slot's positions are exactly the next ones after `lengths` i32[S]."""
    wanted = lengths[batch.slots] + batch.ranks
    wrong = batch.valid & (batch.positions != wanted)
    seen, allowed = _first(batch.positions, wrong), _first(wanted, wrong)
    return (jnp.any(wrong), Reason.BATCH_POSITIONS, seen, allowed)


def length_guard(batch: Batch, geometry: Geometry) -> Guard:
    """No position is past the end of a row."""
    longest = jnp.max(jnp.where(batch.valid, batch.positions, -1)) + 1
    return (longest > geometry.max_len, Reason.TOO_LONG, longest, geometry.max_len)


def batch_plan(state: State, batch: Batch, ok: Array, geometry: Geometry) -> BatchPlan:
    """What the model consumes, from rows that cover the batch; a refused plan writes nowhere."""
    last = jnp.cumsum(batch.q_lens) - 1
    present = batch.slot_ids != INVALID
    pages = state.rows.at[batch.slots, batch.positions // geometry.page_size].get(
        mode="fill", fill_value=INVALID
    )
    goes = ok & batch.valid & (pages != INVALID)
    destinations = pages * geometry.page_size + batch.positions % geometry.page_size
    return BatchPlan(
        slot_ids=batch.slot_ids,
        page_indices=state.rows.at[batch.slot_ids].get(mode="fill", fill_value=INVALID),
        kv_lens=jnp.where(present, batch.positions[last] + 1, 0),
        cu_q_lens=jnp.concatenate([jnp.zeros((1,), jnp.int32), last + 1]),
        num_seqs=batch.num_seqs,
        order=batch.order,
        destinations=jnp.where(goes, destinations, INVALID),
    )


def _first(values: Array, wrong: Array) -> Array:
    return values[jnp.argmax(wrong)]
