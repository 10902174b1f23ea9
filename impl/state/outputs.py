"""The finished choices, until they are taken: parallel arrays, in order of finishing."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32

from impl.setup import Setup
from impl.status import target


class Outputs(NamedTuple):
    """One entry per choice; entries from `filled` on are meaningless.

    tokens: the generated ones, `lens` of them. reasons: see FINISH_CODES. logprobs: K is L, or 0
    where they are not kept.
    """

    tokens: Int32[Array, "O L"]
    logprobs: Float32[Array, "O K"]
    lens: Int32[Array, " O"]
    reasons: Int32[Array, " O"]
    requests: Int32[Array, " O"]
    choices: Int32[Array, " O"]
    filled: Int32[Array, ""]


class Ended(NamedTuple):
    """N choices, of which those with a reason enter the outputs; fields as in Outputs."""

    tokens: Int32[Array, "N L"]
    logprobs: Float32[Array, "N K"]
    lens: Int32[Array, " N"]
    reasons: Int32[Array, " N"]
    requests: Int32[Array, " N"]
    choices: Int32[Array, " N"]


def make(setup: Setup) -> Outputs:
    """No outputs."""
    size, length = setup.limits.outputs, setup.geometry.max_len
    return Outputs(
        tokens=jnp.zeros((size, length), jnp.int32),
        logprobs=jnp.zeros((size, length if setup.logprobs else 0), jnp.float32),
        lens=jnp.zeros((size,), jnp.int32),
        reasons=jnp.zeros((size,), jnp.int32),
        requests=jnp.zeros((size,), jnp.int32),
        choices=jnp.zeros((size,), jnp.int32),
        filled=jnp.zeros((), jnp.int32),
    )


def waiting(outputs: Outputs) -> Bool[Array, " O"]:
    """Which entries wait to be taken."""
    return jnp.arange(outputs.lens.shape[0]) < outputs.filled


def append(outputs: Outputs, ended: Ended) -> Outputs:
    """Append the choices that have a reason; the caller has checked the room."""
    done = ended.reasons != 0
    size = outputs.lens.shape[0]
    place = target(done, outputs.filled + jnp.cumsum(done, dtype=jnp.int32) - 1, size)
    held = outputs._asdict()
    entered = {
        name: held[name].at[place].set(value, mode="drop")
        for name, value in ended._asdict().items()
    }
    return Outputs(**entered, filled=outputs.filled + jnp.sum(done, dtype=jnp.int32))


def empty(outputs: Outputs) -> Outputs:
    """The outputs after all have been taken."""
    return outputs._replace(filled=jnp.zeros_like(outputs.filled))
