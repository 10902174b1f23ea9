"""Refusals inside jit: three integers instead of an exception."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from spec.vocabulary import Reason

Guard = tuple[ArrayLike, Reason, ArrayLike, ArrayLike]
"""(whether it refuses, why, the value seen, the value allowed)."""


def first_refusal(*guards: Guard) -> Array:
    """The first guard that refuses, as i32[3] (code, seen, allowed); zeros if none does."""
    status = jnp.zeros((3,), jnp.int32)
    for refuses, reason, seen, allowed in reversed(guards):
        refusal = [jnp.asarray(value, jnp.int32) for value in (int(reason), seen, allowed)]
        status = jnp.where(refuses, jnp.stack(refusal), status)
    return status


def accepted(status: Array) -> Array:
    """bool[]: whether the action is done."""
    return status[0] == 0


def target(ok: ArrayLike, index: Array, size: int) -> Array:
    """`index` where `ok`, else `size`: out of range, so that a scatter drops it.

    A negative index would wrap around; it is sent out of range as well.
    """
    return jnp.where(jnp.asarray(ok) & (index >= 0), index, size)
