"""Ragged batches that are hard on a kernel, and their arrays.

There are few shapes, since each costs a compilation; the contents of a batch are drawn for each.
Every invisible cell is NaN (or the largest integer). Needles stand at the edges of masks: a needle
is a key so similar to one query that the answer of a query that sees it is the needle's value.
"""

from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from functools import partial
from itertools import combinations
from typing import Any, Final, TypedDict

import numpy as np
from attrs import evolve, field, frozen
from hypothesis import strategies as st
from numpy.typing import NDArray

from spec.attention import visible

FAR: Final = 1 << 20
"""A page id outside of every pool."""
RESERVED: Final = 32
"""Entries past the end of a row that go on rising."""
LOUD: Final = 16.0
"""The score of a needle: its weight exceeds all others together."""
HUGE: Final = 2.0**100
"""The factor of V in a batch of extremes, for every second number; the others are divided by it."""
MULTIPLES: Final = (1, 2, 3, 4)
"""How many units of a kernel's work a drawn length has, or one more or less than that."""
MOST_UNITS: Final = 12
"""How many units an edge is from the beginning of a sequence, at most."""
STEEP: Final = 64.0
"""The factor of scores in a steep batch: in float32 `exp` of a score without its maximum overflows.
"""
STEEPEST: Final = 1024.0
"""The factor in every other steep batch, if the dtype of queries has such numbers and cells have no
scales: scores are then far below a number like -1000 that stands for none. With much larger ones no
error has a bound.
"""

OF_WIDE_RANGE: Final = ("bfloat16", "float32")
"""Dtypes of queries and of a pool with which V may be as large as HUGE."""

SINKS: Final = (-np.inf, -30.0, 0.0, 3.0, 12.0, 30.0)
"""None, one that vanishes, some near the largest score, and one that leaves little to the cells.

In a steep batch they are STEEP times as large too, unless a cap keeps the scores small.
"""
SCALES: Final = (0.0, -0.03, 0.05, 0.3, -1.0, 2.5)
"""The scales of a cell; each number is taken as often as any other."""

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
Lens = tuple[tuple[int, int], ...]
"""Queries and cells of each sequence."""
Numbers = NDArray[Any]
"""Of any dtype, those of ml_dtypes among them."""


class Needle(Enum):
    """The place of a needle, relative to the query that it matches."""

    LAST = "the last position: kv_len - 1"
    PAST = "past the end: kv_len"
    NEXT = "the position after the query"
    OWN = "the query's own position"
    BEHIND = "just behind the window: q - w"
    OLDEST = "the oldest in the window: q - w + 1"


EVERY: Final = -1
"""In place of a query: each of its sequence has such a needle."""
HIDDEN: Final = (Needle.PAST, Needle.NEXT, Needle.BEHIND)
"""Where the query of a needle sees nothing."""
NEWEST: Final = (Needle.OWN, Needle.NEXT)
"""At the edge of what causality leaves to a query."""
OLDEST: Final = (Needle.OLDEST, Needle.BEHIND)
"""At the edge of what a window leaves to it."""


class Lost(Enum):
    """Why the own tokens of a sequence have no cell, where a kernel writes them."""

    BEFORE = "their positions are below 0"
    PAST = "their positions are past the row"
    OUTSIDE = "their pages are outside of the pool"
    SOME = "the destinations of some of them are out of range"


class Options(TypedDict, total=False):
    """What attention may be asked for, by the names of `kernel_under_test.OPTIONS`."""

    scale: float
    soft_cap: float
    sliding_window: int
    k_scale: float
    v_scale: float


PLAIN: Final[Options] = {}
"""Attention without any."""


class BatchData(TypedDict):
    """A batch as plain data, for JSON: lists for tuples, and the names of needles."""

    lens: list[list[int]]
    seed: int
    needles: list[tuple[int, int, str]]
    shared: list[int]
    repeated: list[int]
    ordered: bool
    far: bool
    behind: bool
    steep: bool
    extreme: bool
    plain: bool
    lost: tuple[int, str] | None


@frozen(kw_only=True)
class Sizes:
    """The static sizes. heads: (q_heads, kv_heads, head_dim). kinds: dtypes of q and of the pool.

    rows: the capacity in sequences. fewest: sequences of a batch that is drawn. spare: pages that
    no row needs; half of the ids are then the largest ones. sinks: whether query heads have them;
    their values are those of a batch. scales: whether each cell and KV head has them. plans: block
    sizes of our kernel, by their names in `block_sizes`. roomy: whether there is room for all that
    such a kernel can do; other shapes are here for something else. races, append, attend:
    whether our kernel is tried with copies at once, which show races, with new cells, and without;
    with shapes that copy alike it need not be.
    """

    name: str
    heads: tuple[int, int, int]
    page_size: int
    kinds: tuple[str, str] = ("bfloat16", "bfloat16")
    pages_per_seq: int = 9
    rows: int = 5
    tokens: int = 40
    fewest: int = 1
    spare: int = 0
    options: Options = field(factory=lambda: Options(scale=0.09))
    sinks: bool = False
    scales: bool = False
    plans: tuple[str, ...] = ("small",)
    roomy: bool = True
    races: bool = False
    append: bool = False
    attend: bool = True

    @property
    def pages(self) -> int:
        """Pages of the pool: one for each entry of the table, those to spare, and one of nobody."""
        return self.rows * self.pages_per_seq + self.spare + 1

    @property
    def capacity(self) -> int:
        """Cells that a row of the table can name."""
        return self.page_size * self.pages_per_seq

    @property
    def asked(self) -> tuple[str, ...]:
        """What a function must take, by the names of `kernel_under_test.OPTIONS`."""
        return (*self.options, *["sinks"] * self.sinks, *["scales"] * self.scales)

    @property
    def window(self) -> int | None:
        """Positions visible to a query, its own included."""
        return self.options.get("sliding_window")


@frozen(kw_only=True)
class Batch:
    """One batch. lens: (queries, cells) of each sequence. seed: of numbers and of page ids.

    needles: (sequence, query of it or EVERY, where). shared: sequences that share the full pages of
    the first, as far as both have them. repeated: sequences whose second page is the first one
    again. ordered: whether page ids rise, as where an allocator has just begun; in every other row
    two neighbours have changed places. far: whether entries past the end of a row name no page at
    all, or a page full of NaN; see `goes_on`. behind: whether cells behind every window are NaN as
    well; they are in use, but a page that was returned might be another's. steep: whether scores
    are STEEP times as large, or more. extreme: whether V is as large and as small as HUGE, and K
    and a query are 0 in places. plain: dead cells are 0, as in most tests of kernels. lost: a
    sequence whose own tokens have no cell, and why, if the kernel writes them; its answer is then
    undefined. The queries of the last sequence may go past the end of q: there are no such rows.
    """

    lens: Lens
    seed: int = 0
    needles: tuple[tuple[int, int, Needle], ...] = ()
    shared: tuple[int, ...] = ()
    repeated: tuple[int, ...] = ()
    ordered: bool = False
    far: bool = False
    behind: bool = False
    steep: bool = False
    extreme: bool = False
    plain: bool = False
    lost: tuple[int, Lost] | None = None

    def to_json(self) -> BatchData:
        """As plain data, for `from_json`."""
        return BatchData(
            lens=[list(each) for each in self.lens],
            seed=self.seed,
            needles=[(row, index, where.name) for row, index, where in self.needles],
            shared=list(self.shared),
            repeated=list(self.repeated),
            ordered=self.ordered,
            far=self.far,
            behind=self.behind,
            steep=self.steep,
            extreme=self.extreme,
            plain=self.plain,
            lost=None if self.lost is None else (self.lost[0], self.lost[1].name),
        )

    @classmethod
    def from_json(cls, held: BatchData) -> "Batch":
        """The inverse of `to_json`."""
        return cls(
            lens=tuple((queries, cells) for queries, cells in held["lens"]),
            seed=held["seed"],
            needles=tuple((row, index, Needle[where]) for row, index, where in held["needles"]),
            shared=tuple(held["shared"]),
            repeated=tuple(held["repeated"]),
            ordered=held["ordered"],
            far=held["far"],
            behind=held["behind"],
            steep=held["steep"],
            extreme=held["extreme"],
            plain=held["plain"],
            lost=None if held["lost"] is None else (held["lost"][0], Lost[held["lost"][1]]),
        )

    @property
    def goes_on(self) -> bool:
        """Whether page ids rise past the end of a row too, where an allocator reserved pages."""
        return self.ordered and not (self.far and self.seed % 2)

    @property
    def undefined(self) -> slice:
        """The tokens whose answer is undefined."""
        if self.lost is None:
            return slice(0, 0)
        row = self.lost[0]
        first = sum(queries for queries, _ in self.lens[:row])
        return slice(first, first + self.lens[row][0])


@frozen(eq=False)
class Integers:
    """What steers a kernel: the lengths, the table of page ids, the first tokens, the count."""

    kv_lens: Ints
    page_indices: Ints
    cu_q_lens: Ints
    num_seqs: Ints


@frozen(eq=False)
class Arrays:
    """The arguments of the interface, in its order.

    sinks [q_heads], scales [pages, page_size, 2 * kv_heads]: no part of it; None without.
    """

    q: Numbers
    kv_pages: Numbers
    kv_lens: Ints
    page_indices: Ints
    cu_q_lens: Ints
    num_seqs: Ints
    sinks: Floats | None = None
    scales: Floats | None = None

    @property
    def optional(self) -> dict[str, Floats]:
        """Sinks and scales, if there are any, by the names of `kernel_under_test.OPTIONS`."""
        every = {"sinks": self.sinks, "scales": self.scales}
        return {name: held for name, held in every.items() if held is not None}

    def __iter__(self) -> Iterator[Numbers]:
        """The arrays in the order of the interface."""
        return iter(
            (
                self.q,
                self.kv_pages,
                self.kv_lens,
                self.page_indices,
                self.cu_q_lens,
                self.num_seqs,
            )
        )


IDLE: Final = Batch(lens=((0, 0),))
"""A batch without work. An exception here does not mean that the shapes are unsupported."""


def first(sizes: Sizes) -> Batch:
    """The first batch of every job.

    Decoding beside a prefill, both across a page boundary, and decoding with a full row, which
    takes every step that a fetch has. Under a window the prefill has nearly a full row, and a page
    begins with cells that its first query sees and its last one does not, one of them a needle.
    Then, if there is room, a prompt of as many tokens as fit, all of them new: some shapes have
    more than a fetch.
    """
    cells = max(sizes.page_size, 2) + 1  # three queries at least
    prefill = cells if sizes.window is None else _with_an_edge(sizes, sizes.window)
    lens = ((1, cells), (3, prefill), (1, sizes.capacity))
    prompt = min(sizes.capacity, sizes.tokens - 5)
    whole = ((prompt, prompt),) if sizes.rows > len(lens) else ()
    needles = ((0, 0, Needle.LAST), (1, 2, Needle.BEHIND))
    return Batch(lens=(*lens, *whole), needles=needles[: 1 if sizes.window is None else 2])


def _with_an_edge(sizes: Sizes, window: int) -> int:
    """The most cells of which the first of three queries sees a page from its first cell on."""
    behind = (sizes.capacity - window - 2) // sizes.page_size * sizes.page_size
    return behind + window + 2 if behind > 0 else sizes.capacity


def integers(sizes: Sizes, batch: Batch) -> Integers:
    """What steers a kernel in this batch. What lies past its rows describes nothing."""
    count = len(batch.lens)
    starts = np.resize(np.array([0, sizes.tokens], np.int32), sizes.rows + 1)
    starts[: count + 1] = np.cumsum([0, *(queries for queries, _ in batch.lens)])
    lens = np.full(sizes.rows, sizes.capacity, np.int32)
    lens[:count] = [cells for _, cells in batch.lens]
    table = _table(sizes, batch, np.random.default_rng(batch.seed))
    return Integers(lens, table, starts, np.array([count], np.int32))


def build(sizes: Sizes, batch: Batch) -> Arrays:
    """The arrays of a batch: q f32, kv_pages f32 with values that are exact in the pool's dtype."""
    steered = integers(sizes, batch)
    table, starts = steered.page_indices, steered.cu_q_lens
    draws = np.random.default_rng((batch.seed, 1))
    q_heads, kv_heads, width = sizes.heads
    q = draws.normal(size=(sizes.tokens, q_heads, width)).astype(np.float32)
    pool = np.full((sizes.pages, sizes.page_size, 2 * kv_heads, width), loud(sizes), np.float32)
    named = named_pages(sizes, table)
    cells = draws.normal(size=(len(named), *pool.shape[1:])) * _unit(sizes)
    pool[named] = _rounded(sizes, cells.astype(np.float32))
    q = _narrowed(q, sizes.kinds[0])
    if batch.extreme:
        _put_extremes(sizes, q, pool)
    placed = [
        _put(sizes, batch, needle, (q, pool, table, starts)) for needle in _each(sizes, batch)
    ]
    kept = {place for place in placed if place}
    dead = _dead(sizes, batch, table, kept)
    pool[dead] = 0.0 if batch.plain else loud(sizes)
    scales = _scales(sizes, batch, dead, kept) if sizes.scales else None
    q = q * np.float32(_steepness(sizes, batch)) if batch.steep else q
    sinks = _sinks(sizes, batch) if sizes.sinks else None
    return Arrays(q, pool, steered.kv_lens, table, starts, steered.num_seqs, sinks, scales)


def _steepness(sizes: Sizes, batch: Batch) -> float:
    may = sizes.kinds[0] in OF_WIDE_RANGE and not sizes.scales
    return STEEPEST if may and batch.seed % 2 else STEEP


def named_pages(sizes: Sizes, table: Ints) -> Ints:
    """The pages of the pool that a table names."""
    found = np.unique(table)
    return found[(found >= 0) & (found < sizes.pages)]


def _put_extremes(sizes: Sizes, q: Floats, pool: Floats) -> None:
    """Make V as large and as small as it may be, and let scores be equal in places."""
    q[:, 0], pool[:, 1::4, 0::2] = 0.0, 0.0
    if _has_wide_values(sizes):
        factors = np.resize(np.array([HUGE, 1 / HUGE], np.float32), pool.shape[3])
        pool[:, :, 1::2] *= factors


def _has_wide_values(sizes: Sizes) -> bool:
    """Whether V may be as large as HUGE, in the pool and in an answer."""
    return {*sizes.kinds} <= {*OF_WIDE_RANGE}


def _scales(sizes: Sizes, batch: Batch, dead: Bools, kept: set[tuple[int, int]]) -> Floats:
    """Scales of K and V of each cell: of both signs, of several magnitudes, and 0.

    Those of a needle are 1, and dead ones NaN. In a batch of extremes those of V are as large and
    as small as HUGE, by KV heads, unless V itself is.
    """
    draws, shape = np.random.default_rng((batch.seed, 3)), (*dead.shape, 2 * sizes.heads[1])
    factors = draws.choice(np.array(SCALES, np.float32), shape)
    if batch.extreme and sizes.kinds[0] in OF_WIDE_RANGE and not _has_wide_values(sizes):
        factors[..., 1::4] *= HUGE
        factors[..., 3::4] /= HUGE
    for place in kept:
        factors[place] = 1.0
    factors[dead] = 1.0 if batch.plain else np.nan
    return factors


def _sinks(sizes: Sizes, batch: Batch) -> Floats:
    """A sink for each query head, of every kind if there are so many."""
    draws = np.random.default_rng((batch.seed, len(SINKS)))
    kinds = draws.permutation(np.array(SINKS, np.float32))
    mixed = draws.permutation(np.resize(kinds, sizes.heads[0]))
    grown = batch.steep and "soft_cap" not in sizes.options
    return mixed * np.float32(STEEP) if grown else mixed


def _table(sizes: Sizes, batch: Batch, draws: np.random.Generator) -> Ints:
    """Page ids in random order, or rising; past the end of a row, pages that must not be read."""
    nobody = sizes.pages - 1
    size = sizes.rows * sizes.pages_per_seq
    top = np.arange(nobody - size, nobody)
    others = draws.choice(nobody - size, min(size, sizes.spare), replace=False)
    order = draws.permutation(np.concatenate([top, others]))[:size]
    order = np.sort(order) if batch.ordered else order
    order = order.astype(np.int32).reshape(sizes.rows, sizes.pages_per_seq)
    if batch.ordered:
        _swap(sizes, batch, draws, order)
    full = [cells // sizes.page_size for _, cells in batch.lens]
    for row in batch.shared:
        both = min(full[0], full[row])
        order[row, :both] = order[0, :both]
    for row in batch.repeated:
        if full[row] >= 2 and row not in batch.shared and (row or not batch.shared):
            order[row, 1] = order[row, 0]
    for row in range(sizes.rows):
        used = -(-batch.lens[row][1] // sizes.page_size) if row < len(batch.lens) else 0
        used += RESERVED if batch.goes_on else 0
        order[row, used:] = FAR if batch.far else nobody
    return order


def _swap(sizes: Sizes, batch: Batch, draws: np.random.Generator, order: Ints) -> None:
    """Let two neighbours inside of every other row change places."""
    for row in range(batch.seed % 2, len(batch.lens), 2):
        used = -(-batch.lens[row][1] // sizes.page_size)
        if used >= 4:
            at = draws.integers(1, used - 2)
            order[row, at : at + 2] = order[row, at : at + 2][::-1]


def _unit(sizes: Sizes) -> float:
    return 20.0 if sizes.kinds[1] == "int8" else 1.0


def _rounded(sizes: Sizes, pool: Floats) -> Floats:
    if sizes.kinds[1] == "int8":
        return np.clip(np.round(pool), -127, 127)
    return _narrowed(pool, sizes.kinds[1])


def _narrowed(numbers: Floats, kind: str) -> Floats:
    import ml_dtypes  # comes with jax

    narrow = np.dtype(getattr(ml_dtypes, kind, kind))
    return numbers.astype(narrow).astype(np.float32)


def _each(sizes: Sizes, batch: Batch) -> Iterator[tuple[int, int, Needle]]:
    """The needles, with those of every query first."""
    for row, index, where in sorted(batch.needles, key=lambda one: one[1] != EVERY):
        every = range(rows_of(sizes, batch, row)) if index == EVERY else [index]
        yield from ((row, one, where) for one in every)


def _put(
    sizes: Sizes,
    batch: Batch,
    needle: tuple[int, int, Needle],
    held: tuple[Floats, Floats, Ints, Ints],
) -> tuple[int, int] | None:
    """Put a key like the query and a large value there, if there is such a cell.

    The value of a cell that the query must not see has the other sign.
    """
    q, pool, table, starts = held
    row, index, where = needle
    queries, length = batch.lens[row]
    position = length - queries + index
    at = _position(where, position=position, length=length, window=sizes.window)
    if at is None or not 0 <= at < -(-length // sizes.page_size) * sizes.page_size:
        return None
    page, offset = int(table[row, at // sizes.page_size]), at % sizes.page_size
    token, width = starts[row] + index, sizes.heads[2]
    direction = np.sign(q[token, 0]) + (q[token, 0] == 0)
    q[token] = direction
    grown = sizes.options.get("scale", 1.0) * sizes.options.get("k_scale", 1.0) * width or 1.0
    pool[page, offset, 0::2] = _rounded(sizes, direction * np.float32(LOUD / grown))
    value = 4 * _unit(sizes) * (-1 if where in HIDDEN else 1)
    pool[page, offset, 1::2] = _rounded(sizes, np.float32(value) * direction)
    return page, offset


def _position(where: Needle, *, position: int, length: int, window: int | None) -> int | None:
    oldest = None if window is None else position - window + 1
    return {
        Needle.LAST: length - 1,
        Needle.PAST: length,
        Needle.NEXT: position + 1,
        Needle.OWN: position,
        Needle.BEHIND: None if oldest is None else oldest - 1,
        Needle.OLDEST: oldest,
    }[where]


def _dead(sizes: Sizes, batch: Batch, table: Ints, kept: set[tuple[int, int]]) -> Bools:
    """Every invisible cell, except for needles: [pages, page_size]."""
    dead = np.ones((sizes.pages, sizes.page_size), bool)
    for row, (queries, length) in enumerate(batch.lens):
        for position in range(length - queries, length):
            for seen in visible(position, length, sizes.window if batch.behind else None):
                dead[table[row, seen // sizes.page_size], seen % sizes.page_size] = False
    for page, offset in kept:
        dead[page, offset] = False
    return dead


def loud(sizes: Sizes) -> float:
    """What stands in a cell that nobody may read."""
    return 127.0 if sizes.kinds[1] == "int8" else np.nan


def drawn(sizes: Sizes, *, units: Collection[int]) -> st.SearchStrategy[Batch]:
    """Batches of these sizes. units: numbers of cells or queries that a kernel takes at a time."""
    every = {sizes.page_size, *units}
    cells = st.sampled_from(edges(every, sizes.capacity)) | st.integers(0, sizes.capacity)
    some = st.sampled_from(edges(every, sizes.tokens))
    queries = (
        st.sampled_from((1, 1, 0, 2, sizes.page_size, sizes.tokens)) | some | st.integers(0, 9)
    )
    wanted = st.lists(st.tuples(queries, cells), min_size=sizes.fewest, max_size=sizes.rows)
    return wanted.flatmap(lambda lens: _with_extras(sizes, fitting(sizes, lens)))


def drawn_at_edges(sizes: Sizes, *, units: Collection[int]) -> st.SearchStrategy[Batch]:
    """Batches in which some query of each sequence sees cells up to an edge, or from one.

    units: by which a kernel divides. The query may be the first or the last of a block of one.
    """
    sides = (True, False) if sizes.window else (True,)
    return st.sampled_from(sides).flatmap(partial(_drawn_at_edges, sizes, {*units}))


def _drawn_at_edges(sizes: Sizes, units: set[int], newest: bool) -> st.SearchStrategy[Batch]:  # noqa: FBT001
    """newest: whether cells are seen up to an edge. Large units are taken more often."""
    every = sorted({sizes.page_size, *units})
    few = max(2, sizes.tokens // 2)
    blocks = [unit for unit in every if 2 <= unit <= few] or [few]
    unit = st.tuples(st.sampled_from(every), st.sampled_from(every)).map(max)
    row = st.builds(
        partial(_at_edge, sizes, newest=newest),
        st.tuples(unit, st.integers(1, MOST_UNITS), st.integers(-1, 1)),
        st.tuples(st.just(value=False), st.sampled_from([1, 2, few, *blocks]))
        | st.tuples(st.just(value=True), st.sampled_from(blocks)),
        st.integers(0, 2),
    )
    wanted = st.lists(row, min_size=1, max_size=min(8, sizes.rows))
    kinds = NEWEST if newest else OLDEST
    return st.tuples(wanted, st.sampled_from((0, 0, 1, 20))).flatmap(
        lambda found: _with_extras(sizes, _past_the_end(sizes, *found), everywhere=kinds)
    )


def _at_edge(
    sizes: Sizes,
    edge: tuple[int, int, int],
    block: tuple[bool, int],
    more: int,
    *,
    newest: bool,
) -> tuple[int, int]:
    """A sequence of which the first or the last query of a block is at an edge.

    edge: so many units, and so many more, are the cells that it sees, or those that are hidden
    before its oldest one. block: whether it is the last, and of how many. more: queries behind it.
    """
    unit, times, beside = edge
    last, queries = block
    times = 1 + (times - 1) % max(1, sizes.capacity // unit)
    seen = unit * times + beside + (0 if newest else sizes.window or 0)
    first = seen - 1 - (queries - 1 if last else 0)
    return queries + more, min(max(first + queries + more, 0), sizes.capacity)


def _past_the_end(sizes: Sizes, wanted: list[tuple[int, int]], over: int) -> Lens:
    """The lengths, as far as they fit, and so many queries of the last sequence past the end of q.

    Queries that do not fit are the last of a sequence: the others stay where they are.
    """
    lens = [
        (queries, max(cells - (before - queries), 0))
        for (queries, cells), (before, _) in zip(fitting(sizes, wanted), wanted, strict=True)
    ]
    left = sizes.tokens - sum(queries for queries, _ in lens[:-1])
    if over and left:
        queries, cells = lens[-1]
        lens[-1] = left + over, min(cells + left + over - queries, sizes.capacity)
    return tuple(lens)


def edges(units: Collection[int], most: int) -> list[int]:
    """Numbers of some units each, or of two together, the least and the most, and those beside."""
    near = {0, most, *(unit * times for unit in units for times in MULTIPLES)}
    near |= {sum(both) for both in combinations(units, 2)}
    near |= {most // unit * unit for unit in units}
    every = {number + step for number in near for step in (-1, 0, 1)}
    return sorted(number for number in every if 0 <= number <= most)


def fitting(sizes: Sizes, wanted: list[tuple[int, int]]) -> Lens:
    """Limit queries to the capacity; a long prefill leaves one to each sequence after it."""
    left, lens = sizes.tokens, []
    for after, (queries, cells) in zip(reversed(range(len(wanted))), wanted, strict=True):
        lens.append((min(queries, left - after), cells))
        left -= lens[-1][0]
    return tuple(lens)


def rows_of(sizes: Sizes, batch: Batch, row: int) -> int:
    """The rows of q that a sequence has."""
    before = sum(queries for queries, _ in batch.lens[:row])
    return max(0, min(batch.lens[row][0], sizes.tokens - before))


def within_rows(sizes: Sizes, batch: Batch) -> Batch:
    """The batch without queries past the end of q."""
    return evolve(batch, lens=fitting(sizes, [*batch.lens]))


def within_cells(batch: Batch) -> Batch:
    """The batch without queries for which their sequence has no cell."""
    lens = tuple((min(queries, cells), cells) for queries, cells in batch.lens)
    needles = tuple(one for one in batch.needles if one[1] < lens[one[0]][0])
    return evolve(batch, lens=lens, needles=needles)


def _with_extras(
    sizes: Sizes, lens: Lens, *, everywhere: Sequence[Needle] = ()
) -> st.SearchStrategy[Batch]:
    """Add needles at existing queries, or everywhere of one of these kinds, and shared pages."""
    plain = Batch(lens=lens)
    asking = [
        (row, index) for row in range(len(lens)) for index in range(rows_of(sizes, plain, row))
    ]
    needle = st.tuples(st.sampled_from(asking or [(0, 0)]), st.sampled_from(Needle))
    needles = st.lists(needle, max_size=3 if asking else 0)
    if everywhere:
        needles = st.sampled_from(everywhere).map(
            lambda where: [((row, EVERY), where) for row in range(len(lens))]
        )
    some_rows = st.lists(st.integers(0, len(lens) - 1), unique=True, max_size=2)
    return st.builds(
        lambda seed, needles, shared, repeated, ordered, far, behind, steep, extreme, lost: Batch(
            lens=lens,
            seed=seed,
            needles=tuple((row, index, where) for (row, index), where in needles),
            shared=tuple(row for row in shared if row),
            repeated=tuple(repeated),
            ordered=ordered,
            far=far,
            behind=behind,
            steep=steep,
            extreme=extreme,
            lost=lost,
        ),
        st.integers(0, 2**16),
        needles,
        some_rows,
        some_rows,
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.none() | st.tuples(st.integers(0, len(lens) - 1), st.sampled_from(Lost)),
    )


SIZES: Final = (
    Sizes(
        name="grouped heads",
        heads=(8, 2, 128),
        page_size=16,
        pages_per_seq=84,
        rows=7,
        tokens=60,
        plans=("small", "two cores"),
        races=True,
        append=True,
    ),
    Sizes(
        name="float32, a window that cuts pages, a cap",
        heads=(8, 2, 64),
        page_size=16,
        kinds=("float32", "float32"),
        pages_per_seq=84,
        tokens=60,
        options={"scale": 0.1, "sliding_window": 21, "soft_cap": 5.0},
        races=True,
        roomy=False,
    ),
    Sizes(
        name="one KV head, a window",
        heads=(4, 1, 128),
        page_size=16,
        pages_per_seq=26,
        tokens=168,  # a prompt of more than a fetch
        options={"scale": 0.1, "sliding_window": 16},
        plans=("short fetches",),
        races=True,
        append=True,
        roomy=False,
    ),
    Sizes(
        name="fp8 with scales",
        heads=(4, 1, 128),
        page_size=32,
        kinds=("bfloat16", "float8_e4m3fn"),
        pages_per_seq=82,
        rows=4,
        tokens=60,
        options={"scale": 0.1, "k_scale": 0.5, "v_scale": 2.0},
        append=True,
        attend=False,
        plans=("small", "widening"),
    ),
    Sizes(
        name="int8 with scales",
        heads=(8, 2, 128),
        page_size=32,
        kinds=("bfloat16", "int8"),
        pages_per_seq=80,
        tokens=60,
        options={"scale": 0.1, "k_scale": 0.02, "v_scale": 0.05},
        append=True,
        attend=False,
        plans=("long fetches", "widening"),
    ),
    Sizes(
        name="wide heads, three of them, small pages",
        heads=(6, 3, 256),
        page_size=8,
        kinds=("float32", "bfloat16"),
        pages_per_seq=328,
        rows=3,
        tokens=60,
        races=True,
        append=True,
    ),
    Sizes(
        name="a head_dim of 80, no groups",
        heads=(4, 4, 80),
        page_size=16,
        pages_per_seq=84,
        tokens=60,
        append=True,
        attend=False,
    ),
    Sizes(
        name="float32, a long context",
        heads=(2, 1, 128),
        page_size=32,  # a fetch has 256 of them, with two rows of ids
        kinds=("float32", "float32"),
        pages_per_seq=130,
        rows=3,
        tokens=5,
        plans=("usual",),
        roomy=False,
    ),
    Sizes(
        name="a window longer than a group of steps",
        heads=(2, 1, 128),
        page_size=128,  # more than a number of 8 bits
        kinds=("float32", "float32"),
        pages_per_seq=21,
        rows=3,
        tokens=60,
        options={"scale": 0.1, "sliding_window": 1300},
    ),
    Sizes(
        name="many sequences",
        heads=(2, 1, 128),
        page_size=64,  # two in a fetch
        pages_per_seq=3,
        rows=136,
        tokens=144,
        fewest=129,
        plans=("short fetches",),
        roomy=False,
        append=True,
        attend=False,
    ),
    # A cell fills a tile, so that copies of new cells begin anywhere, as in most models.
    Sizes(
        name="eight KV heads, grouped",
        heads=(32, 8, 128),
        page_size=16,
        pages_per_seq=84,
        rows=4,
        tokens=60,
        plans=("small",),
        races=True,
        append=True,
    ),
    Sizes(
        name="as planned, eight KV heads in fp8",
        heads=(24, 8, 128),
        page_size=32,
        kinds=("bfloat16", "float8_e4m3fn"),
        pages_per_seq=160,
        rows=3,
        tokens=300,
        options={"scale": 0.1, "k_scale": 0.5, "v_scale": 2.0},
        plans=("usual",),
    ),
    Sizes(
        name="e5m2, wide heads, large pages",
        heads=(12, 4, 256),
        page_size=128,
        kinds=("bfloat16", "float8_e5m2"),
        pages_per_seq=11,
        rows=3,
        tokens=60,
        append=True,
        attend=False,
        plans=("small", "widening", "one page"),
    ),
    # More pages in a row, and in a fetch, than a row of the kernel's table names.
    Sizes(
        name="pages of one cell",
        heads=(16, 8, 128),
        page_size=1,
        plans=("short steps",),
        pages_per_seq=1100,
        rows=3,
        tokens=60,
        races=True,
        append=True,
    ),
    Sizes(
        name="float16 queries, pages of 12",
        heads=(8, 2, 128),
        page_size=12,
        kinds=("float16", "bfloat16"),
        pages_per_seq=110,
        rows=4,
        tokens=60,
        append=True,
        attend=False,
    ),
    Sizes(
        name="sinks",
        heads=(16, 2, 64),
        page_size=16,
        pages_per_seq=84,
        rows=4,
        tokens=60,
        sinks=True,
    ),
    # Several pages fill a tile, and one of the last shape is a row.
    Sizes(
        name="sinks, a window, a cap, pages of one cell",
        heads=(12, 2, 128),
        page_size=1,
        plans=("short steps",),
        pages_per_seq=300,
        rows=4,
        tokens=60,
        options={"scale": 0.1, "sliding_window": 21, "soft_cap": 5.0},
        sinks=True,
        append=True,
        attend=False,
        roomy=False,
    ),
    Sizes(
        name="scales of cells, eight KV heads in int8",
        heads=(16, 8, 128),
        page_size=16,
        kinds=("bfloat16", "int8"),
        pages_per_seq=84,
        rows=4,
        tokens=60,
        options={"scale": 0.1, "k_scale": 0.2, "v_scale": -0.5},
        scales=True,
        plans=("long steps",),
        append=True,
        attend=False,
    ),
    Sizes(
        name="scales of cells, three KV heads, a window, a cap",
        heads=(6, 3, 128),
        page_size=128,
        pages_per_seq=11,
        rows=3,
        tokens=60,
        options={"scale": 0.1, "sliding_window": 200, "soft_cap": 5.0},
        scales=True,
        races=True,
        roomy=False,
    ),
    Sizes(
        name="as planned, eight KV heads",
        heads=(16, 8, 128),
        page_size=16,
        pages_per_seq=300,
        rows=4,
        tokens=300,
        plans=("usual",),
        races=True,
    ),
    Sizes(
        name="as planned, one KV head, a window longer than a fetch",
        heads=(4, 1, 128),
        page_size=128,
        pages_per_seq=160,
        rows=3,
        tokens=300,
        options={"scale": 0.1, "sliding_window": 11000},
        plans=("usual",),
        append=True,
        attend=False,
    ),
    Sizes(
        name="more than 32,768 positions",
        heads=(1, 1, 64),
        page_size=64,
        pages_per_seq=520,
        rows=3,
        tokens=20,
        plans=("usual",),
        roomy=False,
    ),
    Sizes(
        name="a large pool of small pages",
        heads=(2, 1, 64),
        page_size=8,
        pages_per_seq=20,
        rows=3,
        tokens=20,
        spare=33_000,
        roomy=False,
        append=True,
        attend=False,
    ),
    Sizes(
        name="a scale of K of zero",
        heads=(4, 1, 128),
        page_size=32,
        kinds=("bfloat16", "float8_e4m3fn"),
        pages_per_seq=5,
        options={"scale": 0.1, "k_scale": 0.0, "v_scale": -1.5},
        roomy=False,
    ),
    Sizes(
        name="a scale of V of zero",
        heads=(4, 1, 128),
        page_size=32,
        kinds=("bfloat16", "float8_e4m3fn"),
        pages_per_seq=5,
        options={"scale": -0.1, "v_scale": 0.0},
        roomy=False,
    ),
    Sizes(
        name="float32, one KV head, pages of one cell",
        heads=(2, 1, 128),
        page_size=1,
        kinds=("float32", "float32"),
        pages_per_seq=300,
        rows=3,
        tokens=5,
        append=True,
        attend=False,
        roomy=False,
    ),
    # What else is needed so that any two features are tried together, see `features`.
    Sizes(
        name="three KV heads of 192, pages of 96, f16 on int8",
        heads=(3, 3, 192),
        page_size=96,
        kinds=("float16", "int8"),
        pages_per_seq=14,
        rows=3,
        options={
            "scale": 0.07,
            "sliding_window": 100,
            "soft_cap": 5.0,
            "k_scale": -0.02,
            "v_scale": -0.05,
        },
        sinks=True,
        roomy=False,
    ),
    Sizes(
        name="ten KV heads of 256, pages of 12, f32 on f32",
        heads=(30, 10, 256),
        page_size=12,
        kinds=("float32", "float32"),
        pages_per_seq=59,
        rows=3,
        options={"scale": -0.06, "sliding_window": 37, "soft_cap": 5.0, "v_scale": 0.7},
        sinks=True,
        roomy=False,
    ),
    Sizes(
        name="ten KV heads of 192, pages of 16, f16 on fp8",
        heads=(30, 10, 192),
        page_size=16,
        kinds=("float16", "float8_e4m3fn"),
        pages_per_seq=44,
        rows=3,
        options={"scale": 0.07, "soft_cap": 5.0, "k_scale": -0.5},
        append=True,
        attend=False,
        roomy=False,
    ),
    Sizes(
        name="four KV heads of 64, pages of 96, f32 on fp8",
        heads=(4, 4, 64),
        page_size=96,
        kinds=("float32", "float8_e4m3fn"),
        pages_per_seq=8,
        rows=3,
        options={"scale": -0.12, "sliding_window": 21, "soft_cap": 5.0, "v_scale": 0.7},
        sinks=True,
        scales=True,
        append=True,
        attend=False,
        roomy=False,
    ),
    Sizes(
        name="ten KV heads of 192, pages of 32, bf16 on bf16",
        heads=(20, 10, 192),
        page_size=32,
        pages_per_seq=22,
        rows=3,
        options={"scale": 0.07, "sliding_window": 21, "v_scale": 0.7},
        sinks=True,
        roomy=False,
    ),
    Sizes(
        name="one KV head of 256, pages of 32, f16 on int8",
        heads=(3, 1, 256),
        page_size=32,
        kinds=("float16", "int8"),
        pages_per_seq=41,
        rows=3,
        options={"scale": 0.06, "soft_cap": 5.0, "k_scale": -0.02},
        sinks=True,
        roomy=False,
    ),
    Sizes(
        name="four KV heads of 192, pages of 1, f16 on f32",
        heads=(4, 4, 192),
        page_size=1,
        kinds=("float16", "float32"),
        pages_per_seq=300,
        rows=3,
        options={"scale": -0.07, "soft_cap": 5.0, "v_scale": 0.7},
        plans=("short steps",),
        roomy=False,
    ),
    Sizes(
        name="three KV heads of 80, pages of 24, bf16 on f32",
        heads=(9, 3, 80),
        page_size=24,
        kinds=("bfloat16", "float32"),
        pages_per_seq=55,
        rows=3,
        options={"scale": 0.11, "soft_cap": 5.0, "k_scale": -0.5, "v_scale": -1.5},
        roomy=False,
    ),
    Sizes(
        name="two KV heads of 256, pages of 64, f16 on fp8",
        heads=(2, 2, 256),
        page_size=64,
        kinds=("float16", "float8_e4m3fn"),
        pages_per_seq=11,
        rows=3,
        options={"scale": -0.06, "sliding_window": 300, "v_scale": 0.7},
        sinks=True,
        scales=True,
        roomy=False,
    ),
    Sizes(
        name="sixteen KV heads of 96, pages of 1, f32 on int8",
        heads=(16, 16, 96),
        page_size=1,
        kinds=("float32", "int8"),
        pages_per_seq=300,
        rows=3,
        options={"scale": 0.1, "soft_cap": 5.0, "k_scale": -0.02, "v_scale": -0.05},
        sinks=True,
        plans=("short steps",),
        roomy=False,
    ),
    Sizes(
        name="one KV head of 192, pages of 128, f32 on f32",
        heads=(3, 1, 192),
        page_size=128,
        kinds=("float32", "float32"),
        pages_per_seq=11,
        rows=3,
        options={"scale": 0.07, "sliding_window": 150, "v_scale": -1.5},
        sinks=True,
        scales=True,
        roomy=False,
    ),
    Sizes(
        name="one KV head of 128, pages of 24, f16 on bf16",
        heads=(1, 1, 128),
        page_size=24,
        kinds=("float16", "bfloat16"),
        pages_per_seq=55,
        rows=3,
        options={"scale": -0.09, "v_scale": 0.7},
        roomy=False,
    ),
    Sizes(
        name="three KV heads of 64, pages of 96, f16 on fp8",
        heads=(3, 3, 64),
        page_size=96,
        kinds=("float16", "float8_e4m3fn"),
        pages_per_seq=14,
        rows=3,
        options={"scale": 0.12},
        sinks=True,
        roomy=False,
    ),
    Sizes(
        name="four KV heads of 256, pages of 1, f32 on fp8",
        heads=(12, 4, 256),
        page_size=1,
        kinds=("float32", "float8_e4m3fn"),
        pages_per_seq=300,
        rows=3,
        options={"scale": 0.06, "k_scale": -0.5},
        plans=("short steps",),
        roomy=False,
    ),
    Sizes(
        name="sixteen KV heads of 128, pages of 8, f32 on fp8",
        heads=(48, 16, 128),
        page_size=8,
        kinds=("float32", "float8_e4m3fn"),
        pages_per_seq=88,
        rows=3,
        options={"scale": 0.09, "sliding_window": 64, "v_scale": -1.5},
        scales=True,
        roomy=False,
    ),
    Sizes(
        name="two KV heads of 192, pages of 12, f16 on f32",
        heads=(4, 2, 192),
        page_size=12,
        kinds=("float16", "float32"),
        pages_per_seq=59,
        rows=3,
        options={"scale": 0.07, "soft_cap": 5.0},
        roomy=False,
    ),
)
"""The shapes that every kernel is tried with; every kernel supports the first."""
