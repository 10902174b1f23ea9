"""Division by sizes that are known beforehand: by a power of two, which most are, it is a shift."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax


def divide(number: Any, size: int) -> tuple[Array, Array]:
    """Quotient, rounded down, and remainder; of a negative number only by a power of two."""
    number, power = jnp.asarray(number, jnp.int32), size.bit_length() - 1
    if size == 1 << power:
        return lax.shift_right_arithmetic(number, jnp.int32(power)), number & (size - 1)
    by = jnp.int32(size)
    return lax.div(number, by), lax.rem(number, by)


def quotient(number: Any, size: int) -> Array:
    """The first of `divide`."""
    return divide(number, size)[0]


def rounded_up(number: Any, size: int) -> Array:
    """The quotient, rounded up."""
    return quotient(number + (size - 1), size)


def parity(number: Array) -> Array:
    """0 or 1: which buffer of a pair is that of this number."""
    return number & 1
