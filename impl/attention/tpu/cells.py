"""Extraction of K and V from the rows of the pool: one for each KV head of a cell, V before K.

V and K stand in lanes of their own, so that decoding multiplies with whole rows and moves nothing.
A prefill separates heads: in 16 bits two rows share a word of 32 bits, in 8 bits four do. Words are
loaded with a stride, and then hold the same few heads each; or, if there are fewer heads than rows
in a word, a few cells each.
"""

from itertools import pairwise
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from impl.attention.tpu.arithmetic import divide, quotient
from impl.attention.tpu.shape import LANES, SUBLANES, Shape

LOW = 0xFFFF
HIGH = 0xFFFF0000
EVEN = 0x00FF00FF  # bytes
MAGNITUDES = 0x7F7F7F7F
OF_KEYS: Final = 0
OF_VALUES: Final = 1
"""The places of the scales of K and of V."""


class Held(NamedTuple):
    """The fetches in vector memory.

    rows [tiles, rows of a tile, lanes]: of the pool. scales f32[registers, 2, 128]: of K and V for
    each 128 of these rows, or None.
    """

    rows: Any
    scales: Any


def keys(shape: Shape, kv: Held, start: Array, count: int) -> Array:
    """K of `count` cells of a buffer from cell `start` on, a multiple of it: [rows, width]."""
    return rows(shape, kv, start, count, shape.key_register, shape.width)


def values(shape: Shape, kv: Held, start: Array, count: int) -> Array:
    """V of these cells: [rows, width]."""
    return rows(shape, kv, start, count, 0, shape.width)


def rows(shape: Shape, kv: Held, start: Array, count: int, lane: int, width: int) -> Array:
    """All rows of these cells, some of their lanes: [rows, width]."""
    tiles = count * shape.rows // shape.tile
    first, _ = divide(start * shape.rows, shape.tile)
    found: Array = kv.rows[pl.ds(pl.multiple_of(first, tiles), tiles), :, pl.ds(lane, width)]
    return found.reshape(-1, width)


def scales(shape: Shape, kv: Held, start: Array, count: int, kind: int) -> Array | None:
    """Scales of all rows of these cells, side by side: f32[1, rows]; None if there are none.

    kind: OF_KEYS or OF_VALUES.
    """
    if kv.scales is None:
        return None
    first = quotient(start * shape.rows, LANES)
    every = range(count * shape.rows // LANES)
    return jnp.concatenate([kv.scales[first + one, pl.ds(kind, 1), :] for one in every], axis=1)


def scales_of_head(
    shape: Shape, kv: Held, head: Array, start: Array, count: int, kind: int
) -> Array | None:
    """Scales of one head of these cells, in the order of `place`: f32[1, cells], or None.

    Those of other heads stand between them. A register of the result gathers from the lanes of all
    registers that it needs, at once, and keeps of each what is its own.
    """
    if kv.scales is None:
        return None
    first, parts = quotient(start * shape.rows, LANES), []
    for begin, needed in enumerate(_needed(shape, count)):
        number = lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), 1) + begin * LANES
        source, lane = divide(place(shape, number, count) * shape.rows + head, LANES)
        found = jnp.zeros((SUBLANES, LANES), jnp.float32)
        for some in range(0, len(needed), SUBLANES):
            these = needed[some : some + SUBLANES]
            filled = [these[min(one, len(these) - 1)] for one in range(SUBLANES)]
            held = jnp.concatenate([kv.scales[first + one, pl.ds(kind, 1), :] for one in filled])
            moved = jnp.take_along_axis(held, lane, axis=1)
            found = jnp.where(source == _numbers(these), moved, found)
        parts.append(jnp.sum(found, axis=0, keepdims=True))
    return jnp.concatenate(parts, axis=1)


def _needed(shape: Shape, count: int) -> list[list[int]]:
    """Which registers of scales, from the first on, have those of all heads.

    For each register of `count` cells, in the order of `place`.
    """
    with jax.ensure_compile_time_eval():
        order = np.asarray(place(shape, jnp.arange(count, dtype=jnp.int32), count))
    rows = order.reshape(-1, LANES, 1) * shape.rows + np.arange(shape.rows)
    return [sorted({int(one) for one in each.ravel() // LANES}) for each in rows]


def _numbers(needed: list[int]) -> Array:
    """i32[8, 128]: in row i the number of register i; behind the last, numbers of none of them."""
    row = lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), 0)
    found = row + needed[0]
    for index, (before, number) in enumerate(pairwise(needed), 1):
        if number != before + 1:
            found += jnp.where(row >= index, number - before - 1, 0)
    return found


def product(shape: Shape, held: Array) -> Array:
    """Rows of the pool in the dtype of the product."""
    if shape.exact:
        return held.astype(jnp.float32)
    if held.dtype.itemsize > 1:
        return held.astype(shape.compute)
    if shape.kv_dtype == jnp.float8_e4m3fn and not shape.negative_zeros:
        words = without_negative_zeros(pltpu.bitcast(held, jnp.uint32))
        held = pltpu.bitcast(words, shape.kv_dtype)
    return held if shape.byte_products else held.astype(shape.compute)


def without_negative_zeros(words: Array) -> Array:
    """u32 words with 0 in place of each byte that is -0."""
    magnitudes = jnp.uint32(MAGNITUDES)
    found: Array = words & (((words & magnitudes) + magnitudes) | magnitudes)
    return found


def words(shape: Shape, held: Array) -> Array:
    """Rows as the words of 32 bits that `separate` takes.

    Of four heads in a word, the first two of every word come before the other two.
    """
    found = pltpu.bitcast(held.astype(shape.separated), jnp.uint32)
    if shape.packing == 4 and shape.kv_heads >= 4:
        return jnp.concatenate([lower(found), upper(found)])
    return found


def put(strided: Any, held: Array) -> None:
    """Store words where they can be loaded with a stride: registers of 128 lanes, one by one."""
    for lane in range(strided.shape[0]):
        strided[lane, : held.shape[0], :] = held[:, lane * LANES : (lane + 1) * LANES]


def each(shape: Shape) -> int:
    """How many heads are separated together: those of a word, or two, which then overlap."""
    heads = shape.kv_heads
    return min(heads, shape.packing) if shape.packing > 1 else 2 - heads % 2


def separate(shape: Shape, strided: Any, turn: Array, member: int, count: int) -> Array:
    """V and K of one head, in the dtype of `Shape.separated`: [cells, lanes]; see `place`.

    turn, member: the head is `turn * each + member`. count: of cells.
    """
    heads, packing = shape.kv_heads, shape.packing
    if packing == 1:
        head = turn * each(shape) + member
        return pltpu.bitcast(every(strided, head, count, heads), jnp.float32)
    if heads == 1:
        found = every(strided, 0, count // packing, 1)
    elif packing == 2:
        both = every(strided, turn, count, heads // 2)
        found = upper(both) if member else lower(both)
    elif heads == 2:
        found = _bytes(every(strided, 0, count // 2, 1), member)
    else:
        first = turn + member // 2 * (count * heads // 8)
        found = _bytes(every(strided, first, count // 2, heads // 4), member % 2)
    return pltpu.bitcast(found, shape.separated)


def every(strided: Any, first: Any, count: int, stride: int) -> Array:
    """`count` words from `first` on, `stride` apart: [count, lanes]."""
    parts = [
        strided[lane, pl.ds(first, count, stride=stride), :] for lane in range(strided.shape[0])
    ]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)


def lower(words: Array) -> Array:
    """The low 16 bits of n words as n / 2 words: word i beside word i + n / 2."""
    low, high = _halves(words)
    found: Array = (low & jnp.uint32(LOW)) | (high << 16)
    return found


def upper(words: Array) -> Array:
    """The high 16 bits of n words as n / 2 words, in the same order."""
    low, high = _halves(words)
    found: Array = (low >> 16) | (high & jnp.uint32(HIGH))
    return found


def _bytes(words: Array, member: int) -> Array:
    """Bytes 0 and 2, or 1 and 3, of n words as n / 2 words: those of word i beside i + n / 2."""
    low, high = ((half >> (8 * member)) & jnp.uint32(EVEN) for half in _halves(words))
    found: Array = low | (high << 8)
    return found


def _halves(words: Array) -> tuple[Array, Array]:
    half = words.shape[0] // 2
    return words[:half], words[half:]


def place(shape: Shape, index: Array, count: int) -> Array:
    """The cell, of `count`, in row `index` of what `separate` gives."""
    heads, packing = shape.kv_heads, shape.packing
    if packing == 1 or heads == 1:
        return index
    word, part = divide(index, packing)
    if packing == 2:
        return word + part * (count // 2)
    second, other = divide(part, 2)
    if heads == 2:  # cells 2i and 2i + 1 are in word i
        return 2 * word + second + other * (count // 2)
    # A word i of halves has cells i and i + n / 2 in its 16 bits; a word of bytes, two of those.
    return word + other * (count // 4) + second * (count // 2)


def blanked(shape: Shape, held: Array, low: Array, high: Array) -> Array:
    """Rows with zeros in the cells before `low` and from `high` on: 0 * NaN is NaN.

    Without a window every cell before `high` is visible.
    """
    first = None if shape.window is None else low
    return blended(shape, jnp.zeros_like(held), held, first, high)


def only_visible(shape: Shape, scales: Array, cell: Array, low: Array, high: Array) -> Array:
    """Scales with 0 in the cells before `low` and from `high` on: 0 * NaN is NaN.

    cell: of each scale. Without a window every cell before `high` is visible.
    """
    seen = cell < high
    return jnp.where(seen if shape.window is None else seen & (cell >= low), scales, 0.0)


def blended(shape: Shape, old: Array, new: Array, low: Array | None, high: Array) -> Array:
    """Rows of the old cells, with the new ones from `low` on, if given, and before `high`."""
    packing = 4 // old.dtype.itemsize
    before, after = pltpu.bitcast(old, jnp.uint32), pltpu.bitcast(new, jnp.uint32)
    word = lax.broadcasted_iota(jnp.int32, before.shape, 0)
    if shape.kv_heads % packing == 0:
        found = jnp.where(_inside(shape, word * packing, low, high), after, before)
    else:
        bits = 32 // packing
        mask = jnp.zeros_like(before)
        for row in range(packing):
            part = jnp.uint32(((1 << bits) - 1) << (row * bits))
            inside = _inside(shape, word * packing + row, low, high)
            mask |= jnp.where(inside, part, jnp.uint32(0))
        found = (before & ~mask) | (after & mask)
    return pltpu.bitcast(found, old.dtype)


def _inside(shape: Shape, row: Array, low: Array | None, high: Array) -> Array:
    """Whether the cell of a row is among these."""
    heads = shape.kv_heads
    before = row < high * heads
    return before if low is None else (row >= low * heads) & before
