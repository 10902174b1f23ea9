"""The step that takes the outputs."""

import jax.numpy as jnp
from jax import lax

from impl.models.protocol import Weights
from impl.setup import Setup
from impl.state import State, outputs
from impl.steps.answer import Answer, done


def take_outputs(setup: Setup, weights: Weights, state: State) -> Answer:
    """Empty the outputs. Result: the entries, flat, for `Engine._outputs`."""
    held = state.outputs
    logprobs = lax.bitcast_convert_type(held.logprobs, jnp.int32)
    columns = (held.requests, held.choices, held.reasons, held.lens)
    parts = [held.filled[None], *columns, held.tokens.ravel(), logprobs.ravel()]
    return state._replace(outputs=outputs.empty(held)), done(), jnp.concatenate(parts)
