"""Writes: computing and storing K and V of a batch whose pages are allocated."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int32, Shaped

from impl.models.protocol import BatchPlan, Weights
from impl.plan import (
    Batch,
    batch_plan,
    require_below,
    require_live,
    require_next,
    require_none_in_flight,
    require_unqueued,
    sort_batch,
)
from impl.setup import Setup
from impl.state import State
from impl.status import accepted, first_refusal, target
from impl.steps.answer import Answer, nothing
from spec.vocabulary import Reason


def write(
    setup: Setup,
    weights: Weights,
    state: State,
    slots: Int32[Array, " T"],
    positions: Int32[Array, " T"],
) -> Answer:
    """Compute and store K and V of a batch of known, allocated, unwritten tokens."""
    batch = sort_batch(slots, positions, seqs=setup.batch_seqs)
    held = state.slots
    empty = batch.valid & (held.prompt_lens[batch.slots] == 0)
    status = first_refusal(
        *require_live(held, batch, setup.geometry),
        (jnp.any(empty), Reason.SLOT_EMPTY, jnp.sum(empty), 0),
        require_next(held.written, batch),
        require_below(held.allocated, batch, Reason.BATCH_POSITIONS),
        require_below(held.known + held.proposed, batch, Reason.BATCH_UNKNOWN),
        require_unqueued(state, batch),
        require_none_in_flight(state),
    )
    _, state = forward(setup, weights, state, batch, accepted(status))
    return state, status, nothing()


def forward(
    setup: Setup, weights: Weights, state: State, batch: Batch, ok: Bool[Array, ""]
) -> tuple[Shaped[Array, "T ..."], State]:
    """Write K and V of an allocated batch and run the model on it: its rows, in plan order.

    Cells of known tokens become committed at once.
    """
    plan = batch_plan(state, batch, ok, setup.geometry)
    rows, state = compute(setup, weights, state, batch, plan, ok)
    at = target(ok, batch.slot_ids, setup.geometry.slots)
    held = state.slots
    final = jnp.minimum(held.written, held.known).at[batch.slot_ids]
    committed = held.committed.at[at].set(final.get(mode="fill", fill_value=0), mode="drop")
    return rows, state._replace(slots=held._replace(committed=committed))


def compute(
    setup: Setup,
    weights: Weights,
    state: State,
    batch: Batch,
    plan: BatchPlan,
    ok: Bool[Array, ""],
) -> tuple[Shaped[Array, "T ..."], State]:
    """As `forward`, with a plan that is given, and without a commit."""
    tokens = state.slots.tokens[batch.slots, batch.positions]
    before = state.pages.cache
    rows, cache = setup.model.decode(
        weights, before, plan, tokens, batch.positions, window=setup.geometry.window
    )
    assert rows.shape[:1] == tokens.shape, "a model gives a row for each token"
    kept = [(pool.shape, pool.dtype) for pool in cache]
    assert kept == [(pool.shape, pool.dtype) for pool in before], "a model keeps its pools"
    at = target(ok, batch.slot_ids, setup.geometry.slots)
    written = state.slots.written.at[at].add(batch.q_lens, mode="drop")
    return rows, state._replace(
        pages=state.pages._replace(cache=cache), slots=state.slots._replace(written=written)
    )
