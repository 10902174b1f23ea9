"""What ends a service: outputs are taken, and everything is forgotten; and the statistics."""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Int32

from impl.cache.paged import zero
from impl.models.protocol import Weights
from impl.setup import Setup
from impl.state import State, blank_metadata, outputs
from impl.state.pages import number_free
from impl.steps.answer import Answer, done, nothing


def take_outputs(setup: Setup, weights: Weights, state: State) -> Answer:
    """Empty the outputs. Result: what `_outputs` of the driver reads."""
    held = state.outputs
    logprobs = lax.bitcast_convert_type(held.logprobs, jnp.int32)
    columns = (held.requests, held.choices, held.reasons, held.lens)
    parts = [held.filled[None], *columns, held.tokens.ravel(), logprobs.ravel()]
    return state._replace(outputs=outputs.empty(held)), done(), jnp.concatenate(parts)


def reset_logical(setup: Setup, weights: Weights, state: State) -> Answer:
    """Forget everything; touch no K or V byte."""
    return blank_metadata(setup, state.pages.cache), done(), nothing()


def reset_physical(setup: Setup, weights: Weights, state: State) -> Answer:
    """Forget everything and zero the pool."""
    cleared = tuple(zero(pool) for pool in state.pages.cache)
    return blank_metadata(setup, cleared), done(), nothing()


def stats(setup: Setup, weights: Weights, state: State) -> Int32[Array, " _"]:
    """What the host needs to admit, see `impl.engine.Stats`: 6 + 2 * (S + O) numbers."""
    counts, slots, finished = state.pages.counts, state.slots, state.outputs
    free = number_free(counts)
    numbers = jnp.stack(
        [
            jnp.sum(slots.used, dtype=jnp.int32),
            setup.geometry.pages - free,
            free,
            jnp.max(counts),
            state.queue.filled,
            finished.filled,
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
