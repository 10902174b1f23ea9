"""Copies between main memory and vector memory, of sizes that are known beforehand."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def copy(source: Any, destination: Any, semaphore: Any) -> Any:
    """A copy to be started or waited for; a wait depends on the destination's size alone."""
    return pltpu.make_async_copy(source, destination, semaphore)


def in_powers(count: Array, most: int, act: Callable[[Array, int], None]) -> None:
    """Split `count` into powers of two, largest first, and call `act(start, size)` for each.

    most: a power of two, the largest part; count is less than twice that.
    """
    for exponent in reversed(range(most.bit_length())):
        size = 1 << exponent
        done = count & ~(2 * size - 1)
        with jax.named_scope(str(size)):
            pl.when((count & size) != 0)(partial(act, done, size))
