"""The answer of an entry point."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int32

from impl.state import State

Answer = tuple[State, Int32[Array, "3"], Int32[Array, " _"]]
"""The state, the status, and the result."""


def done() -> Int32[Array, "3"]:
    """The status of a step that is not refused."""
    return jnp.zeros((3,), jnp.int32)


def nothing() -> Int32[Array, "0"]:
    """The empty result."""
    return jnp.zeros((0,), jnp.int32)
