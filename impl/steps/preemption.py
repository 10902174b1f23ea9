"""Preemption: a request gives its slots back, and what it had drawn becomes known again.

Source: docs/sources.md, "Preemption".
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int32

from impl import commit
from impl.models.protocol import Weights
from impl.plan import (
    require_no_proposal,
    require_not_in_flight,
    require_prompt,
    require_used,
)
from impl.setup import Setup
from impl.state import State, queue
from impl.status import accepted, first_refusal, target
from impl.steps.answer import Answer, nothing
from spec.vocabulary import INVALID, Reason


def preempt(setup: Setup, weights: Weights, state: State, request: Int32[Array, ""]) -> Answer:
    """Free every slot of a request whose choice has not finished, and drop its queued tokens."""
    held = state.slots
    live = (held.prompt_lens > 0) & (held.requests == request) & (held.finished == 0) & held.used
    status = first_refusal((~jnp.any(live), Reason.NOT_LIVE, request, 1))
    slots = jnp.arange(setup.geometry.slots, dtype=jnp.int32)
    gone = jnp.where(live & accepted(status), slots, INVALID)
    state = commit.release(state, gone, setup.geometry)
    return state._replace(queue=queue.purge(state.queue, gone)), status, nothing()


def replay(
    setup: Setup,
    weights: Weights,
    state: State,
    slot: Int32[Array, ""],
    tokens: Int32[Array, " L"],
    count: Int32[Array, ""],
) -> Answer:
    """Make `count` tokens, padded, known after the tokens of a slot. None is queued."""
    geometry, held = setup.geometry, state.slots
    assert tokens.shape == (geometry.max_len,), "tokens are padded to the length of a row"
    known, queued = held.known[slot], queue.lengths(state.queue, geometry.slots)[slot]
    generated, room = known + count - 1 - held.prompt_lens[slot], held.max_new[slot] - 1
    status = first_refusal(
        *require_used(held, slot, geometry),
        *require_prompt(held, slot, geometry),
        require_not_in_flight(state, slot),
        (queued > 0, Reason.BATCH_QUEUED, queued, 0),
        require_no_proposal(held, slot),
        (generated >= room, Reason.TOO_LONG, generated, room),
    )
    at = target(accepted(status), slot, geometry.slots)
    index = jnp.arange(geometry.max_len, dtype=jnp.int32)
    positions = jnp.where(index < count, known + index, geometry.max_len)
    entered = held._replace(
        tokens=held.tokens.at[at, positions].set(tokens, mode="drop"),
        known=held.known.at[at].add(count, mode="drop"),
    )
    return state._replace(slots=entered), status, nothing()
