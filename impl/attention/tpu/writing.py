"""Writes of new cells into their pages, in place: runs of neighbours, copied within main memory.

This is a kernel of its own, so that nothing is written while pages are read: it begins when its
operand `after` is complete.
"""

from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Int32, Shaped

from impl.attention.tpu.copies import copy, in_powers

NAME: Final = "kvspec_write_cells"
NOWHERE: Final = -1


def write(
    kv_pages: Shaped[Array, "P page_size KV D"],
    cells: Shaped[Array, "T KV D"],
    destinations: Int32[Array, " T"],
    *,
    after: Array,
    interpret: Any,
) -> Shaped[Array, "P page_size KV D"]:
    """The pool, in the same place, with the cells where they belong.

    destinations: one that is out of range is dropped. after: an array that must be complete first;
    it is not read.
    """
    assert cells.dtype == kv_pages.dtype, "a copy keeps the dtype of the pool"
    page_size, tokens = kv_pages.shape[1], cells.shape[0]
    inside = (destinations >= 0) & (destinations < kv_pages.shape[0] * page_size)
    starts = jnp.where(inside, destinations, NOWHERE)

    def kernel(*refs: Any) -> None:
        _kernel(page_size, tokens, *refs)

    pool: Array = pl.pallas_call(
        kernel,
        out_shape=jax.typeof(kv_pages),
        in_specs=[
            *[pl.BlockSpec(memory_space=pltpu.SMEM)] * 2,
            *[pl.BlockSpec(memory_space=pltpu.HBM)] * 3,
        ],
        out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
        scratch_shapes=[pltpu.SemaphoreType.DMA],
        input_output_aliases={4: 0},
        interpret=interpret,
        name=NAME,
    )(starts, runs(starts, page_size), after, cells, kv_pages)
    return pool


def runs(starts: Int32[Array, " T"], page_size: int) -> Int32[Array, " T"]:
    """For each token, how many from it on are neighbours in one page, or have no cell."""
    before = jnp.concatenate([jnp.full((1,), NOWHERE - 1, starts.dtype), starts[:-1]])
    neighbours = (starts == before + 1) & (starts % page_size != 0) & (before >= 0)
    goes_on = neighbours | ((starts == NOWHERE) & (before == NOWHERE))
    count = starts.shape[0]
    index = jnp.arange(count, dtype=jnp.int32)
    begins = jnp.where(goes_on, count, index)
    following = lax.cummin(begins, reverse=True)
    return jnp.append(following[1:], jnp.int32(count)) - index


def _kernel(
    page_size: int,
    tokens: int,
    starts: Any,
    runs: Any,
    _after: Any,
    cells: Any,
    _pool: Any,
    pool: Any,
    gone: Any,
) -> None:
    def run(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        token, written = carry
        start, count = starts[token], runs[token]
        goes = jnp.where(start == NOWHERE, 0, count)
        page, offset = lax.div(start, jnp.int32(page_size)), lax.rem(start, jnp.int32(page_size))

        def part(done: Array, size: int) -> None:
            destination = pool.at[page, pl.ds(offset + done, size)]
            copy(cells.at[pl.ds(token + done, size)], destination, gone).start()

        in_powers(goes, page_size, part)
        return token + count, written + goes

    def wait(_done: Array, size: int) -> None:
        held = cells.at[pl.ds(0, size)]
        copy(held, held, gone).wait()

    zero = jnp.int32(0)
    _, written = lax.while_loop(lambda carry: carry[0] < tokens, run, (zero, zero))
    in_powers(written, 1 << (tokens.bit_length() - 1), wait)
