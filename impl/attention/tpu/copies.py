"""Copies between main memory and vector memory, of sizes that are known beforehand."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from impl.attention.tpu.arithmetic import divide


def copy(source: Any, destination: Any, semaphore: Any) -> Any:
    """A copy to be started or waited for; a wait depends on the destination's size alone."""
    return pltpu.make_async_copy(source, destination, semaphore)


def part(tiles: Any, row: Array, count: int) -> Any:
    """`count` rows of an array of tiles [tiles, rows of a tile, lanes], whole tiles or within one.

    row: the first one. It and `count` fill tiles, or it is a multiple of `count`, and that divides
    a tile.
    """
    size = tiles.shape[-2]
    tile, within = divide(row, size)
    if count % size == 0:
        return tiles.at[pl.ds(tile, count // size)]
    return tiles.at[tile, pl.ds(pl.multiple_of(within, count), count)]


def in_powers(count: Array, most: int, act: Callable[[Array, int], None]) -> None:
    """Split `count` into powers of two, largest first, and call `act(start, size)` for each.

    most: a power of two, the largest part; count is less than twice that.
    """
    for exponent in reversed(range(most.bit_length())):
        size = 1 << exponent
        done = count & ~(2 * size - 1)
        with jax.named_scope(str(size)):
            pl.when((count & size) != 0)(partial(act, done, size))
