"""Actions on the queue without a round: enqueue, pack, purge."""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Int32

from impl.models.protocol import Weights
from impl.plan import (
    require_no_proposal,
    require_not_in_flight,
    require_prompt,
    require_used,
)
from impl.setup import Setup
from impl.state import State, flights, queue
from impl.status import accepted, first_refusal, target
from impl.steps.answer import Answer, done, nothing
from spec.vocabulary import INVALID, Reason


def enqueue(
    setup: Setup,
    weights: Weights,
    state: State,
    slot: Int32[Array, ""],
    token: Int32[Array, ""],
) -> Answer:
    """Append a token to a slot, and queue it."""
    geometry, limits, held = setup.geometry, setup.limits, state.slots
    generated = held.known[slot] - held.prompt_lens[slot]
    room = held.max_new[slot] - 1
    queued = state.queue.filled + flights.promised(state.flights)
    status = first_refusal(
        *require_used(held, slot, geometry),
        *require_prompt(held, slot, geometry),
        require_not_in_flight(state, slot),
        require_no_proposal(held, slot),
        (generated >= room, Reason.TOO_LONG, generated, room),
        (queued >= limits.queue, Reason.QUEUE_FULL, queued, limits.queue),
    )
    ok = accepted(status)
    position = held.known[slot]
    at = target(ok, slot, geometry.slots)
    entered = held._replace(
        tokens=held.tokens.at[at, position].set(token, mode="drop"),
        known=held.known.at[at].add(1, mode="drop"),
    )
    waiting = queue.push(state.queue, slot[None], token[None], position[None], ok[None])
    return state._replace(slots=entered, queue=waiting), status, nothing()


def pack(setup: Setup, weights: Weights, state: State) -> Answer:
    """Take up to W = `round_tokens` tokens from the queue. Result: W tokens, slots, positions."""
    width = setup.limits.round_tokens
    slots, positions = queue.head(state.queue, width)
    index = jnp.arange(width)
    tokens = state.queue.tokens.at[index].get(mode="fill", fill_value=0)
    slots, positions, tokens = lax.sort((slots, positions, tokens), num_keys=2)
    left = state._replace(queue=queue.pop(state.queue, width))
    return left, done(), jnp.concatenate([tokens, slots, positions])


def purge(setup: Setup, weights: Weights, state: State, slot: Int32[Array, ""]) -> Answer:
    """Drop the queued tokens of a slot."""
    status = first_refusal(*require_used(state.slots, slot, setup.geometry))
    gone = jnp.where(accepted(status), slot, INVALID)[None]
    return state._replace(queue=queue.purge(state.queue, gone)), status, nothing()
