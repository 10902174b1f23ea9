"""Blocks of the reference attention: default sizes, and several blocks in one step."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve
from deep import deep_after
from test_attention import (
    BASE,
    BATCHES,
    READ_SHAPE,
    RIGHT,
    SINKS,
    build,
    check_reads,
    check_values,
    plant,
)

from conformance.numerics import oracle
from impl.attention import reference

MIXED = BATCHES["mixed prefill and decode"]
SHAPES = {
    "one page": evolve(BASE, q_block=3, kv_block_pages=1),
    "window and cap": evolve(BASE, sliding_window=6, soft_cap=1.5, q_block=2, kv_block_pages=2),
}


def widen(patch: pytest.MonkeyPatch, blocks: int) -> None:
    """Take this many blocks in one step, whatever their size."""
    plant(patch, "_at_once", lambda *_: blocks)


def _off_by_one(ends: Any, numbers: Any) -> Any:
    """The last number of each owner belongs to the next one."""
    return RIGHT["_owner"](ends, numbers + 1)


def _all_to_the_first(running: Any, reads: Any, *rest: Any) -> Any:
    """The result of a step is given to its first block of queries."""
    first = jnp.zeros_like(reads.owner)
    return RIGHT["_absorb"](running, reads._replace(owner=first), *rest)


def _clamped(q: Any, blocks: Any) -> Any:
    """A block of queries that exceeds the rows is moved back, and its rows with it."""
    first = jnp.minimum(blocks.tokens[:, :1], q.shape[0] - blocks.tokens.shape[1])
    return q[first + jnp.arange(blocks.tokens.shape[1])]


@pytest.mark.parametrize("blocks", [3, 100])
@pytest.mark.parametrize("name", SHAPES)
def test_several_blocks_to_a_step_are_within_the_bound(
    name: str, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of several blocks are within the bound, also if a list ends inside a step."""
    widen(monkeypatch, blocks)

    for batch in (MIXED, BATCHES["more queries than cells"], []):
        check_values(SHAPES[name], build(SHAPES[name], batch))


def test_several_blocks_to_a_step_read_their_own_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cell of one sequence reaches the queries of another in the same step."""
    widen(monkeypatch, 4)

    check_reads(READ_SHAPE, build(READ_SHAPE, [(4, 12), (1, 11), (1, 3), (5, 9)], shared=1))


WRONG: dict[str, Callable[..., Any]] = {
    "_owner": _off_by_one,
    "_absorb": _all_to_the_first,
    "_queries": _clamped,
}


@pytest.mark.parametrize("name", deep_after(1, WRONG))
def test_a_block_given_to_the_wrong_queries_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value check finds each mistake in the lists of a step."""
    shape = SHAPES["window and cap"]
    widen(monkeypatch, 3)
    check_values(shape, build(shape, MIXED))
    plant(monkeypatch, name, WRONG[name])

    with pytest.raises(AssertionError, match="out of bound"):
        check_values(shape, build(shape, MIXED))


@pytest.mark.parametrize(
    ("page_size", "head_dim", "pages"),
    deep_after(2, [(128, 8, 4), (64, 64, 8), (64, 65, 4), (1024, 128, 1)]),
)
def test_a_block_without_a_wish_has_256_cells_or_512_small_ones(
    page_size: int, head_dim: int, pages: int
) -> None:
    """The default answer equals, to the last bit, that of blocks of 256 cells or 512 small ones."""
    shape = evolve(BASE, rows=1, page_size=page_size, head_dim=head_dim, pages_per_seq=20)
    shape = evolve(shape, kv_block_pages=None)
    case = build(shape, [(1, 19 * page_size + 5)])
    found = shape.attend(case)

    np.testing.assert_array_equal(found, evolve(shape, kv_block_pages=pages).attend(case))
    assert (found != evolve(shape, kv_block_pages=2 * pages).attend(case)).any()


@pytest.mark.parametrize("sinks", [None, SINKS])
def test_the_derivative_by_k_and_v_is_that_of_the_oracle(sinks: tuple[float, ...] | None) -> None:
    """Forward derivatives agree with differences in float64, also if dead cells are NaN."""
    shape = evolve(BASE, sinks=sinks)
    case = build(shape, MIXED)
    change = np.random.default_rng(1).normal(size=case.kv_pages.shape)
    step = 1e-5  # differences of the oracle are then right to 1e-9: step ** 2, and 1e-16 / step
    ends = [
        oracle.ragged_paged_attention(
            *case._replace(kv_pages=case.kv_pages.astype("f8") + sign * step * change), **shape.math
        )
        for sign in (1, -1)
    ]

    q, pool, *rest = map(jnp.asarray, case)

    def answer(kv_pages: jax.Array) -> jax.Array:
        return reference.ragged_paged_attention(
            q, kv_pages, *rest, **shape.math, q_block=3, kv_block_pages=1
        )

    _, found = jax.jvp(answer, (pool,), (jnp.asarray(change, jnp.float32),))
    expected = (ends[0] - ends[1]) / (2 * step)
    live = slice(int(case.cu_q_lens[int(case.num_seqs)]))
    assert np.abs(expected[live]).max() > 1
    # A query has at most 28 cells of 8 elements: some 50 roundings of 2 ** -24, of numbers below 4.
    np.testing.assert_allclose(found[live], expected[live], rtol=0, atol=50 * 2**-24 * 4)


def test_a_table_of_millions_of_entries_is_read_once() -> None:
    """What lies past the list of reads is past a row, whose number of cells fits an int32."""
    # The second sequence is longer than a block, so that the last step has room for one more.
    lens, width = (3, 514), 1 << 22
    keys = np.random.default_rng(1).normal(size=(sum(lens), 1, 2, 1)).astype(np.float32)
    table = np.zeros((2, width), np.int32)
    table[0, :3], table[1, :514] = np.arange(3), 3 + np.arange(514)
    q, starts = np.ones((2, 1, 1), np.float32), np.array([0, 1, 2], np.int32)
    arrays = (q, keys, np.array(lens, np.int32), table, starts, np.array([2], np.int32))

    found = reference.ragged_paged_attention(*map(jnp.asarray, arrays), step_elements=2048)

    right = oracle.ragged_paged_attention(*arrays)
    np.testing.assert_allclose(np.asarray(found), right, rtol=1e-5)
