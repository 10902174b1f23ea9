"""The oracle beside the spec's attention, and its error bound beside arithmetic that rounds."""

import math
from functools import partial
from typing import Any, Final

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from conformance.numerics import oracle
from spec.attention import NO_SINK, naive, online, visible
from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.geometry import INVALID

PAGE_SIZE, PAGES, WIDTH = 4, 12, 8
Arrays = tuple[NDArray[Any], ...]

numbers = st.floats(-3, 3, allow_subnormal=False)
vectors = st.lists(numbers, min_size=2, max_size=2)
caps = st.sampled_from([None, 0.5, 4.0])


def batch(seed: int, *, dtype: str = "float32", size: float = 1.0) -> Arrays:
    """Two sequences of 18 and 7 cells, with 6 and 3 queries, and two query heads per KV head."""
    rng = np.random.default_rng(seed)
    table = np.full((3, 5), INVALID)
    order = rng.permutation(PAGES)
    table[0], table[1, :2] = order[:5], order[5:7]
    q = size * rng.normal(size=(11, 4, WIDTH))
    kv = size * rng.normal(size=(PAGES, PAGE_SIZE, 4, WIDTH))
    lengths, starts = np.asarray([18, 7, INVALID]), np.asarray([0, 6, 9, INVALID])
    return (
        q.astype(jnp.dtype(dtype)),
        kv.astype(jnp.dtype(dtype)),
        lengths,
        table,
        starts,
        np.asarray(2),
    )


@pytest.mark.parametrize(
    ("query", "kv_len", "window", "seen"),
    [
        (5, 6, None, range(6)),
        (5, 9, None, range(6)),
        (5, 4, None, range(4)),
        (5, 6, 1, range(5, 6)),
        (5, 6, 2, range(4, 6)),
        (1, 6, 9, range(2)),
        (-1, 6, None, range(0)),
        (0, 0, None, range(0)),
    ],
)
def test_what_a_query_sees(query: int, kv_len: int, window: int | None, seen: range) -> None:
    """A query sees itself and the positions before it, and a window counts the query itself."""
    assert seen == visible(query, kv_len, window)


def test_a_window_of_nothing_is_invalid() -> None:
    """A window or a tile below 1 is invalid input."""
    with pytest.raises(InvalidInput, match="window: saw 0"):
        visible(3, 4, 0)
    with pytest.raises(InvalidInput, match="tile: saw 0"):
        online([1.0], [[1.0]], [[1.0]], tile=0, scale=1.0)


def test_attention_by_hand() -> None:
    """Scores 0 and ln 3 weigh 1/4 and 3/4, and the answer without cells is zero."""
    keys, values = [[0.0, 9.0], [math.log(3), 9.0]], [[4.0, 0.0], [8.0, 4.0]]

    assert [7.0, 3.0] == pytest.approx(naive([1.0, 0.0], keys, values, scale=1.0))
    assert [0.0, 0.0] == naive([1.0, 0.0], [], [], scale=1.0)
    assert [0.0, 0.0] == online([1.0, 0.0], [], [], tile=2, scale=1.0)


@pytest.mark.parametrize("attend", [naive, partial(online, tile=1), partial(online, tile=2)])
def test_a_sink_is_a_score_without_a_value(attend: Any) -> None:
    """Scores 0 and ln 3 and a sink of ln 4 weigh 1/8, 3/8 and 1/2; neither scaled nor capped."""
    keys, values = [[0.0], [math.log(3) / 2]], [[8.0], [16.0]]

    for sink, mean in ((math.log(4), 7.0), (NO_SINK, 14.0), (-1e300, 14.0), (1e300, 0.0)):
        assert [mean] == pytest.approx(attend([1.0], keys, values, scale=2.0, sink=sink))
    capped = attend([1.0], [[0.0]], [[6.0]], scale=2.0, soft_cap=0.5, sink=math.log(2))
    assert [2.0] == pytest.approx(capped)
    assert [0.0] == attend([1.0], [], [], scale=1.0, sink=3.0)
    for sink in (math.inf, math.nan):
        assert all(map(math.isnan, attend([1.0], keys, values, scale=2.0, sink=sink)))


@pytest.mark.parametrize("far", [0.0, -800.0, 800.0, -1e6, 1e6, -1e300, 1e300])
@pytest.mark.parametrize("tile", [1, 2])
def test_scores_far_from_zero_weigh_as_any(far: float, tile: int) -> None:
    """Scores that are equal weigh the same, however far below 0 or above it they are."""
    keys, values = [[far], [far]], [[1.0], [3.0]]

    assert [2.0] == online([1.0], keys, values, tile=tile, scale=1.0)
    assert [2.0] == naive([1.0], keys, values, scale=1.0)


@given(
    q=vectors,
    cells=st.lists(st.tuples(vectors, vectors), min_size=1, max_size=9),
    tile=st.integers(1, 10),
    soft_cap=caps,
    sink=st.just(NO_SINK) | numbers | st.sampled_from([-1e300, 1e300]),
)
def test_online_softmax_is_softmax(
    q: list[float],
    cells: list[tuple[list[float], list[float]]],
    tile: int,
    soft_cap: float | None,
    sink: float,
) -> None:
    """One pass over tiles of any size equals two passes over all cells."""
    keys, values = [k for k, _ in cells], [v for _, v in cells]

    expected = naive(q, keys, values, scale=0.7, soft_cap=soft_cap, sink=sink)

    tiled = online(q, keys, values, tile=tile, scale=0.7, soft_cap=soft_cap, sink=sink)
    assert expected == pytest.approx(tiled, rel=1e-12, abs=1e-12)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**16),
    window=st.sampled_from([None, 1, 3, 6]),
    soft_cap=caps,
    sinks=st.none() | st.permutations([NO_SINK, -30.0, 0.5, 3.0]),
)
def test_the_oracle_is_the_specs_attention(
    seed: int, window: int | None, soft_cap: float | None, sinks: list[float] | None
) -> None:
    """The oracle on pages and heads equals the spec's attention on the visible cells."""
    q, kv, lengths, table, starts, _ = arrays = batch(seed)
    out = oracle.ragged_paged_attention(
        *arrays, scale=0.3, soft_cap=soft_cap, sliding_window=window, sinks=sinks
    )
    for row in range(9):
        sequence = int(row >= 6)
        position = int(lengths[sequence] - (starts[sequence + 1] - row))
        seen = visible(position, int(lengths[sequence]), window)
        places = [(table[sequence, p // PAGE_SIZE], p % PAGE_SIZE) for p in seen]
        for head in range(4):
            keys = [kv[place][2 * (head // 2)].tolist() for place in places]
            values = [kv[place][2 * (head // 2) + 1].tolist() for place in places]
            given: Any = {"soft_cap": soft_cap, "sink": sinks[head] if sinks else NO_SINK}
            expected = naive(q[row, head].tolist(), keys, values, scale=0.3, **given)
            assert expected == pytest.approx(out[row, head].tolist(), rel=1e-12, abs=1e-13)

    np.testing.assert_array_equal(0, out[9:])


def test_position_5_of_row_2_7_is_read_from_page_7_offset_1() -> None:
    """The hand example: page size 4, row [2, 7], position 5 is destination 29."""
    kv = np.full((8, 4, 2, 1), np.nan)
    kv[7, 1] = [[1.0], [5.0]]

    out = oracle.ragged_paged_attention(
        np.ones((1, 1, 1)), kv, [6], [[2, 7]], [0, 1], [1], sliding_window=1
    )

    assert out.item() == 5.0


def test_a_visible_position_without_a_page_is_invalid() -> None:
    """Metadata that the interface forbids are invalid input with the value seen."""
    q, kv, lengths, table, starts, count = batch(0)
    missing = table.copy()
    missing[1, 1] = INVALID

    with pytest.raises(InvalidInput, match=rf"page_indices\[1, 1\]: saw {INVALID}"):
        oracle.ragged_paged_attention(q, kv, lengths, missing, starts, count)
    with pytest.raises(InvalidInput, match=r"page_indices\[0, 5\]"):
        oracle.ragged_paged_attention(q, kv, lengths + 3, table, starts, count)
    with pytest.raises(InvalidInput, match="cu_q_lens"):
        oracle.ragged_paged_attention(q[:8], kv, lengths, table, starts, count)
    with pytest.raises(InvalidInput, match="block_cells: saw 0"):
        oracle.error_bound(q, kv, lengths, table, starts, count, block_cells=0)
    with pytest.raises(InvalidInput, match="dtype: saw 'int8'"):
        oracle.error_bound(q, kv, lengths, table, starts, count, result=np.int8)
    with pytest.raises(InvalidInput, match="weights: saw 'float16'"):
        oracle.error_bound(q, kv, lengths, table, starts, count, weights=np.float16)


def rounding_online(
    q: NDArray[Any],
    keys: NDArray[Any],
    values: NDArray[Any],
    block: int,
    soft_cap: float | None,
    sink: float | None = None,
    scales: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Blocked online softmax, with every operation and every partial sum rounded to q's dtype.

    It begins with the sink, if there is one. scales [cells, 2]: of K and of V.
    """
    kind = q.dtype.type
    largest, total, accumulator = kind(-np.inf), kind(0), np.zeros_like(values[0])
    if sink is not None:
        largest, total = kind(sink), kind(1)
    for start in range(0, len(keys), block):
        scores, end = [], start + block
        by = np.ones((len(keys), 2), kind) if scales is None else scales
        for key, (own, _) in zip(keys[start:end], by[start:end], strict=True):
            dot = kind(0)
            for a, b in zip(q, key, strict=True):
                dot = dot + a * b
            raw = dot * own * kind(0.3)
            capped = raw if soft_cap is None else kind(soft_cap) * np.tanh(raw / kind(soft_cap))
            scores.append(capped)
        new = max(largest, *scores)
        rescale = np.exp(largest - new)
        weights = [np.exp(score - new) for score in scores]
        block_sum, block_mean = kind(0), np.zeros_like(accumulator)
        for weight, value, (_, own) in zip(weights, values[start:end], by[start:end], strict=True):
            block_sum, block_mean = block_sum + weight, block_mean + weight * own * value
        total, accumulator = total * rescale + block_sum, accumulator * rescale + block_mean
        largest = new
    return np.asarray(accumulator / total)


def shares_of_bound(
    dtype: str,
    block: int,
    soft_cap: float | None,
    seed: int,
    sinks: tuple[float, ...] | None = None,
    scales: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """The error of `rounding_online` over the bound, for each element of each query."""
    q, kv, lengths, table, starts, _ = arrays = batch(seed, dtype=dtype)
    asked: Any = {"scale": 0.3, "soft_cap": soft_cap, "sinks": sinks, "scales": scales}
    expected = oracle.ragged_paged_attention(*arrays, **asked)
    bound = oracle.error_bound(*arrays, **asked, block_cells=block, accumulator=dtype)
    shares = []
    for row in range(9):
        sequence = int(row >= 6)
        seen = range(int(lengths[sequence] - (starts[sequence + 1] - row)) + 1)
        places = [(table[sequence, p // PAGE_SIZE], p % PAGE_SIZE) for p in seen]
        cells = np.stack([kv[place] for place in places])
        by = None if scales is None else np.stack([scales[place] for place in places])
        for head in range(4):
            kv_head = 2 * (head // 2)
            held = cells[:, kv_head], cells[:, kv_head + 1]
            sink = None if sinks is None else sinks[head]
            own = None if by is None else by[:, kv_head : kv_head + 2]
            out = rounding_online(q[row, head], *held, block, soft_cap, sink, own)
            shares.append(np.abs(out.astype(np.float64) - expected[row, head]) / bound[row, head])
    return np.asarray(shares)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("block", [1, 3, 20])
@pytest.mark.parametrize("soft_cap", [None, 0.5])
def test_the_bound_holds_where_rounding_is_coarse(
    dtype: str, block: int, soft_cap: float | None
) -> None:
    """Rounded arithmetic stays within the bound and comes near it, in coarse float16 too."""
    shares = np.stack([shares_of_bound(dtype, block, soft_cap, seed) for seed in range(3)])

    assert shares.max() <= 1
    assert shares.max() > 0.01, "the bound is too loose to find mistakes"


SINKS: Final = (-4.0, 0.25, 1.5, 4.0)
"""Exact in 16 bits: far below the scores, among them, and above them."""


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("block", [1, 3, 20])
@pytest.mark.parametrize("soft_cap", [None, 0.5])
def test_the_bound_holds_with_sinks(dtype: str, block: int, soft_cap: float | None) -> None:
    """Of each head, rounded arithmetic stays within the bound and comes near it."""
    found = [shares_of_bound(dtype, block, soft_cap, seed, SINKS) for seed in range(3)]
    shares = np.stack(found).reshape(3, 9, 4, WIDTH)

    assert shares.max() <= 1
    assert shares.max(axis=(0, 1, 3)).min() > 0.005, "the bound is too loose to find mistakes"


def factors(dtype: str, seed: int) -> NDArray[Any]:
    """Scales of both signs and several magnitudes for the cells of `batch`."""
    kv = batch(seed, dtype=dtype)[1]
    rng = np.random.default_rng((seed, 5))
    drawn = rng.choice([-2.7, -1.0, 0.0, 0.11, 0.3, 1.9], kv.shape[:3])
    return np.asarray(drawn.astype(dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("block", [1, 3, 20])
@pytest.mark.parametrize("soft_cap", [None, 0.5])
def test_the_bound_holds_with_scales_of_cells(
    dtype: str, block: int, soft_cap: float | None
) -> None:
    """Rounded arithmetic that scales scores and weights stays within the bound, and comes near."""
    shares = np.stack(
        [
            shares_of_bound(dtype, block, soft_cap, seed, scales=factors(dtype, seed))
            for seed in range(3)
        ]
    )

    assert shares.max() <= 1
    assert shares.max() > 0.01, "the bound is too loose to find mistakes"


def test_the_oracle_reads_what_is_stored_times_its_scales() -> None:
    """Its answer is that over the products, and scales of 1 add roundings to the bound alone."""
    q, kv, *rest = batch(2)
    by = factors("float64", 2)
    answer: Any = partial(oracle.ragged_paged_attention, q)
    bound: Any = partial(oracle.error_bound, q, kv, *rest)

    products = np.asarray(kv, np.float64) * by[..., None]
    np.testing.assert_allclose(answer(products, *rest), answer(kv, *rest, scales=by), rtol=1e-12)
    ones = np.ones(kv.shape[:3])
    np.testing.assert_array_equal(answer(kv, *rest), answer(kv, *rest, scales=ones))
    seen = bound() > 0
    assert (bound(scales=ones)[seen] > bound()[seen]).all()
    assert (bound(scales=ones)[seen] < 1.2 * bound()[seen]).all()
    with pytest.raises(InvalidInput, match=r"scales: saw \(3,\)"):
        bound(scales=np.ones(3))


def test_a_bound_with_sinks_is_no_bound_without() -> None:
    """No sink changes nothing, a large one leaves little, and a wrong one is noticed."""
    arrays: Any = batch(1)
    bound: Any = partial(oracle.error_bound, *arrays, block_cells=20)
    answer: Any = partial(oracle.ragged_paged_attention, *arrays)
    none, some = [-np.inf] * 4, [0.0, 1.0, 2.0, 50.0]

    np.testing.assert_array_equal(bound(), bound(sinks=none))
    np.testing.assert_array_equal(answer(), answer(sinks=none))
    wrong = np.abs(answer() - answer(sinks=some)) > bound(sinks=some)
    assert wrong[:9].mean() > 0.99
    assert (bound(sinks=some)[:9, 3] < bound()[:9, 3]).all()
    with pytest.raises(InvalidInput, match=r"sinks: saw \(3,\)"):
        bound(sinks=[0.0] * 3)


def test_the_bound_of_a_result_that_may_overflow_is_infinite() -> None:
    """Values beyond float16 give infinity there, and are finite in bfloat16."""
    pool = np.array([0.0, 60000.0, 0.0, 70000.0], np.float32).reshape(1, 2, 2, 1)
    arrays: Any = (np.ones((2, 1, 1), np.float32), pool, [1, 2], [[0], [0]], [0, 1, 2], 2)

    narrow = oracle.error_bound(*arrays, result=np.float16, sliding_window=1)

    assert [True, False] == np.isfinite(narrow).ravel().tolist()
    wide = oracle.error_bound(*arrays, result=ml_dtypes.bfloat16, sliding_window=1)
    assert np.isfinite(wide).all()


def test_the_bound_grows_with_what_is_unknown() -> None:
    """The bound of an unknown blocking covers blocks of one cell, and a narrow result widens it."""
    arrays = batch(1)
    known, unknown, narrow = (
        oracle.error_bound(*arrays, block_cells=20),
        oracle.error_bound(*arrays),
        oracle.error_bound(*arrays, block_cells=20, result=jnp.bfloat16),
    )

    assert (known[:9] < unknown[:9]).all()
    assert (known[:9] < narrow[:9]).all()
    np.testing.assert_array_equal(0, known[9:])


def test_the_bound_is_of_a_result_in_the_precision_of_the_queries() -> None:
    """A value half way between two bfloat16 numbers may become either, if none other is given."""
    q = np.ones((1, 1, 1), ml_dtypes.bfloat16)
    pool = np.array([1.0, 1.0 + 2.0**-8], np.float32).reshape(1, 1, 2, 1)
    arrays = (q, pool, [1], [[0]], [0, 1], 1)

    assert oracle.error_bound(*arrays)[0, 0, 0] >= 2.0**-8
    assert oracle.error_bound(*arrays, result=np.float32)[0, 0, 0] < 2.0**-8


def test_the_bound_decides_nothing_where_nothing_can_be_said() -> None:
    """If scores are so large that rounding could reorder them, the bound is infinite."""
    bound = oracle.error_bound(*batch(2, size=100.0), accumulator=np.float16)

    assert np.isinf(bound[:9]).any()
    assert not np.isnan(bound).any()


def test_elementary_functions_are_as_good_as_assumed() -> None:
    """On this platform exp and tanh in float32 are as accurate as the bound assumes."""
    tiny, unit = 2.0**-126, 2.0**-24
    x = np.linspace(-87, 0, 200_001, dtype=np.float32)
    for found, exact in (
        (jnp.exp(x), np.exp(x.astype(np.float64))),
        (jnp.tanh(x / 8), np.tanh(x.astype(np.float64) / 8)),
    ):
        error = np.abs(np.asarray(found, np.float64) - exact)
        assert (error <= oracle.ELEMENTARY * unit * np.abs(exact) + tiny).all()

    assert float(jnp.exp(jnp.float32(0))) == 1
