"""Statistics of a state, for the host."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int32

from impl.models.protocol import Weights
from impl.setup import Setup
from impl.state import State, flights, outputs
from impl.state.index import DROPPED, HITS, STORED, idle_pages
from impl.state.pages import in_use, number_free


def stats(setup: Setup, weights: Weights, state: State) -> Int32[Array, " _"]:
    """The numbers of `impl.engine.Stats`, flat: 14 + 2 * (S + O) of them."""
    counts, slots, finished = in_use(state.pages), state.slots, state.outputs
    totals = state.indexed.totals
    removed = totals[STORED] - jnp.sum(state.indexed.holds, dtype=jnp.int32)
    unnamed = number_free(counts)
    is_held = flights.held(state.flights) > 0
    idle = jnp.sum(idle_pages(state.indexed, counts), dtype=jnp.int32)
    numbers = jnp.stack(
        [
            jnp.sum(slots.used, dtype=jnp.int32),
            setup.geometry.pages - unnamed,
            unnamed - idle,
            idle,
            jnp.max(state.pages.counts),
            state.queue.filled,
            finished.filled,
            totals[HITS],
            totals[STORED],
            removed,
            removed - totals[DROPPED],
            state.flights.filled,
            jnp.sum(is_held & ~slots.used, dtype=jnp.int32),
            flights.promised(state.flights),
        ]
    )
    return jnp.concatenate(
        [
            numbers,
            jnp.where(slots.prompt_lens > 0, slots.requests, -1),
            jnp.where(outputs.waiting(finished), finished.requests, -1),
            slots.choices,
            finished.choices,
        ]
    )
