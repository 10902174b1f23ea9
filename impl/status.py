"""Refusals inside jit: three integers instead of an exception."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Int32

from spec.vocabulary import Reason

Guard = tuple[ArrayLike, Reason, ArrayLike, ArrayLike]
"""(whether it refuses, why, the value seen, the value allowed). A function that returns one is
named for the condition that it requires."""


def first_refusal(*guards: Guard) -> Int32[Array, "3"]:
    """The first guard that refuses, as (code, seen, allowed); zeros if none does."""
    assert guards, "a status has at least one guard"
    status = jnp.zeros((3,), jnp.int32)
    for refuses, reason, seen, allowed in reversed(guards):
        assert jnp.result_type(refuses) == jnp.bool_, f"{reason.name}: a condition is a bool"
        refusal = [jnp.asarray(value, jnp.int32) for value in (int(reason), seen, allowed)]
        status = jnp.where(refuses, jnp.stack(refusal), status)
    return status


def accepted(status: Int32[Array, "3"]) -> Bool[Array, ""]:
    """Whether the action is done."""
    return status[0] == 0


def target(ok: ArrayLike, index: Array, size: int) -> Int32[Array, "..."]:
    """`index` where `ok`, else `size`: out of range, so that a scatter drops it.

    A negative index would wrap around; it is sent out of range as well.
    """
    assert jnp.issubdtype(index.dtype, jnp.signedinteger), "an index has a signed dtype"
    return jnp.where(jnp.asarray(ok) & (index >= 0), index, size)
