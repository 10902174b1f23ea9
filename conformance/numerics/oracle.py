"""Ragged paged attention in float64, and the error bound of a correct float32 kernel.

`ragged_paged_attention` has the interface of the kernels that it judges and shares no code with
any. For each query it takes exactly the visible cells, so the contents of any other cell cannot
matter. `error_bound` is derived, not fitted: the comments below use the symbols of
docs/attention.md.
"""

import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from spec.vocabulary.errors import InvalidInput

Floats = NDArray[np.float64]

PART = 256
"""Cells that are worked on at a time."""
ELEMENTARY = 8
"""The relative error of exp and tanh, in unit roundoffs: four units in the last place.

An assumption about the platform; the tests measure it.
"""


class _Query(NamedTuple):
    """One query token: its row of q, q [q_heads, head_dim], and the cells that it sees.

    cells: K, V, |K| and |V|, scaled, [4, kv_heads, n, head_dim]. stored: |V| before it is scaled,
    [kv_heads, n, head_dim]; scales: the magnitudes of those of K, [kv_heads, n, 1]. Both are 0
    without scales. `kv_len` is the length of its sequence.
    """

    row: int
    q: Floats
    cells: Floats
    stored: Floats
    scales: Floats
    kv_len: int


class Precision(NamedTuple):
    """u, the unit roundoff of a float dtype, t, its smallest normal number, and its largest one."""

    unit: float
    tiny: float
    largest: float

    @property
    def step(self) -> float:
        """kappa: the most that one rounding moves a logarithm."""
        return self.unit / (1 - self.unit)

    @property
    def elementary(self) -> float:
        """The most that one exp or tanh moves the logarithm of its result."""
        return ELEMENTARY * self.unit / (1 - ELEMENTARY * self.unit)


class Steps(NamedTuple):
    """The division of the work: blocks N, additions A, and roundings; narrow is kappa_w.

    scalings: r, 1 if scores and weights are multiplied with scales of their cells, and 0 otherwise.
    """

    blocks: int
    additions: int
    precision: Precision
    narrow: float
    scalings: int


class Head(NamedTuple):
    """One query and one head with the symbols of docs/attention.md.

    scores s [n], values v [n, head_dim], sizes |v|, largest: the largest of these, [head_dim];
    magnitudes |scale| |q|.|k| [n]; raw and delta [n], the errors of a score before the soft cap and
    after it. stored: the largest magnitudes of V before it is scaled, b [head_dim]; 0 without
    scales. A sink is the last of the n cells.
    """

    scores: Floats
    values: Floats
    stored: Floats
    sizes: Floats
    largest: Floats
    magnitudes: Floats
    raw: Floats
    delta: Floats
    soft_cap: float | None
    steps: Steps


class Drift(NamedTuple):
    """Steps 3 and 4: the most that the parts of the quotient may move, as logarithms.

    shares p [n], mean o [head_dim], gaps g [n]; common X [n], in_mean Y, in_sum Z; flushed, the
    underflow of the numerator [head_dim]; remaining, the least possible sum of weights.
    """

    shares: Floats
    mean: Floats
    gaps: Floats
    common: Floats
    in_mean: float
    in_sum: float
    flushed: Floats
    remaining: float

    def quotient(self, numerator: Floats) -> Floats:
        """An error [head_dim] over the least denominator; infinite if that may vanish."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            error = (numerator + self.flushed) / self.remaining
        return np.where((self.remaining > 0) & np.isfinite(error), error, np.inf)


def ragged_paged_attention(
    q: ArrayLike,
    kv_pages: ArrayLike,
    kv_lens: ArrayLike,
    page_indices: ArrayLike,
    cu_q_lens: ArrayLike,
    num_seqs: ArrayLike,
    *,
    scale: float = 1.0,
    soft_cap: float | None = None,
    sliding_window: int | None = None,
    sinks: ArrayLike | None = None,
    scales: ArrayLike | None = None,
) -> Floats:
    """The answer, float64 [T, q_heads, head_dim]; 0 in rows that see nothing or belong to none.

    q [T, q_heads, head_dim] and kv_pages [pages, page_size, 2 * kv_heads, head_dim] (heads
    interleaved) of any float dtype; kv_lens i32[B]; page_indices i32[B, pages_per_seq]; cu_q_lens
    i32[B + 1]; num_seqs i32[] or i32[1]. Query i of n of a sequence of length L is at position
    L - n + i, and sees the positions p up to its own with p > its own - sliding_window. sinks
    [q_heads]: one more score for each query head, without a value; -inf is none. scales [pages,
    page_size, 2 * kv_heads]: K and V are what the pool has times these. Raises InvalidInput if a
    visible position has no page, or cu_q_lens does not describe rows of q.
    """
    queries = np.asarray(q, np.float64)
    extra = _sinks(sinks, queries.shape[1])
    out = np.zeros_like(queries)
    arrays = (kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs)
    for query in _queries(queries, *arrays, window=sliding_window, scales=scales):
        for head in range(queries.shape[1]):
            keys, values, _, _ = _head(query, head)
            scores = np.append(_scores(keys @ query.q[head], scale, soft_cap), extra[head])
            out[query.row, head] = _softmax(scores)[:-1] @ values
    return out


def error_bound(
    q: ArrayLike,
    kv_pages: ArrayLike,
    kv_lens: ArrayLike,
    page_indices: ArrayLike,
    cu_q_lens: ArrayLike,
    num_seqs: ArrayLike,
    *,
    scale: float = 1.0,
    soft_cap: float | None = None,
    sliding_window: int | None = None,
    sinks: ArrayLike | None = None,
    scales: ArrayLike | None = None,
    block_cells: int = 1,
    accumulator: DTypeLike = np.float32,
    weights: DTypeLike | None = None,
    result: DTypeLike | None = None,
) -> Floats:
    """The error bound of blocked online softmax, element by element, [T, q_heads, D].

    The arguments of `ragged_paged_attention`, and: block_cells, the cells that the kernel takes in
    one step (1 covers every blocking, and is loose for long sequences); accumulator, the dtype of
    all of its arithmetic; weights, the dtype of the weights before the product with V (None: the
    same); result, the dtype of its output (None: q's). Infinite where the analysis decides nothing,
    as where the result may overflow; 0 where the answer is exactly 0. Raises InvalidInput like the
    oracle, and for block_cells below 1.
    """
    return bounded(
        certain_error,
        *(q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs),
        scale=scale,
        soft_cap=soft_cap,
        sliding_window=sliding_window,
        sinks=sinks,
        scales=scales,
        block_cells=block_cells,
        accumulator=accumulator,
        weights=weights,
        result=result,
    )[1]


def bounded(
    mean_error: Callable[[Head], Floats],
    /,
    *arrays: ArrayLike,
    scale: float,
    soft_cap: float | None,
    sliding_window: int | None,
    sinks: ArrayLike | None,
    scales: ArrayLike | None,
    block_cells: int = 1,
    accumulator: DTypeLike = np.float32,
    weights: DTypeLike | None,
    result: DTypeLike | None,
    tokens: Collection[int] | None = None,
) -> tuple[Floats, Floats]:
    """The answer, and `error_bound` with another estimate of step 5, a function of each head.

    mean_error: the estimate, [head_dim]. arrays: those of `ragged_paged_attention`, in that order.
    tokens: whose rows are wanted; the others are 0. None for all.
    """
    if block_cells < 1:
        raise InvalidInput(
            "block_cells", seen=block_cells, allowed="1 or more", remedy="Use 1 if unknown."
        )
    queries = np.asarray(arrays[0], np.float64)
    bound, exact = np.zeros_like(queries), np.zeros_like(queries)
    extra, precision = _sinks(sinks, queries.shape[1]), _precision(accumulator)
    narrow = 0.0 if weights is None else _narrowing(weights, precision)
    scalings = int(scales is not None)
    for query in _queries(
        queries, *arrays[1:], window=sliding_window, scales=scales, tokens=tokens
    ):
        blocks = -(-query.kv_len // block_cells)
        additions = min(block_cells, query.cells.shape[2]) - 1 + blocks
        steps = Steps(blocks, additions, precision, narrow, scalings)
        for index, one in enumerate(_heads(query, scale, soft_cap, steps)):
            head = _with_sink(one, float(extra[index]))
            bound[query.row, index] = mean_error(head)
            exact[query.row, index] = _softmax(head.scores) @ head.values
    stored = _precision(np.asarray(arrays[0]).dtype if result is None else result)
    return exact, bound + _result_error(exact, bound, precision, stored)


def _queries(
    q: Floats,
    kv_pages: ArrayLike,
    kv_lens: ArrayLike,
    page_indices: ArrayLike,
    cu_q_lens: ArrayLike,
    num_seqs: ArrayLike,
    *,
    window: int | None,
    scales: ArrayLike | None,
    tokens: Collection[int] | None = None,
) -> Iterator[_Query]:
    """Every query that sees a cell, with its visible cells. tokens: of these rows of q alone."""
    pool = np.asarray(kv_pages)
    factors = _checked(scales, pool.shape[:3])
    page_size = pool.shape[1]
    lengths, table, starts = (np.asarray(part) for part in (kv_lens, page_indices, cu_q_lens))
    for sequence in range(int(np.asarray(num_seqs).reshape(()))):
        first, last = int(starts[sequence]), int(starts[sequence + 1])
        length = int(lengths[sequence])
        if not 0 <= first <= last <= len(q):
            raise InvalidInput(
                "cu_q_lens",
                seen=(first, last),
                allowed=f"rising, and from 0 to {len(q)}",
                remedy="Give the bounds of each sequence's rows of q.",
            )
        seen = [
            (row, _oldest(position, window), position)
            for row, position in enumerate(range(length - (last - first), length), first)
            if _oldest(position, window) <= position
        ]
        if not seen:
            continue
        oldest = min(least for _, least, _ in seen)
        entries = range(oldest // page_size, (length - 1) // page_size + 1)
        pages = np.array([_page(table, sequence, entry, len(pool)) for entry in entries])
        wanted = [one for one in seen if tokens is None or one[0] in tokens]
        if not wanted:
            continue
        numbers = np.arange(oldest, length)
        places = pages[numbers // page_size - entries[0]], numbers % page_size
        held = _held(pool[places], None if factors is None else factors[places])
        for row, least, position in wanted:
            own = slice(least - oldest, position + 1 - oldest)
            cells, stored, by = (one[..., own, :] for one in held)
            yield _Query(row, q[row], cells, stored, by, length)


def _oldest(position: int, window: int | None) -> int:
    """The first position that a query at this one sees, if it sees any."""
    return 0 if window is None else max(0, position - window + 1)


def _checked(scales: ArrayLike | None, shape: tuple[int, ...]) -> Floats | None:
    if scales is None:
        return None
    found = np.asarray(scales, np.float64)
    if found.shape != shape:
        remedy = "Give one for K and for V of each cell and KV head."
        raise InvalidInput("scales", seen=found.shape, allowed=f"{shape}", remedy=remedy)
    return found


def _held(gathered: NDArray[Any], scales: Floats | None) -> tuple[Floats, Floats, Floats]:
    """The fields of `_Query` for cells [n, 2 * kv_heads, head_dim], for all queries that see some.

    scales [n, 2 * kv_heads]: theirs.
    """
    n, heads, width = gathered.shape
    pairs = np.moveaxis(gathered.reshape(n, heads // 2, 2, width), 0, 2)
    cells = np.empty((4, heads // 2, n, width))
    cells[:2] = np.moveaxis(pairs, 1, 0)
    stored = by = np.zeros((heads // 2, n, 1))
    if scales is not None:
        factors = scales.reshape(n, heads // 2, 2, 1).transpose(2, 1, 0, 3)
        stored, by = np.abs(cells[1]), np.abs(factors[0])
        cells[:2] *= factors
    np.abs(cells[:2], out=cells[2:])
    return cells, stored, by


def _page(table: NDArray[Any], sequence: int, entry: int, pages: int) -> int:
    page = int(table[sequence, entry]) if entry < table.shape[1] else -1
    if not 0 <= page < pages:
        raise InvalidInput(
            f"page_indices[{sequence}, {entry}]",
            seen=page,
            allowed=f"0 to {pages - 1}: a query sees this page",
            remedy="Give every visible position a page, or shorten kv_lens.",
        )
    return page


def _head(query: _Query, head: int) -> Floats:
    """K, V, |K| and |V| of a query head, [4, n, head_dim]."""
    group = len(query.q) // query.cells.shape[1]
    return np.asarray(query.cells[:, head // group])


def _sinks(sinks: ArrayLike | None, heads: int) -> Floats:
    """The sink of each query head, -inf where it has none."""
    if sinks is None:
        return np.full(heads, -np.inf)
    found = np.asarray(sinks, np.float64)
    if found.shape != (heads,):
        raise InvalidInput(
            "sinks", seen=found.shape, allowed=f"({heads},)", remedy="Give one for each query head."
        )
    return found


def _heads(query: _Query, scale: float, soft_cap: float | None, steps: Steps) -> Iterator[Head]:
    """Each query head; K of a KV head is read once for all of its group."""
    kv_heads = query.cells.shape[1]
    for own, asked in enumerate(query.q.reshape(kv_heads, -1, query.q.shape[1])):
        keys, values, key_sizes, sizes = query.cells[:, own]
        products, lengths = asked @ keys.T, np.abs(asked) @ key_sizes.T
        by, stored = query.scales[own, :, 0], query.stored[own].max(axis=0)
        largest = sizes.max(axis=0)
        for product, length in zip(products, lengths, strict=True):
            scores, magnitudes = _scores(product, scale, soft_cap), abs(scale) * length
            raw = _score_error(magnitudes, by, len(largest), scale, steps)
            delta = raw
            if soft_cap is not None:
                delta = _capped_error(raw, scores, soft_cap, steps.precision)
            yield Head(
                scores, values, stored, sizes, largest, magnitudes, raw, delta, soft_cap, steps
            )


def _with_sink(head: Head, sink: float) -> Head:
    """The same, with the sink as one more cell, whose V is 0, in a step of its own."""
    if sink == -np.inf:
        return head
    p = head.steps.precision
    largest = np.abs(head.scores.max()) + head.delta.max()
    delta = np.expm1(3 * p.step) * (abs(sink) + largest) + 4 * p.tiny
    steps = head.steps._replace(blocks=head.steps.blocks + 1, additions=head.steps.additions + 1)
    return head._replace(
        scores=np.append(head.scores, sink),
        values=np.append(head.values, np.zeros((1, head.values.shape[1])), axis=0),
        sizes=np.append(head.sizes, np.zeros((1, head.values.shape[1])), axis=0),
        magnitudes=np.append(head.magnitudes, 0.0),
        raw=np.append(head.raw, 0.0),
        delta=np.append(head.delta, delta),
        steps=steps,
    )


def _scores(products: Floats, scale: float, soft_cap: float | None) -> Floats:
    raw = scale * products
    return raw if soft_cap is None else soft_cap * np.tanh(raw / soft_cap)


def _softmax(scores: Floats) -> Floats:
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum())


_PRECISIONS = {
    "bfloat16": Precision(2.0**-8, 2.0**-126, (2 - 2.0**-7) * 2.0**127),
    "float16": Precision(2.0**-11, 2.0**-14, 65504.0),
    "float32": Precision(2.0**-24, 2.0**-126, (2 - 2.0**-23) * 2.0**127),
    "float64": Precision(2.0**-53, 2.0**-1022, sys.float_info.max),
}


def _precision(dtype: DTypeLike) -> Precision:
    name = np.dtype(dtype).name
    if name not in _PRECISIONS:
        raise InvalidInput(
            "dtype", seen=name, allowed=f"one of {tuple(_PRECISIONS)}", remedy="Widen the output."
        )
    return _PRECISIONS[name]


def _narrowing(dtype: DTypeLike, p: Precision) -> float:
    """The effect of one more rounding on the logarithm of a weight, without underflow."""
    found = _precision(dtype)
    if found.tiny > p.tiny:
        raise InvalidInput(
            "weights",
            seen=np.dtype(dtype).name,
            allowed="a format with the range of the accumulator",
            remedy="Small weights would vanish, which the bound does not cover.",
        )
    return found.step


def _score_error(magnitudes: Floats, by: Floats, width: int, scale: float, steps: Steps) -> Floats:
    """delta, step 1: d + 2 + r roundings of |scale| |q| |k|, and underflow.

    by: |sigma| [n], 0 without scales.
    """
    p, roundings = steps.precision, width + 2 + steps.scalings
    underflow = 2 * (width + 1) * (1 + abs(scale)) * (1 + by) * p.tiny
    return np.asarray(np.expm1(roundings * p.step) * magnitudes + underflow)


def _capped_error(delta: Floats, scores: Floats, soft_cap: float, p: Precision) -> Floats:
    """delta, step 2: tanh does not enlarge an error, and adds a relative one of its own."""
    relative = np.expm1(5 * p.step + p.elementary)
    return np.asarray(delta + relative * (np.abs(scores) + delta) + (1 + soft_cap) * p.tiny)


def drift(head: Head, *, rescalings: int) -> Drift:
    """The drift for this number of rescalings whose factor is not exactly 1."""
    (blocks, additions, p, narrow, scalings), scores = head.steps, head.scores
    shares = _softmax(scores)
    mean = shares @ head.values
    gaps = (scores + head.delta).max() - scores + head.delta
    common = head.delta + np.expm1(3 * p.step) * gaps + (rescalings + 1) * p.elementary
    in_sum = (additions + rescalings) * p.step
    lost = 4 * (len(scores) + blocks) * p.tiny
    flushed = lost * (1 + head.largest + head.stored + np.abs(mean))
    with np.errstate(over="ignore", invalid="ignore"):
        remaining = float(1 - shares @ np.expm1(common + in_sum) - lost)
    in_mean = in_sum + (1 + scalings) * p.step + narrow
    return Drift(shares, mean, gaps, common, in_mean, in_sum, flushed, remaining)


def certain_error(head: Head) -> Floats:
    """Step 5: the error [head_dim] of the quotient, infinite if the sum may vanish."""
    moves = drift(head, rescalings=head.steps.blocks - 1)
    with np.errstate(over="ignore", invalid="ignore"):
        moved = _distance(moves.shares * np.expm1(moves.common), head.values, moves.mean)
        inflated = moves.shares * np.exp(moves.common)
        rounded = np.expm1(moves.in_mean) * (inflated @ head.sizes)
        rounded += np.expm1(moves.in_sum) * inflated.sum() * np.abs(moves.mean)
        return moves.quotient(moved + rounded)


def _distance(weights: Floats, values: Floats, mean: Floats) -> Floats:
    """The sum of w |v - o|, [head_dim]; part by part, since more would leave the cache."""
    parts = (slice(start, start + PART) for start in range(0, len(weights), PART))
    each = (weights[part] @ np.abs(values[part] - mean) for part in parts)
    return sum(each, start=np.zeros_like(mean))


def _result_error(exact: Floats, bound: Floats, p: Precision, stored: Precision) -> Floats:
    """Step 6: a division, or a reciprocal and a product, and the cast to the result."""
    cast = stored.step if stored.unit > p.unit else 0.0
    relative = np.expm1(3 * p.step + cast + np.expm1(cast) ** 2)
    # Where nothing is seen the answer is 0 and must be exactly that.
    flushed = np.where(bound > 0, p.tiny + stored.tiny, 0.0)
    with np.errstate(over="ignore"):
        error = np.asarray(relative * (np.abs(exact) + bound) + flushed)
        return np.where(np.abs(exact) + bound + error > stored.largest, np.inf, error)
