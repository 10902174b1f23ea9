"""The pool: destinations, dropped writes, page copies, and updates in place."""

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from impl.cache import paged
from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.geometry import INVALID

PAGES, PAGE_SIZE, HEADS, WIDTH, TOKENS = 6, 4, 2, 3, 5
CELLS = PAGES * PAGE_SIZE
DTYPES = ("float32", "bfloat16", "int32")
NOWHERE = (INVALID, -1, -CELLS, -(2**31), CELLS, CELLS + 1)

write = jax.jit(paged.write)
copy_page = jax.jit(paged.copy_page)


def pool(dtype: str = "float32") -> NDArray[Any]:
    """A pool in which every number is different."""
    shape = (PAGES, PAGE_SIZE, 2 * HEADS, WIDTH)
    return np.arange(np.prod(shape)).reshape(shape).astype(jnp.dtype(dtype))


def tokens(dtype: str = "float32") -> tuple[NDArray[Any], NDArray[Any]]:
    """K and V of a batch, unlike anything in the pool."""
    k = np.arange(TOKENS * HEADS * WIDTH).reshape(TOKENS, HEADS, WIDTH) + 1
    return (-k).astype(jnp.dtype(dtype)), (-k - 100).astype(jnp.dtype(dtype))


def test_heads_alternate() -> None:
    """K and V heads are stored as k0, v0, k1, v1."""
    k, v = tokens()

    cells = np.asarray(paged.interleave(jnp.asarray(k), jnp.asarray(v)))

    assert (TOKENS, 2 * HEADS, WIDTH) == cells.shape
    np.testing.assert_array_equal(np.stack([k[:, 0], v[:, 0], k[:, 1], v[:, 1]], axis=1), cells)


def test_destination_29_is_page_7_offset_1() -> None:
    """With page size 4 and row [2, 7], position 5 is destination 29: page 7, offset 1."""
    row, position, page_size = [2, 7], 5, 4
    destination = row[position // page_size] * page_size + position % page_size
    k = jnp.ones((1, 1, 1))

    stored = paged.write(paged.empty(8, 4, 1, 1, "int32"), jnp.asarray([destination]), k, 2 * k)

    assert destination == 29
    assert [1, 2] == stored[7, 1, :, 0].tolist()
    assert int(stored.sum()) == 3


@pytest.mark.parametrize("dtype", DTYPES)
@settings(deadline=None, max_examples=40)
@given(
    places=st.permutations(range(CELLS)).map(lambda cells: cells[:TOKENS]),
    lost=st.lists(st.sampled_from([None, *NOWHERE]), min_size=TOKENS, max_size=TOKENS),
)
def test_write_moves_exactly_the_named_cells(
    dtype: str, places: list[int], lost: list[int | None]
) -> None:
    """Each token is written to its own cell, and a destination out of range changes no cell."""
    before, (k, v) = pool(dtype), tokens(dtype)
    destinations = [p if gone is None else gone for p, gone in zip(places, lost, strict=True)]
    expected = before.reshape(CELLS, 2 * HEADS, WIDTH).copy()
    for token, place in enumerate(destinations):
        if 0 <= place < CELLS:
            expected[place, 0::2], expected[place, 1::2] = k[token], v[token]

    after = write(before, np.asarray(destinations, np.int32), k, v)

    assert before.dtype == after.dtype
    np.testing.assert_array_equal(expected.reshape(before.shape), np.asarray(after))


def test_write_replaces_and_does_not_add() -> None:
    """A write over NaN leaves the written value."""
    k, v = tokens()
    poisoned = np.full_like(pool(), np.nan)

    after = np.asarray(write(poisoned, np.arange(TOKENS, dtype=np.int32), k, v))

    assert np.isfinite(after.reshape(CELLS, -1)[:TOKENS]).all()
    assert np.isnan(after.reshape(CELLS, -1)[TOKENS:]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("source", "destination"),
    [
        *product([0, 2, 5], [0, 3, 5, 6, INVALID]),
        *product([6, -1, INVALID], [6, INVALID]),
    ],
)
def test_copy_page_copies_one_page_or_nothing(dtype: str, source: int, destination: int) -> None:
    """A page becomes equal to another, or the pool is unchanged if that is past it."""
    before = pool(dtype)
    expected = before.copy()
    if destination < PAGES:
        expected[destination] = before[source]

    after = copy_page(before, np.int32(source), np.int32(destination))

    np.testing.assert_array_equal(expected, np.asarray(after))


def test_zero_clears_every_byte() -> None:
    """A zeroed pool holds zeros even where it held NaN, in the same shape and dtype."""
    poisoned = jnp.full((2, 2, 2, 2), jnp.nan, "bfloat16")

    after = paged.zero(poisoned)

    assert poisoned.dtype == after.dtype
    np.testing.assert_array_equal(np.zeros(poisoned.shape), np.asarray(after, np.float32))


def test_shapes_that_do_not_fit_are_named() -> None:
    """K and V of different shapes, and too few destinations, are invalid input with the shapes."""
    k = jnp.zeros((TOKENS, HEADS, WIDTH))
    places = jnp.zeros(TOKENS, jnp.int32)

    with pytest.raises(InvalidInput, match=r"\(5, 2, 3\).*\(5, 1, 3\)"):
        paged.interleave(k, k[:, :1])
    with pytest.raises(InvalidInput, match=r"\(4,\)"):
        paged.write(jnp.asarray(pool()), places[:-1], k, k)
    with pytest.raises(InvalidInput, match=r"\[P, S, 2H, D\]"):
        paged.write(jnp.asarray(pool()), places, k[:, :1], k[:, :1])


def _write_some(kv_pages: jax.Array) -> jax.Array:
    k = jnp.ones((TOKENS, HEADS, WIDTH), kv_pages.dtype)
    return paged.write(kv_pages, jnp.arange(TOKENS, dtype=jnp.int32), k, k)


def _copy_some(kv_pages: jax.Array) -> jax.Array:
    return paged.copy_page(kv_pages, 1, 2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("action", [_write_some, _copy_some, paged.zero])
def test_a_donated_pool_is_updated_in_place(
    action: Callable[[jax.Array], jax.Array], dtype: str
) -> None:
    """The result reuses the bytes of the pool, with little other memory and no copy of the pool."""
    empty = paged.empty(512, PAGE_SIZE, HEADS, WIDTH, dtype)

    compiled = jax.jit(action, donate_argnums=0).lower(empty).compile()

    memory, text = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None
    assert text is not None
    assert empty.nbytes == memory.alias_size_in_bytes
    assert memory.temp_size_in_bytes < empty.nbytes // 4
    copies = [line for line in text.splitlines() if " copy(" in line]
    assert [] == [line for line in copies if "[512,4,4,3]" in line or "[2048,4,3]" in line]


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"]
)
@pytest.mark.parametrize("action", [_write_some, _copy_some])
def test_what_is_not_moved_keeps_every_bit(
    action: Callable[[jax.Array], jax.Array], dtype: str
) -> None:
    """Cells that are not written keep every bit, also of a NaN, in a pool of any dtype."""
    sizes = (PAGES, PAGE_SIZE, 2 * HEADS, WIDTH * jnp.dtype(dtype).itemsize)
    bits = np.random.default_rng(0).integers(0, 256, sizes, np.uint8)
    bits[..., -jnp.dtype(dtype).itemsize :] = 0xFF  # a NaN in every cell, for each float
    bits[::2, ..., -2] = 0xBF  # a signalling NaN in float32 and bfloat16
    before = jnp.asarray(bits.view(jnp.dtype(dtype)))

    after = np.asarray(jax.jit(action)(before)).view(np.uint8)

    moved = {(2, row) for row in range(PAGE_SIZE)} if action is _copy_some else set()
    moved |= {divmod(cell, PAGE_SIZE) for cell in range(TOKENS) if action is _write_some}
    kept = np.ones(sizes[:2], bool)
    kept[tuple(np.transpose(sorted(moved)))] = False
    np.testing.assert_array_equal(bits[kept], after[kept])
    assert action is _write_some or (bits[1] == after[2]).all()


@pytest.mark.parametrize("action", [_write_some, _copy_some])
def test_what_is_moved_takes_its_derivative_along(action: Callable[[jax.Array], jax.Array]) -> None:
    """The derivative of a pool counts each cell as often as it occurs in the result."""
    found = jax.grad(lambda kv_pages: action(kv_pages).sum())(jnp.asarray(pool()))

    expected = np.ones(found.shape)
    if action is _copy_some:
        expected[1], expected[2] = 2, 0
    else:
        expected.reshape(CELLS, -1)[:TOKENS] = 0
    np.testing.assert_array_equal(expected, found)
