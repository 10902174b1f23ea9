"""Writes of new cells into their pages, in place: whole blocks are copied, parts of blocks blended.

A block is `Shape.block` cells, which fill tiles or are a whole page. Neighbours of a page are one
run; its blocks are copied at once, within main memory. Of a block that the run begins or ends
inside of, the old rows are read, the new ones put among them, and all are written back: no other
sequence may hold a page with a new cell, so nobody else changes the block meanwhile. The operand is
laid out as the pages are, see `fresh`.

This is a kernel of its own, so that nothing is written while pages are read: it begins when its
operand `after` is complete.
"""

from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Int32, Shaped

from impl.attention.tpu import cells
from impl.attention.tpu.arithmetic import divide
from impl.attention.tpu.copies import copy, in_powers
from impl.attention.tpu.fresh import Operand
from impl.attention.tpu.shape import Shape

NAME: Final = "kvspec_write_cells"
NOWHERE: Final = -1
MOST_AT_ONCE: Final = 16
PARTS: Final = 2
"""Blocks of a run that are not whole, at most: it begins and ends inside of one."""
BYTES_AT_ONCE: Final = 1 << 22
"""So many blocks are blended together, since each waits for two copies in and one out."""


class Refs(NamedTuple):
    """starts, runs, places: for each token, in scalar memory. The others are in main memory.

    places: the index of the cell in the operand.
    """

    starts: Any
    runs: Any
    places: Any
    after: Any
    operand: Any
    given: Any
    pool: Any


class Scratch(NamedTuple):
    """old, new [blocks, rows of a block, lanes]: blocks that are blended.

    blocks i32[4, blocks]: of each its page, its first cell there, the first new cell and the one
    after the last, from the start of the block. came, blended, gone: semaphores of copies in, of
    copies of blended blocks, and of whole ones.
    """

    old: Any
    new: Any
    blocks: Any
    came: Any
    blended: Any
    gone: Any


def write(
    shape: Shape,
    kv_pages: Shaped[Array, "P rows lanes"],
    operand: Operand,
    destinations: Int32[Array, " T"],
    *,
    after: Array,
    interpret: Any,
) -> Shaped[Array, "P rows lanes"]:
    """The pool, in the same place, with the cells where they belong.

    destinations: one that is out of range is dropped; the others are in the offset of a page that
    the token's position has. after: an array that must be complete first; it is not read.
    """
    assert operand.rows.dtype == kv_pages.dtype, "a copy keeps the dtype of the pool"
    inside = (destinations >= 0) & (destinations < shape.pages * shape.page_size)
    starts = jnp.where(inside, destinations, NOWHERE)
    pool: Array = pl.pallas_call(
        partial(_kernel, shape),
        out_shape=jax.typeof(kv_pages),
        in_specs=[
            *[pl.BlockSpec(memory_space=pltpu.SMEM)] * 3,
            *[pl.BlockSpec(memory_space=pltpu.HBM)] * 3,
        ],
        out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
        scratch_shapes=sized(shape),
        input_output_aliases={5: 0},
        interpret=interpret,
        name=NAME,
    )(starts, runs(starts, shape.page_size), operand.places, after, operand.rows, kv_pages)
    return pool


def sized(shape: Shape) -> Scratch:
    """The shapes of the scratch. Where a cell fills tiles no block is blended."""
    rows = shape.block * shape.rows
    room = BYTES_AT_ONCE // (rows * shape.lanes * int(jnp.dtype(shape.kv_dtype).itemsize))
    count = 1 if shape.block == 1 else max(PARTS, min(MOST_AT_ONCE, room))
    block = pltpu.VMEM((count, rows, shape.lanes), shape.kv_dtype)
    arrived, blended, gone = [pltpu.SemaphoreType.DMA] * 3
    return Scratch(block, block, pltpu.SMEM((4, count), jnp.int32), arrived, blended, gone)


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


def _kernel(shape: Shape, *given: Any) -> None:
    refs, scratch = Refs(*given[: len(Refs._fields)]), Scratch(*given[len(Refs._fields) :])
    work = Work(shape, refs, scratch)
    for number in range(2):  # of the block before the first one, see `room`
        scratch.blocks[number, 0] = jnp.int32(NOWHERE)

    def run(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        """One run of neighbours. Carries its token, the blocks copied, and those to be blended."""
        token, copied, waiting = carry
        start, count = refs.starts[token], refs.runs[token]
        goes = jnp.where(start == NOWHERE, 0, count)
        page, offset = divide(start, shape.page_size)
        place = refs.places[token]
        first = jnp.minimum(-offset & (shape.block - 1), goes)
        whole, last = divide(goes - first, shape.block)
        waiting = work.room(waiting, page, offset)
        waiting = work.part(waiting, page, offset, place, first)
        work.blocks(page, offset + first, place + first, whole)
        done = first + whole * shape.block
        waiting = work.part(waiting, page, offset + done, place + done, last)
        return token + count, copied + whole, waiting

    zero, tokens = jnp.int32(0), refs.starts.shape[0]
    _, copied, waiting = lax.while_loop(lambda carry: carry[0] < tokens, run, (zero, zero, zero))
    work.blend(waiting)
    work.wait_for_blocks(copied, tokens)


class Work:
    """The copies of one run of the kernel."""

    def __init__(self, shape: Shape, refs: Refs, scratch: Scratch) -> None:
        self.shape, self.refs, self.scratch = shape, refs, scratch

    def _rows(self, cell: Array, blocks: int) -> Any:
        """The rows of some blocks; the cell begins the first."""
        size = self.shape.block * self.shape.rows
        return pl.ds(pl.multiple_of(cell * self.shape.rows, size), blocks * size)

    def blocks(self, page: Array, offset: Array, place: Array, count: Array) -> None:
        """Copy whole blocks from the operand, of which the next lies at a place."""

        def start(done: Array, size: int) -> None:
            cell = done * self.shape.block
            copy(
                self.refs.operand.at[self._rows(place + cell, size)],
                self.refs.pool.at[page, self._rows(offset + cell, size)],
                self.scratch.gone,
            ).start()

        in_powers(count, self.shape.page_size // self.shape.block, start)

    def wait_for_blocks(self, count: Array, tokens: int) -> None:
        """Wait for so many blocks."""
        most = max(1, tokens // self.shape.block)

        def wait(_done: Array, size: int) -> None:
            held = self.refs.operand.at[self._rows(jnp.int32(0), size)]
            copy(held, held, self.scratch.gone).wait()

        in_powers(count, 1 << (most.bit_length() - 1), wait)

    def room(self, waiting: Array, page: Array, offset: Array) -> Array:
        """Blend the waiting blocks if a run, from this cell on, might find no place among them.

        Or if the last of them is that of the cell, whose old rows would be read too early: so it is
        if a token without a cell stands between two that have their cells in one block.
        """
        blocks, begin = self.scratch.blocks, offset & -self.shape.block
        if self.shape.block == 1:
            return waiting
        last = jnp.maximum(waiting - 1, 0)
        same = (waiting > 0) & (blocks[0, last] == page) & (blocks[1, last] == begin)
        due = same | (waiting > blocks.shape[1] - PARTS)
        pl.when(due)(lambda: self.blend(waiting))
        return jnp.where(due, 0, waiting)

    def part(self, waiting: Array, page: Array, offset: Array, place: Array, count: Array) -> Array:
        """Begin to blend `count` cells into their block; returns how many blocks are waiting."""
        unit, blocks = self.shape.block, self.scratch.blocks
        if unit == 1:
            return waiting

        @pl.when(count > 0)
        def _() -> None:
            low = offset & (unit - 1)
            numbers = page, offset - low, low, low + count
            for index, number in enumerate(numbers):
                blocks[index, waiting] = number
            self._old(waiting).start()
            held = self.refs.operand.at[self._rows(place - low, 1)]
            copy(held, self.scratch.new.at[waiting], self.scratch.came).start()

        return waiting + (count > 0).astype(jnp.int32)

    def _place(self, index: Array) -> Any:
        page, cell = self.scratch.blocks[0, index], self.scratch.blocks[1, index]
        return self.refs.pool.at[page, self._rows(cell, 1)]

    def _old(self, index: Array) -> Any:
        return copy(self._place(index), self.scratch.old.at[index], self.scratch.came)

    def blend(self, count: Array) -> None:
        """Put the new cells of the waiting blocks among the old ones, and write the blocks."""
        if self.shape.block == 1:
            return

        def arrive(index: Array, _: None) -> None:
            for _part in range(2):
                self._old(index).wait()

        def leave(index: Array, _: None) -> None:
            low, high = self.scratch.blocks[2, index], self.scratch.blocks[3, index]
            old, new = self.scratch.old, self.scratch.new
            old[index] = cells.blended(self.shape, old[index], new[index], low, high)
            copy(old.at[index], self._place(index), self.scratch.blended).start()

        def end(index: Array, _: None) -> None:
            copy(self.scratch.old.at[index], self._place(index), self.scratch.blended).wait()

        for act in (arrive, leave, end):
            lax.fori_loop(0, count, act, None)
