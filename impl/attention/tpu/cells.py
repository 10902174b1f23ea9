"""Extraction of K and V from the pool, where a cell has the rows k0, v0, k1, v1, ... of its heads.

With 16 bits, K and V of a head are the two halves of one row of 32-bit words, so that whole
registers are separated by shifts. Two rows of words make one of 16-bit pairs, which is why K and V
come in pairs of cells: one of the first half beside one of the second. Softmax does not depend on
the order of cells, as long as K, V and the positions agree on it. With 8 bits, a word has K and V
twice, of two heads or, if there is one head, of two cells. If `Shape.narrow`, they are separated
and multiplied as 8 bits; otherwise they are widened to 16 bits first.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from impl.attention.tpu.shape import LANES, Shape

LOW = 0xFFFF
HIGH = 0xFFFF0000
EVEN = 0x00FF00FF  # bytes
ODD = 0xFF00FF00
MAGNITUDES = 0x7F7F7F7F


class Words(NamedTuple):
    """Words that hold K and V: 32-bit rows [n, head_dim]; the same array twice if paired."""

    keys: Array
    values: Array


def rows(shape: Shape, kv: Any, start: Array, count: int) -> Array:
    """`count` cells of a buffer from cell `start` on, a multiple of it: [rows, head_dim]."""
    first = pl.multiple_of(start * shape.rows, count * shape.rows)
    found: Array = kv[pl.ds(first, count * shape.rows), :]
    widened = found.dtype.itemsize == 1 and not shape.narrow
    return found.astype(jnp.bfloat16) if widened else found


def words(shape: Shape, held: Array, strided: Any) -> Words:
    """The words with K and V of these rows. strided: scratch that separates unpaired rows."""
    if shape.paired:
        found = pltpu.bitcast(held, jnp.uint32)
        return Words(found, found)
    put(strided, held)
    count = held.shape[0] // 2
    return Words(every(shape, strided, 0, count, 2), every(shape, strided, 1, count, 2))


def put(strided: Any, held: Array) -> None:
    """Store rows where they can be loaded with a stride: registers of 128 lanes, one by one."""
    for lane in range(strided.shape[0]):
        part = held[:, lane * LANES : (lane + 1) * LANES]
        strided[lane, : held.shape[0], : part.shape[1]] = part


def every(shape: Shape, strided: Any, first: Any, count: int, stride: int) -> Array:
    """`count` rows from `first` on, `stride` apart: [count, head_dim]."""
    parts = [
        strided[lane, pl.ds(first, count, stride=stride), :] for lane in range(strided.shape[0])
    ]
    whole = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)
    return whole[:, : shape.head_dim]


def keys(shape: Shape, words: Array) -> Array:
    """K of these words, in the dtype of the product."""
    if not shape.paired:
        return words
    if shape.exact:
        return pltpu.bitcast(words << 16, jnp.float32)
    if not shape.narrow:
        return pltpu.bitcast(lower(words), jnp.bfloat16)
    low, high = _halves(words)
    return _eights(shape, (low & jnp.uint32(EVEN)) | ((high & jnp.uint32(EVEN)) << 8))


def values(shape: Shape, words: Array) -> Array:
    """V of these words, in the dtype of the product."""
    if not shape.paired:
        return words
    if shape.exact:
        return pltpu.bitcast(words & jnp.uint32(HIGH), jnp.float32)
    if not shape.narrow:
        return pltpu.bitcast(upper(words), jnp.bfloat16)
    low, high = _halves(words)
    return _eights(shape, ((low >> 8) & jnp.uint32(EVEN)) | (high & jnp.uint32(ODD)))


def _eights(shape: Shape, words: Array) -> Array:
    if shape.kv_dtype == jnp.float8_e4m3fn and not shape.negative_zeros:
        words = without_negative_zeros(words)
    found = pltpu.bitcast(words, shape.kv_dtype)
    return found if shape.byte_products else found.astype(jnp.bfloat16)


def without_negative_zeros(words: Array) -> Array:
    """u32 words with 0 in place of each byte that is -0."""
    magnitudes = jnp.uint32(MAGNITUDES)
    found: Array = words & (((words & magnitudes) + magnitudes) | magnitudes)
    return found


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


def _halves(words: Array) -> tuple[Array, Array]:
    half = words.shape[0] // 2
    return words[:half], words[half:]


def place(shape: Shape, index: Array, count: int) -> Array:
    """The head of a cell, by number of `count`, that row `index` of `keys` and `values` holds."""
    if shape.exact:
        return index
    return lax.shift_right_logical(index, 1) + (index & 1) * (count // 2)


def divide(number: Array, size: int) -> tuple[Array, Array]:
    """Quotient and remainder of a number that is not negative."""
    if size & (size - 1) == 0:
        return lax.shift_right_logical(number, size.bit_length() - 1), number & (size - 1)
    by = jnp.int32(size)
    return lax.div(number, by), lax.rem(number, by)


def blanked(words: Array, count: int, low: Array, high: Array) -> Array:
    """Words of `count` cells, with zeros before `low` and from `high` on: 0 * NaN is NaN."""
    index = lax.broadcasted_iota(jnp.int32, words.shape, 0)
    if words.shape[0] < count:  # two cells in a word
        return words & (_kept(2 * index, low, high, LOW) | _kept(2 * index + 1, low, high, HIGH))
    each = words.shape[0] // count
    inside = (index >= low * each) & (index < high * each)
    return jnp.where(inside, words, jnp.zeros_like(words))


def _kept(cell: Array, low: Array, high: Array, bits: int) -> Array:
    return jnp.where((cell >= low) & (cell < high), jnp.uint32(bits), jnp.uint32(0))
