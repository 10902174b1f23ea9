"""A pool of rows: it holds what the pool of cells holds, and every function takes both alike."""

from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.attention import reference
from impl.attention.appending import append_and_attend
from impl.cache import paged, rows
from impl.cache.rows import LANES
from spec.vocabulary import INVALID
from spec.vocabulary.errors import InvalidInput

KINDS: Final = ("float32", "bfloat16", "float8_e4m3fn", "int8")
WORDS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32}
DIMS: Final = (2, 32, 64, 80, 96, 128, 192, 256, 320)


def bits(pool: Any) -> Any:
    """The bits of an array."""
    held = np.asarray(pool)
    return held.view(WORDS[held.dtype.itemsize])


def anything(shape: tuple[int, ...], kind: str, seed: int) -> jax.Array:
    """Any bits, NaN with payloads among them."""
    size = jnp.dtype(kind).itemsize
    draws = np.random.default_rng(seed)
    return jnp.asarray(
        draws.integers(0, 256, (*shape, size), np.uint8).view(jnp.dtype(kind))[..., 0]
    )


@pytest.mark.parametrize("head_dim", DIMS)
def test_a_row_holds_v_and_k_in_the_fewest_registers(head_dim: int) -> None:
    """K begins in a register of its own, behind V, unless the row is shorter otherwise."""
    first, width = rows.key_lane(head_dim), rows.lanes(head_dim)
    alone = -(-head_dim // LANES) * LANES

    assert head_dim <= first <= first + head_dim <= width
    assert width == -(-2 * head_dim // LANES) * LANES or (first, width) == (alone, 2 * alone)
    assert width <= 2 * alone
    assert first % LANES == 0 or width < 2 * alone


@settings(max_examples=40, deadline=None)
@given(
    heads=st.integers(1, 4),
    head_dim=st.sampled_from(DIMS),
    kind=st.sampled_from(KINDS),
    page_size=st.sampled_from([1, 4, 8]),
    seed=st.integers(0, 99),
)
def test_nothing_is_lost(heads: int, head_dim: int, kind: str, page_size: int, seed: int) -> None:
    """There and back, every bit of a pool is the same; a row is V, K and zeros."""
    pool = anything((3, page_size, 2 * heads, head_dim), kind, seed)
    held = rows.of(pool)

    assert held.shape == rows.empty(3, page_size, heads, head_dim, kind).shape
    assert held.dtype == pool.dtype
    back = rows.interleaved(held, kv_heads=heads, head_dim=head_dim)
    assert np.array_equal(bits(pool), bits(back))
    row, first = bits(held).reshape(3, page_size, heads, -1), rows.key_lane(head_dim)
    assert np.array_equal(bits(pool)[:, :, 1::2], row[..., :head_dim])
    assert np.array_equal(bits(pool)[:, :, 0::2], row[..., first : first + head_dim])
    assert not row[..., head_dim:first].any()
    assert not row[..., first + head_dim :].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("destinations", [[5, 23, 0], [-1, 24, INVALID], [7, -24, 8], [23]])
@pytest.mark.parametrize("page_size", [8, 1])
def test_writes_are_those_of_the_other_shape(
    kind: str, destinations: list[int], page_size: int
) -> None:
    """Each cell is where it belongs; a number of no cell writes nothing."""
    pool, count = anything((24 // page_size, page_size, 4, 64), kind, seed=1), len(destinations)
    k, v = (anything((count, 2, 64), kind, seed) for seed in (2, 3))
    where = jnp.array(destinations, jnp.int32)

    found = rows.write(rows.of(pool), where, k, v)
    expected = rows.of(paged.write(pool, where, k, v))
    assert np.array_equal(bits(expected), bits(found))
    moved = paged.copy_page(found, jnp.array([2, 0]), jnp.array([1, INVALID]))
    expected = rows.of(paged.copy_page(paged.write(pool, where, k, v), 2, 1))
    assert np.array_equal(bits(expected), bits(moved))
    assert not bits(paged.zero(found)).any()


def test_a_write_that_does_not_fit_is_refused() -> None:
    """One destination for a token, rows of the pool's width, and whole cells in a page."""
    pool, k = rows.empty(2, 4, 3, 64, "float32"), jnp.zeros((2, 3, 64))
    at = jnp.zeros(2, jnp.int32)
    for given_at, given_k in (
        (at[:1], k),
        (at, jnp.zeros((2, 3, 128))),
        (at, jnp.zeros((2, 5, 64))),
    ):
        with pytest.raises(InvalidInput, match="write"):
            rows.write(pool, given_at, given_k, given_k)


@pytest.mark.parametrize(("heads", "head_dim"), [((4, 2), 64), ((3, 1), 80), ((6, 3), 128)])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_the_reference_reads_and_writes_both_alike(
    heads: tuple[int, int], head_dim: int, kind: str
) -> None:
    """The answer is the same bit for bit, and so is the pool with the new cells."""
    draws = np.random.default_rng(0)
    q = jnp.asarray(draws.normal(size=(6, heads[0], head_dim)), jnp.float32)
    k, v = (jnp.asarray(draws.normal(size=(6, heads[1], head_dim))).astype(kind) for _ in "kv")
    pool = jnp.asarray(draws.normal(size=(9, 4, 2 * heads[1], head_dim))).astype(kind)
    lens, table = jnp.array([9, 13]), jnp.array([[3, 1, 7, 0], [2, 8, 5, 4]])
    arrays: Any = lens, table, jnp.array([0, 5, 6]), 2
    sinks = jnp.asarray(draws.normal(size=heads[0]), jnp.float32)
    options: Any = {"scale": 0.1, "sliding_window": 7, "sinks": sinks}

    of_rows: Any = partial(reference.ragged_paged_attention, **options, page_size=4)
    answer = reference.ragged_paged_attention(q, pool, *arrays, **options)
    assert np.array_equal(answer, of_rows(q, rows.of(pool), *arrays))
    assert np.abs(np.asarray(answer)).max() > 0.1
    new: Any = {"keys": k, "values": v, **options}
    answer, written = append_and_attend(q, pool, *arrays, **new)
    found, held = append_and_attend(q, rows.of(pool), *arrays, **new, page_size=4)
    assert np.array_equal(answer, found)
    assert np.array_equal(bits(rows.of(written)), bits(held))
    assert not np.array_equal(bits(written), bits(pool))
    with pytest.raises(InvalidInput, match="page_size"):
        of_rows(q, jnp.pad(pool, [(0, 0), (0, 1), (0, 0), (0, 0)]), *arrays)
