"""The queue of known tokens that wait to be decoded: parallel arrays, oldest first.

Every move is one gather or scatter over the whole queue. Source: seed 000, section 3.5.
"""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from impl.state import State
from impl.status import target
from spec.vocabulary import INVALID


def head(state: State, width: int) -> tuple[Array, Array]:
    """The next tokens to leave: slots and positions i32[width]; INVALID slots past the end."""
    index = jnp.arange(width)
    slots = state.queue_slots.at[index].get(mode="fill", fill_value=INVALID)
    positions = state.queue_positions.at[index].get(mode="fill", fill_value=0)
    return jnp.where(index < state.queued, slots, INVALID), positions


def pop(state: State, count: ArrayLike) -> State:
    """Drop the `count` oldest tokens."""
    kept = jnp.arange(state.queue_slots.shape[0]) >= count
    return _keep(state, kept)


def push(state: State, slots: Array, tokens: Array, positions: Array, there: Array) -> State:
    """Append N tokens in order, those that are `there` bool[N]; the caller has checked the room."""
    place = state.queued + jnp.cumsum(there, dtype=jnp.int32) - 1
    place = target(there, place, state.queue_slots.shape[0])
    return state._replace(
        queue_tokens=state.queue_tokens.at[place].set(tokens, mode="drop"),
        queue_slots=state.queue_slots.at[place].set(slots, mode="drop"),
        queue_positions=state.queue_positions.at[place].set(positions, mode="drop"),
        queued=state.queued + jnp.sum(there, dtype=jnp.int32),
    )


def purge(state: State, slots: Array) -> State:
    """Drop every queued token of these slots i32[N]; INVALID names none."""
    return _keep(state, ~jnp.any(state.queue_slots[:, None] == slots, axis=1))


def pending(state: State, slot: Array) -> Array:
    """bool[Q]: which queue entries belong to a slot i32[]."""
    return (state.queue_slots == slot) & (jnp.arange(state.queue_slots.shape[0]) < state.queued)


def _keep(state: State, kept: Array) -> State:
    size = state.queue_slots.shape[0]
    kept = kept & (jnp.arange(size) < state.queued)
    place = target(kept, jnp.cumsum(kept, dtype=jnp.int32) - 1, size)

    def moved(array: Array) -> Array:
        return jnp.zeros_like(array).at[place].set(array, mode="drop")

    return state._replace(
        queue_tokens=moved(state.queue_tokens),
        queue_slots=moved(state.queue_slots),
        queue_positions=moved(state.queue_positions),
        queued=jnp.sum(kept, dtype=jnp.int32),
    )
