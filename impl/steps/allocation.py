"""Allocation of pages for a batch: the lowest free ones, slots ascending, all or none.

Source: docs/sources.md, "Allocation".
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int32

from impl.commit import commit_pages
from impl.models.protocol import BatchPlan, Weights
from impl.plan import (
    batch_plan,
    plan_pages,
    require_length,
    require_live,
    require_next,
    require_not_in_flight,
    require_pages,
    sort_batch,
)
from impl.setup import Setup
from impl.state import State
from impl.status import accepted, first_refusal
from impl.steps.answer import Answer


def allocate(
    setup: Setup,
    weights: Weights,
    state: State,
    slots: Int32[Array, " T"],
    positions: Int32[Array, " T"],
) -> Answer:
    """Cover a batch of slots (INVALID: padding) and positions. Result: the packed plan."""
    geometry = setup.geometry
    batch = sort_batch(slots, positions, seqs=setup.batch_seqs)
    grant = plan_pages(state, batch, geometry)
    status = first_refusal(
        *require_live(state.slots, batch, geometry),
        require_not_in_flight(state, batch.slots),
        require_next(state.slots.allocated, batch),
        require_length(batch, geometry),
        require_pages(grant),
    )
    ok = accepted(status)
    state = commit_pages(state, batch, grant, ok, geometry)
    return state, status, pack_plan(batch_plan(state, batch, ok, geometry))


def pack_plan(plan: BatchPlan) -> Int32[Array, " _"]:
    """The fields of a plan, flat, in order: B + B * M + B + B + 1 + 1 + T + T numbers."""
    return jnp.concatenate([field.ravel() for field in plan])
