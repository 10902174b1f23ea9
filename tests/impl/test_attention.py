"""The reference attention against the float64 oracle, with poison in every dead cell.

Two checks are applied to it and to planted mutants of it. `check_values`: the output is within the
derived bound if every cell that may not be read is NaN or infinite. `check_reads`: with equal
scores and one-hot values the output is exactly the set of cells that were read.
"""

import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve, frozen
from deep import deep_after
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from conformance.numerics import oracle
from impl.attention import reference
from impl.attention.reference import ragged_paged_attention
from spec.attention import visible
from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.geometry import INVALID

Sequences = list[tuple[int, int]]
"""(queries, cells) of each sequence."""


@frozen(kw_only=True)
class Shape:
    """Array sizes and options, all static: each shape costs one compilation."""

    tokens: int = 23
    rows: int = 10
    q_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    page_size: int = 4
    pages_per_seq: int = 7
    dtype: str = "float32"
    soft_cap: float | None = None
    sliding_window: int | None = None
    sinks: tuple[float, ...] | None = None
    q_block: int = 16
    kv_block_pages: int | None = 16

    @property
    def pages(self) -> int:
        """The size of the pool: pages for every row, and two that belong to none."""
        return self.rows * self.pages_per_seq + 2

    @property
    def math(self) -> dict[str, Any]:
        """The options that change the answer, unlike those of blocking."""
        sinks = None if self.sinks is None else np.array(self.sinks, np.float32)
        own = {"soft_cap": self.soft_cap, "sliding_window": self.sliding_window}
        return {"scale": 0.4, "sinks": sinks, **own}

    def attend(self, case: "Case") -> NDArray[np.float64]:
        """The answer of the implementation, in float64."""
        blocks = {"q_block": self.q_block, "kv_block_pages": self.kv_block_pages}
        return np.asarray(attend(*map(jnp.asarray, case), **self.math, **blocks), np.float64)


class Case(NamedTuple):
    """The arrays of one call, in the order of the interface."""

    q: NDArray[Any]
    kv_pages: NDArray[Any]
    kv_lens: NDArray[np.int32]
    page_indices: NDArray[np.int32]
    cu_q_lens: NDArray[np.int32]
    num_seqs: NDArray[np.int32]


def reads(case: Case) -> Iterator[tuple[int, int, int]]:
    """(row of q, sequence, position) for each query of the batch."""
    for sequence in range(int(case.num_seqs)):
        first, last = (int(n) for n in case.cu_q_lens[sequence : sequence + 2])
        for row in range(first, last):
            yield row, sequence, int(case.kv_lens[sequence]) - (last - row)


def cell(shape: Shape, case: Case, sequence: int, position: int) -> int:
    """The destination of a position: page * page_size + offset."""
    page = int(case.page_indices[sequence, position // shape.page_size])
    return page * shape.page_size + position % shape.page_size


def cells_read(shape: Shape, case: Case, sequence: int, position: int) -> list[int]:
    """The cells that a query may see, in order, one per visible position."""
    seen = visible(position, int(case.kv_lens[sequence]), shape.sliding_window)
    return [cell(shape, case, sequence, p) for p in seen]


def build(
    shape: Shape, sequences: Sequences, *, seed: int = 0, poison: float = np.nan, shared: int = 0
) -> Case:
    """Random q, K and V; poison in every cell that may not be read, garbage in padded metadata.

    Each row has pages of its own in random order, but every row begins with the same `shared`
    pages, and the entries past its length are INVALID.
    """
    rng = np.random.default_rng(seed)
    own = rng.permutation(shape.pages)[: shape.rows * shape.pages_per_seq]
    table = np.full((shape.rows, shape.pages_per_seq), INVALID, np.int32)
    lengths = np.full(shape.rows, INVALID, np.int32)
    starts = np.full(shape.rows + 1, INVALID, np.int32)
    starts[: len(sequences) + 1] = np.cumsum([0, *(n for n, _ in sequences)])
    for index, (_, length) in enumerate(sequences):
        used = -(-length // shape.page_size)
        table[index, :used] = own.reshape(table.shape)[index, :used]
        table[index, : min(used, shared)] = own[: min(used, shared)]
        lengths[index] = length
    dtype = jnp.dtype(shape.dtype)
    q = rng.normal(size=(shape.tokens, shape.q_heads, shape.head_dim))
    q[starts[len(sequences)] :] = poison
    pool = (shape.pages * shape.page_size, 2 * shape.kv_heads, shape.head_dim)
    kv, count = rng.normal(size=pool), np.asarray(len(sequences), np.int32)
    with np.errstate(over="ignore"):  # a poison that float16 has not is infinite there
        q = q.astype(dtype)
    case = Case(q, kv, lengths, table, starts, count)
    live = {c for _, s, p in reads(case) for c in cells_read(shape, case, s, p)}
    kv[sorted(set(range(len(kv))) - live)] = poison
    with np.errstate(over="ignore"):
        kv = kv.astype(dtype)
    return case._replace(kv_pages=kv.reshape(-1, shape.page_size, *pool[1:]))


def check_values(shape: Shape, case: Case) -> float:
    """Assert that each element is within its bound. Returns the largest error over bound."""
    __tracebackhide__ = True
    assert shape.kv_block_pages is not None, "a bound is for known blocks"
    cells = min(shape.kv_block_pages, shape.pages_per_seq) * shape.page_size
    expected = oracle.ragged_paged_attention(*case, **shape.math)
    bound = oracle.error_bound(*case, **shape.math, block_cells=cells)
    out = shape.attend(case)
    assert np.isfinite(bound).all()
    error = np.abs(out - expected)
    bad = np.argwhere(~(error <= bound))
    assert not len(bad), (
        f"{len(bad)} elements out of bound, the first at [row, head, d] = {bad[0]}: "
        f"{out[tuple(bad[0])]} for {expected[tuple(bad[0])]} +- {bound[tuple(bad[0])]}"
    )
    return float(np.max(error[bound > 0] / bound[bound > 0], initial=0))


def one_hot_values(shape: Shape, case: Case) -> Case:
    """The case with V of cell c the unit vector c in each head, and q and K zero."""
    kv = np.zeros(case.kv_pages.shape, case.kv_pages.dtype)
    cells = shape.pages * shape.page_size
    kv.reshape(cells, 2 * shape.kv_heads, -1)[:, 1::2] = np.eye(cells, shape.head_dim)[:, None]
    return case._replace(q=np.zeros_like(case.q), kv_pages=kv)


def check_reads(shape: Shape, case: Case) -> None:
    """Assert that each query read exactly its own history.

    Scores are all equal and value c is the unit vector c, so an output times the number of
    visible cells counts how often each cell was read.
    """
    __tracebackhide__ = True
    cells = shape.pages * shape.page_size
    assert cells <= shape.head_dim
    out = shape.attend(one_hot_values(shape, case))
    for row, sequence, position in reads(case):
        seen = cells_read(shape, case, sequence, position)
        expected = np.bincount(seen, minlength=shape.head_dim)
        counts = out[row] * max(len(seen), 1)
        assert (np.abs(counts - expected) < 1e-3).all(), (
            f"query at position {position} of sequence {sequence} reads {np.nonzero(expected)[0]}, "
            f"and head 0 read {np.nonzero(np.round(counts[0], 3))[0]}"
        )


BASE = Shape()
SINKS = (-math.inf, -30.0, 1.5, 30.0)
SHAPES = {
    "blocks of 16": BASE,
    "blocks of 1": evolve(BASE, q_block=1, kv_block_pages=1),
    "window inside a page, pages by 3": evolve(BASE, sliding_window=3, q_block=2, kv_block_pages=3),
    "window cutting pages, pages by 2": evolve(BASE, sliding_window=6, q_block=3, kv_block_pages=2),
    "window of 1": evolve(BASE, sliding_window=1, q_block=16, kv_block_pages=1),
    "soft cap": evolve(BASE, soft_cap=1.5, q_block=1, kv_block_pages=2),
    "4 to 1 with soft cap and window": evolve(
        BASE, q_heads=8, soft_cap=0.5, sliding_window=5, q_block=3, kv_block_pages=3
    ),
    "one KV head": evolve(BASE, kv_heads=1, q_block=2, kv_block_pages=16),
    "no groups, wide heads": evolve(BASE, kv_heads=4, head_dim=64, kv_block_pages=2),
    "bfloat16": evolve(BASE, dtype="bfloat16", q_block=3, kv_block_pages=1),
    "float16": evolve(BASE, dtype="float16", q_block=3, kv_block_pages=1),
    "sinks": evolve(BASE, sinks=SINKS, q_block=3, kv_block_pages=2),
    "sinks, a window, a cap": evolve(
        BASE, sinks=SINKS[::-1], soft_cap=1.5, sliding_window=6, q_block=2, kv_block_pages=1
    ),
}
BATCHES: dict[str, Sequences] = {
    "decode at page and block edges": [(1, n) for n in (1, 3, 4, 5, 7, 8, 9, 12, 13, 28)],
    "mixed prefill and decode": [(9, 9), (1, 28), (5, 16), (1, 1), (4, 24), (3, 5)],
    "prefill that fills the batch": [(23, 28)],
    "prefill of one block and a row": [(17, 17), (6, 12)],
    "sequences without cells or queries": [(0, 0), (2, 2), (0, 9), (1, 8), (3, 0), (2, 13)],
    "more queries than cells": [(5, 3), (4, 4), (6, 1)],
    "nothing": [],
}
SMALL = evolve(BASE, tokens=11, rows=4, q_block=3, kv_block_pages=2)
READ_SHAPE = evolve(SMALL, kv_heads=1, head_dim=56, page_size=2, pages_per_seq=6)
WRONG_SHAPES = [
    *(("q", wrong) for wrong in ((23, 4), (23, 4, 9), (23, 3, 8), (0, 4, 8))),
    *(("kv_pages", wrong) for wrong in ((72, 4, 3, 8), (72, 4, 8))),
    *(("page_indices", wrong) for wrong in ((10,), (10, 0))),
    *(("kv_lens", (9,)), ("cu_q_lens", (10,)), ("num_seqs", (2,))),
]
WRONG_OPTIONS: list[tuple[str, Any]] = [
    *((name, wrong) for name in ("q_block", "kv_block_pages") for wrong in (0, -1, 2.0, True)),
    *(("sliding_window", 0), ("soft_cap", 0.0)),
]
attend: Callable[..., jax.Array] = ragged_paged_attention
RIGHT: dict[str, Any] = dict(vars(reference))


@pytest.mark.parametrize("poison", deep_after(1, [np.nan, np.inf]))
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", SHAPES)
def test_attention_is_within_its_bound(name: str, batch: str, poison: float) -> None:
    """Each element is within its derived bound, whatever dead cells, padding and tails hold."""
    check_values(SHAPES[name], build(SHAPES[name], BATCHES[batch], poison=poison))


@st.composite
def sequences(draw: st.DrawFn, shape: Shape) -> Sequences:
    """Ragged batches that fit a shape, with lengths near the edges of pages and blocks."""
    longest = shape.page_size * shape.pages_per_seq
    edges = sorted({abs(n + i) for n in range(0, longest, shape.page_size) for i in (-1, 0, 1)})
    lengths = draw(st.lists(st.sampled_from([*edges, longest - 1, longest]), max_size=shape.rows))
    left, found = shape.tokens, []
    for length in lengths:
        queries = draw(st.integers(0, min(left, length)))
        left -= queries
        found.append((queries, length))
    return found


@settings(deadline=None, max_examples=150)
@given(data=st.data(), name=st.sampled_from(sorted(SHAPES)), seed=st.integers(0, 2**16))
def test_any_ragged_batch_is_within_its_bound(data: st.DataObject, name: str, seed: int) -> None:
    """Drawn lengths, shared prefixes and poisons never leave the bound."""
    batch, shared = data.draw(st.tuples(sequences(SHAPES[name]), st.integers(0, 2)))
    poison = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 3e38]))
    case = build(SHAPES[name], batch, seed=seed, poison=poison, shared=shared)

    check_values(SHAPES[name], case)


@settings(deadline=None, max_examples=100)
@given(data=st.data(), window=st.sampled_from([None, 3]), seed=st.integers(0, 2**16))
def test_a_query_reads_its_history(data: st.DataObject, window: int | None, seed: int) -> None:
    """The set of cells read, recovered from the output, is the visible history and nothing else."""
    shape = evolve(READ_SHAPE, sliding_window=window)
    batch, shared = data.draw(st.tuples(sequences(shape), st.integers(0, 2)))

    check_reads(shape, build(shape, batch, seed=seed, shared=shared))


@pytest.mark.parametrize("window", [None, 3, 4])
def test_a_needle_at_each_edge_of_the_mask_is_found_or_not(window: int | None) -> None:
    """A key that alone matches a query decides its output exactly if the query may see it."""
    shape = evolve(READ_SHAPE, sliding_window=window)
    case = one_hot_values(shape, build(shape, [(4, 12), (1, 11), (5, 9)]))
    case.kv_pages[..., 0::2, :] = case.kv_pages[..., 1::2, :] * 200
    needles: dict[tuple[int, int], tuple[int, bool]] = {}
    for row, sequence, position in reads(case):
        length = int(case.kv_lens[sequence])
        oldest = visible(position, length, window).start
        edges = [max(oldest - 1, 0), oldest, position, min(position + 1, length - 1)]
        for head, edge in enumerate(edges):
            needle = cell(shape, case, sequence, edge)
            case.q[row, head, needle] = 1
            needles[row, head] = needle, oldest <= edge <= position

    out = shape.attend(case)

    assert {True, False} == {seen for _, seen in needles.values()}
    for (row, head), (needle, seen) in needles.items():
        assert abs(out[row, head, needle] - seen) < 1e-6


def test_a_page_may_occur_twice_in_a_row() -> None:
    """A page that stands twice in a row is read once for each entry."""
    case = build(READ_SHAPE, [(2, 9), (1, 4)])
    case.page_indices[0, :4] = case.page_indices[0, [0, 1, 0, 0]]

    check_reads(READ_SHAPE, case)


@pytest.mark.parametrize("entry", [INVALID, -1, READ_SHAPE.pages])
def test_an_entry_behind_every_window_may_hold_anything(entry: int) -> None:
    """A page in which no query sees a cell may be released, and its id be out of range."""
    shape = evolve(READ_SHAPE, sliding_window=3)
    case = build(shape, [(2, 8), (1, 11)])
    case.page_indices[0, :2] = entry
    case.page_indices[1, :4] = entry

    check_reads(shape, case)


@pytest.mark.parametrize("entry", [INVALID, -1, READ_SHAPE.pages])
def test_an_id_out_of_range_reads_from_the_pool(entry: int) -> None:
    """A live entry with an id out of range changes its own sequence alone, and reads no garbage."""
    case = build(READ_SHAPE, [(1, 8), (1, 8)], poison=0.0)
    right = READ_SHAPE.attend(case)
    case.page_indices[0, 1] = entry

    out = READ_SHAPE.attend(case)

    assert np.isfinite(out).all()
    np.testing.assert_array_equal(right[1:], out[1:])


def test_a_nan_in_a_live_cell_is_not_hidden() -> None:
    """NaN in a visible V comes out as NaN, for the sequence that sees it and no other."""
    case = build(BASE, [(1, 5), (1, 6)])
    case.kv_pages[case.page_indices[0, 1], 0, 1] = np.nan

    out = BASE.attend(case)

    assert np.isnan(out[0, :2]).all()
    assert np.isfinite(out[0, 2:]).all()
    assert np.isfinite(out[1:]).all()


def test_it_nests_in_jit_and_compiles_once() -> None:
    """Lengths are data, so batches of one shape share a compilation, also with num_seqs i32[1]."""
    step: Any = jax.jit(partial(attend, **BASE.math))
    for batch in BATCHES.values():
        case = build(BASE, batch)
        outer = step(*case._replace(num_seqs=case.num_seqs[None]))
        np.testing.assert_array_equal(BASE.attend(case), np.asarray(outer, "f8"))

    assert step._cache_size() == 1


@pytest.mark.parametrize(("name", "wrong"), WRONG_OPTIONS)
def test_an_option_out_of_range_is_named(name: str, wrong: object) -> None:
    """A block size, window or cap out of range is invalid input that names it."""
    with pytest.raises(InvalidInput, match=f"{name}: saw {wrong!r}, allowed"):
        attend(*build(BASE, []), **{name: wrong})


@pytest.mark.parametrize(("argument", "wrong"), WRONG_SHAPES)
def test_a_shape_that_does_not_fit_is_named(argument: str, wrong: tuple[int, ...]) -> None:
    """An array of a wrong shape is invalid input that shows the shape."""
    case = build(BASE, [])._replace(**{argument: np.zeros(wrong, np.int32)})

    with pytest.raises(InvalidInput, match=re.escape(str(wrong))):
        attend(*case)


def plant(patch: pytest.MonkeyPatch, name: str, wrong: Callable[..., Any]) -> None:
    """Replace a function of the implementation, and compile it anew."""
    patch.setattr(reference, name, wrong)
    # jit remembers what it compiled by the function object, so it is given a new one.
    fresh = jax.jit(partial(RIGHT["_attend"].__wrapped__), static_argnums=7)
    patch.setattr(reference, "_attend", fresh)


def _mask(*, newest: int, oldest: int) -> Callable[..., Any]:
    """A mask whose newest and oldest visible positions are moved by these numbers."""

    def wrong(positions: Any, cells: Any, window: int) -> Any:
        return RIGHT["_visible"](positions + newest, cells, window + newest - oldest)

    return wrong


def _no_rescaling(running: Any, *rest: Any) -> Any:
    fresh = RIGHT["_absorb"](running._replace(accumulator=0 * running.accumulator), *rest)
    return fresh._replace(accumulator=fresh.accumulator + running.accumulator)


def _heads_swapped(*arguments: Any) -> Any:
    taken = RIGHT["_gather"](*arguments)
    return taken._replace(keys=taken.keys[:, ::-1], values=taken.values[:, ::-1])


def _unchanged(array: Any, _: Any) -> Any:
    return array


MUTANTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "a key past the length": ("_visible", _mask(newest=1, oldest=0)),
    "not the key of itself": ("_visible", _mask(newest=-1, oldest=0)),
    "a window with <= for <": ("_visible", _mask(newest=0, oldest=-1)),
    "a window one too narrow": ("_visible", _mask(newest=0, oldest=1)),
    "V of dead cells not blanked": ("_blank", _unchanged),
    "no rescaling of the accumulator": ("_absorb", _no_rescaling),
    "KV heads in the wrong order": ("_gather", _heads_swapped),
}


@pytest.mark.parametrize("title", deep_after(3, MUTANTS))
def test_the_value_check_catches_a_planted_bug(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant of the implementation fails the check that the implementation passes."""
    shape = SHAPES["window cutting pages, pages by 2"]
    case = build(shape, [(9, 11), (1, 28), (13, 19)])
    check_values(shape, case)
    plant(monkeypatch, *MUTANTS[title])

    with pytest.raises(AssertionError, match="out of bound"):
        check_values(shape, case)


def _for_nothing_too(end: Any, sinks: Any) -> Any:
    """A sink beside nothing: -inf - -inf."""
    sink = sinks.reshape(1, *end.largest.shape[1:3], 1)
    largest = jnp.maximum(end.largest, sink)
    rescale = jnp.exp(end.largest - largest)
    total = end.total * rescale + jnp.exp(sink - largest)
    return end._replace(total=total, accumulator=end.accumulator * rescale[..., None])


WRONG_SINKS: dict[str, Callable[..., Any]] = {
    "for a query that sees nothing": _for_nothing_too,
    "forgotten": lambda end, _: end,
    "scaled": lambda end, sinks: RIGHT["_with_sinks"](end, 0.4 * sinks),
    "of another head": lambda end, sinks: RIGHT["_with_sinks"](end, jnp.roll(sinks, 1)),
    "not relative to the largest score": lambda end, sinks: end._replace(
        total=end.total
        + jnp.where(end.total > 0, jnp.exp(sinks.reshape(1, *end.total.shape[1:3], 1)), 0.0)
    ),
}


@pytest.mark.parametrize("title", WRONG_SINKS)
def test_the_value_check_catches_a_wrong_sink(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that is wrong fails the check, also where only a query that sees nothing shows it."""
    sinks = (-math.inf, -30.0, 1.5, 300.0)
    shape = evolve(SHAPES["sinks"], sinks=sinks)
    case = build(shape, BATCHES["more queries than cells"])
    check_values(shape, case)
    plant(monkeypatch, "_with_sinks", WRONG_SINKS[title])

    with pytest.raises(AssertionError, match="out of bound"):
        check_values(shape, case)


@pytest.mark.parametrize("sink", [math.inf, math.nan])
def test_a_sink_of_no_finite_weight_shows(sink: float) -> None:
    """Answers of its head that see a cell are NaN, and no others."""
    shape = evolve(SHAPES["sinks"], sinks=(0.0, sink, 0.0, 0.0))

    out = shape.attend(build(shape, [(2, 1), (1, 9)]))

    assert not out[0].any()
    assert np.isnan(out[1:3, 1]).all()
    assert np.isfinite(np.delete(out, 1, axis=1)).all()


def test_sinks_that_do_not_fit_are_refused() -> None:
    """One for each query head, in float32; the remedy says what to do."""
    case = build(BASE, [])
    for wrong, what in ((np.zeros(3, np.float32), "(3,)"), (np.zeros(4, np.float16), "float16")):
        with pytest.raises(InvalidInput, match=f"sinks: saw '?{re.escape(what)}"):
            attend(*case, sinks=wrong)


def test_fewer_query_heads_in_a_group_are_padded() -> None:
    """The remedy for groups of several sizes: zeros up to the largest one, whose results go."""
    shape = evolve(BASE, q_heads=6)
    case = build(shape, [(3, 9), (1, 28)], poison=0.0)
    with pytest.raises(InvalidInput, match="Pad the query heads of each KV head with zeros"):
        attend(*case._replace(q=case.q[:, :5]), **shape.math)
    padded = case.q.copy()
    padded[:, 5] = 0.0

    out = shape.attend(case._replace(q=padded))

    for kv_head, heads in enumerate(([0, 1, 2], [3, 4])):
        pool = case.kv_pages[:, :, 2 * kv_head : 2 * kv_head + 2]
        alone = case._replace(q=case.q[:, heads], kv_pages=pool)
        expected = oracle.ragged_paged_attention(*alone, **shape.math)
        assert np.abs(expected - out[:, heads]).max() < 1e-5


def test_a_narrower_head_is_padded() -> None:
    """The remedy for another head_dim than that of the pool: zeros, whose results are cut."""
    case = build(BASE, [(3, 9), (1, 28)], poison=0.0)
    narrow = case._replace(q=case.q[..., :5], kv_pages=np.ascontiguousarray(case.kv_pages[..., :5]))
    with pytest.raises(InvalidInput, match="Pad the narrower one with zeros"):
        attend(*case._replace(q=narrow.q))
    q = np.pad(narrow.q, ((0, 0), (0, 0), (0, 3)))
    pool = np.pad(narrow.kv_pages, ((0, 0), (0, 0), (0, 0), (0, 3)))
    expected = oracle.ragged_paged_attention(*narrow, **BASE.math)

    out = BASE.attend(case._replace(q=q, kv_pages=pool))

    assert not out[..., 5:].any()
    assert np.abs(out[..., :5] - expected).max() < 1e-5


@pytest.mark.parametrize("title", ["a key past the length", "a window one too narrow"])
def test_the_read_check_catches_a_wrong_mask(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask that is wrong by one shows in the cells read, even if every cell is finite."""
    shape = evolve(READ_SHAPE, sliding_window=3)
    case = build(shape, [(4, 11), (1, 12), (2, 5)])
    check_reads(shape, case)
    plant(monkeypatch, *MUTANTS[title])

    with pytest.raises(AssertionError, match="head 0 read"):
        check_reads(shape, case)
