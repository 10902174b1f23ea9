"""Scales of each cell and KV head: their array, and attention that reads them."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from impl.attention import appending, reference
from impl.attention import tpu as kernel
from impl.cache import paged, rows, scales
from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.geometry import INVALID

SIZES: Any = [(16, 8), (32, 4), (128, 3), (128, 1), (384, 1)]
"""Cells of a page, and KV heads, whose rows fill registers."""


def numbers(*shape: int) -> jax.Array:
    """Scales that all differ."""
    return jnp.arange(1, 1 + np.prod(shape), dtype=jnp.float32).reshape(shape)


@pytest.mark.parametrize(("page_size", "heads"), SIZES)
def test_the_scales_of_rows_stand_as_the_rows_do(page_size: int, heads: int) -> None:
    """Those of K and of V of 128 rows are side by side, in the order of the rows."""
    given = numbers(3, page_size, 2 * heads)

    found = scales.of(given)

    assert scales.empty(3, page_size, heads, of_rows=True).shape == found.shape
    for page, cell, head, kind in ((0, 0, 0, 0), (2, page_size - 1, heads - 1, 1), (1, 9, 0, 1)):
        block, lane = divmod(cell * heads + head, 128)
        assert given[page, cell, 2 * head + kind] == found[page, block, kind, lane]
    assert np.array_equal(given, scales.interleaved(found, kv_heads=heads))


@pytest.mark.parametrize(("page_size", "heads"), SIZES)
def test_a_write_and_a_copy_reach_their_cells_alone(page_size: int, heads: int) -> None:
    """Scales are written and copied alike in both shapes; what is out of range is dropped."""
    before = numbers(3, page_size, 2 * heads)
    where = jnp.array([page_size + 5, -1, 0, 3 * page_size, INVALID, 3 * page_size - 1])
    k, v = -numbers(6, heads), -1000 - numbers(6, heads)
    expected = np.array(before)
    for token, (page, cell) in {0: (1, 5), 2: (0, 0), 5: (2, page_size - 1)}.items():
        expected[page, cell, 0::2], expected[page, cell, 1::2] = k[token], v[token]

    plain = scales.write(before, where, k, v)
    of_rows = scales.write(scales.of(before), where, k, v)

    assert np.array_equal(expected, plain)
    assert np.array_equal(scales.of(plain), of_rows)
    copied = paged.copy_page(of_rows, jnp.array([2, 0]), jnp.array([1, INVALID]))
    assert np.array_equal(scales.of(paged.copy_page(plain, 2, 1)), copied)


def test_a_write_of_scales_that_does_not_fit_is_refused() -> None:
    """One destination for a token, one scale of each kind for a KV head, and whole cells."""
    there, k, at = scales.empty(2, 16, 8, of_rows=True), numbers(2, 8), jnp.zeros(2, jnp.int32)
    for given_at, given_k, given_v in (
        (at[:1], k, k),
        (at, k, k[:, :4]),
        (at, numbers(2, 3), numbers(2, 3)),
    ):
        with pytest.raises(InvalidInput, match="write"):
            scales.write(there, given_at, given_k, given_v)
    with pytest.raises(InvalidInput, match="page_size: saw 16"):
        scales.empty(2, 16, 2, of_rows=True)


def batch(*, page_size: int = 64, heads: tuple[int, int] = (4, 2)) -> tuple[Any, ...]:
    """A batch in float32, its pool interleaved, and scales that are NaN in every dead cell."""
    draws = np.random.default_rng(heads[0])
    q = jnp.asarray(draws.normal(size=(6, heads[0], 64)), jnp.float32)
    pool = jnp.asarray(draws.normal(size=(5, page_size, 2 * heads[1], 64)), jnp.float32)
    table, lens = np.array([[3, 1], [2, 0]]), [page_size + 3, 7]
    factors = draws.uniform(0.5, 2, pool.shape[:3]) * draws.choice([-1.0, 1.0], pool.shape[:3])
    dead = np.ones(pool.shape[:2], bool)
    for row, length in enumerate(lens):
        for position in range(length):
            dead[table[row, position // page_size], position % page_size] = False
    factors[dead] = np.nan
    arrays = jnp.array(lens), jnp.asarray(table), jnp.array([0, 5, 6]), jnp.int32(2)
    return q, pool, jnp.asarray(factors, jnp.float32), arrays


@pytest.mark.parametrize("options", [{}, {"sliding_window": 9, "soft_cap": 3.0}])
def test_the_reference_reads_what_is_stored_times_its_scales(options: dict[str, Any]) -> None:
    """It is attention over the products, from either shape; scales of dead cells do nothing."""
    q, pool, factors, arrays = batch()
    attend: Any = partial(reference.ragged_paged_attention, scale=0.1, **options)

    found = attend(q, pool, *arrays, scales=factors)

    of_rows = attend(q, rows.of(pool), *arrays, scales=scales.of(factors), page_size=64)
    assert np.array_equal(found, of_rows)
    products = pool * jnp.nan_to_num(factors)[..., None]
    assert np.abs(found - attend(q, products, *arrays)).max() < 1e-5
    assert np.abs(found - attend(q, pool, *arrays)).max() > 0.1


def test_new_cells_are_read_with_the_scales_in_their_places() -> None:
    """What is appended is what is stored, and its scales are written before."""
    q, pool, factors, arrays = batch()
    k, v = (jnp.asarray(np.random.default_rng(7).normal(size=(6, 2, 64)), jnp.float32),) * 2

    found, after = appending.append_and_attend(
        q, pool, *arrays, keys=k, values=v, scale=0.1, scales=factors
    )

    again = reference.ragged_paged_attention(q, after, *arrays, scale=0.1, scales=factors)
    assert np.array_equal(found, again)
    plain = reference.ragged_paged_attention(q, after, *arrays, scale=0.1)
    assert np.abs(found - plain).max() > 0.1


def wrong() -> dict[str, tuple[int, tuple[int, int], Any]]:
    """Scales that do not fit, each with the cells of a page, the heads, and what is seen."""
    three = scales.empty(5, 64, 2, of_rows=True)
    return {
        "of fewer pages": (64, (4, 2), three[:4]),
        "of the other shape": (64, (4, 2), jnp.ones((5, 64, 4))),
        "in 16 bits": (64, (4, 2), three.astype(jnp.bfloat16)),
        "beside rows that fill no register": (16, (4, 2), jnp.ones((5, 1, 2, 128))),
    }


@pytest.mark.parametrize("title", wrong())
def test_scales_that_do_not_fit_are_refused(title: str) -> None:
    """By name, by the reference and by the kernel; the remedy says what to do."""
    page_size, heads, given = wrong()[title]
    q, pool, _, arrays = batch(page_size=page_size, heads=heads)
    own: Any = {"page_size": page_size, "scales": given}
    for attend in (
        reference.ragged_paged_attention,
        partial(kernel.ragged_paged_attention, chip="v5e"),
    ):
        with pytest.raises(InvalidInput) as caught:
            attend(q, rows.of(pool), *arrays, **own)
        fills = "register" not in title
        assert caught.value.name == ("scales" if fills else "page_size")
        assert fills or "aligned runs of 4" in str(caught.value)


def test_the_kernel_refuses_scales_of_parts_that_fill_no_register() -> None:
    """A page of 192 cells is taken as three of 64: with one KV head they are too short."""
    q, pool, _, arrays = batch(page_size=192, heads=(2, 1))
    given: Any = {"page_size": 192, "scales": jnp.ones((5, 1, 2, 128))}
    with pytest.raises(InvalidInput, match="aligned runs of 2, and name a run as one page"):
        kernel.ragged_paged_attention(q, rows.of(pool), *arrays, **given, chip="v5e")
