"""What an entry point returns."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int32

from impl.state import State

Answer = tuple[State, Int32[Array, "3"], Int32[Array, " _"]]
"""The state, the status, and the result."""


def done() -> Int32[Array, "3"]:
    """The status of what is never refused."""
    return jnp.zeros((3,), jnp.int32)


def nothing() -> Int32[Array, "0"]:
    """The result of what has none."""
    return jnp.zeros((0,), jnp.int32)
