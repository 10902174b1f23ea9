"""Prefill: a block of query tokens of a sequence against one fetch, KV head by KV head.

K and V of a head are strided rows of the words of a fetch. They are extracted once for all queries
of the block that read this head, so that the extraction costs little.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from impl.attention.tpu import cells
from impl.attention.tpu.arithmetic import divide, quotient, rounded_up
from impl.attention.tpu.decode import (
    LOWEST,
    Span,
    by_lane,
    exponent,
    power,
    scores,
    spread,
    weigh,
    with_sink,
)
from impl.attention.tpu.shape import LANES, SUBLANES, Shape, power_to

OVERLAPPED: Final = 2**21
"""Scores of the heads that are taken together: fewer leave units idle, and more make long code."""
PART: Final = 2**18
"""Scores of a head that are worked on at a time: more of them are spilled from registers."""
LEAST: Final = 256
"""Fewest cells of such a part: a matrix unit takes so many."""
WAITING: Final = 2**17
"""Scores of the heads whose product with V waits while those of others are multiplied with K."""
AT_ONCE: Final = SUBLANES
"""Queries whose results are found together: for more, more registers are spilled."""
FLOOR: Final = -(2.0 - 2.0**-23) * 2.0**127
"""The largest score of a query that has seen nothing: with a finite one, no difference is NaN."""


class Scratch(NamedTuple):
    """sums f32[kv_heads, rows, width]; largest, total f32[kv_heads, rows, 128].

    queries u32[kv_heads, words, width]: rows in `Shape.compute`, as words of 32 bits. words
    u32[lanes/128, words of a step, 128]: where rows of several heads are separated. A row of the
    others is a query head of the group and a query token. The heads of a word, see `Shape.paired`,
    are neighbours; the tokens of these are together.
    """

    queries: Any
    words: Any
    largest: Any
    total: Any
    sums: Any

    def of(self, rows: int) -> "Scratch":
        """A part of it, for blocks of so many rows."""
        first = pl.ds(0, rows)
        parts = (held.at[:, first] for held in (self.largest, self.total, self.sums))
        queries = self.queries.at[:, : rows * self.queries.shape[1] // self.sums.shape[1]]
        return Scratch(queries, self.words, *parts)


def begin(shape: Shape, scratch: Scratch, block: Array) -> None:
    """Bring the queries of a new block together by KV head. block [q_rows, q_heads, width]."""
    count = shape.group // shape.paired
    found = jnp.swapaxes(pltpu.bitcast(block.astype(shape.joined), jnp.uint32), 0, 1)
    for head in range(shape.kv_heads):
        own = found[head * count : (head + 1) * count].reshape(-1, shape.width)
        if shape.joined != shape.compute:
            own = pltpu.bitcast(pltpu.bitcast(own, shape.joined).astype(shape.compute), jnp.uint32)
        scratch.queries[head] = own


def result(shape: Shape, scratch: Scratch, sinks: Any, out: Any) -> None:
    """Put the result of a block in `out` [q_rows, q_heads, width], a few queries at a time.

    sinks f32[q_heads, 128], or None.
    """
    words = range(0, shape.kv_heads * shape.group, shape.paired)
    missing = (shape.q_heads - shape.kv_heads * shape.group) // shape.paired
    for first in range(0, shape.blocks.q_rows, AT_ONCE):
        parts = [_mean(shape, scratch, sinks, head, first) for head in words]
        parts += [jnp.zeros_like(parts[0])] * missing
        found = pltpu.bitcast(jnp.swapaxes(jnp.stack(parts), 0, 1), shape.joined)
        out[first : first + AT_ONCE] = found.astype(out.dtype)


def _mean(shape: Shape, scratch: Scratch, sinks: Any, head: int, first: int) -> Array:
    """The weighted mean of V for some queries of the heads of a word; 0 if they see nothing.

    head: the first of these query heads. first: the first of the queries. u32[AT_ONCE, width].
    """
    own, word = divmod(head, shape.group)
    begin = word * shape.blocks.q_rows + first * shape.paired
    rows = pl.ds(begin, AT_ONCE * shape.paired)
    total, sums = scratch.total[own, rows], scratch.sums[own, rows]
    if sinks is not None:
        largest = scratch.largest[own, rows]
        score = jnp.where(largest > FLOOR, largest * math.log(2.0), LOWEST)
        total, sums = with_sink(shape, total, sums, score, sinks_of(shape, sinks, head))
    # Exactly 0 means that nothing was seen; NaN in a live cell must come out, whatever its maximum.
    total = jnp.sum(total, axis=1, keepdims=True)
    found = jnp.where(total == 0.0, 0.0, sums * (_inverse(shape, total) * shape.v_scale))
    return pltpu.bitcast(found.astype(shape.joined), jnp.uint32)


def _inverse(shape: Shape, total: Array) -> Array:
    """1 / total: for results of 16 bits an approximation and one step of Newton's method."""
    if shape.exact:
        return 1.0 / total
    rough: Any = pl.reciprocal
    found: Array = rough(total, approx=True)
    return found * (2.0 - total * found)


def sinks_of(shape: Shape, sinks: Any, head: int) -> Array:
    """The sinks of the heads of a word, from this one on, for each row: f32[rows, 128]."""
    like = (AT_ONCE * shape.paired, LANES)
    _, second = divide(lax.broadcasted_iota(jnp.int32, like, 0), shape.paired)
    own = [jnp.broadcast_to(sinks[head + at, :], like) for at in range(shape.paired)]
    return jnp.where(second == 0, own[0], own[-1])


def open_with(
    shape: Shape, scratch: Scratch, block: Array, kv: cells.Held, position: Array, span: Span
) -> None:
    """Begin a block of queries, with the last step of its first fetch; see `begin`, `absorb`.

    The step needs no values from before, so that none are reset. Most of its work is that of the
    matrix unit, beside which the queries are brought into order.
    """
    begin(shape, scratch, block)
    with jax.named_scope("first"):
        index = rounded_up(span.high, shape.edge_cells) - 1
        _step(shape, scratch, kv, position, span, index, shape.edge_cells, masked=True, opens=True)


def absorb(
    shape: Shape, scratch: Scratch, kv: cells.Held, position: Array, span: Span, opens: Array
) -> None:
    """Add one fetch to the online softmax. position: of the first query, from its start.

    Cells that every query sees are taken without a mask, in long steps as far as these fit.
    opens: whether it is the first fetch of a block, of which `open_with` takes the last step.
    """
    long, short = whole_cells(shape), shape.edge_cells
    step = partial(_step, shape, scratch, kv, position, span)
    end = rounded_up(span.high, short) - opens.astype(jnp.int32)

    def whole(index: Array, _: None) -> None:
        step(index, long, masked=False)

    def shorter(index: Array, _: None) -> None:
        step(index, short, masked=False)

    def edge(index: Array, _: None) -> None:
        step(index, short, masked=True)

    low, high = _whole(shape, position, span)
    high = jnp.minimum(high, end * short)
    first = rounded_up(low, long)
    last = jnp.maximum(first, quotient(high, long))
    each = long // short
    seen = jnp.maximum(last * each, quotient(high, short))
    if shape.window is not None:
        with jax.named_scope("before"):
            lax.fori_loop(quotient(span.low, short), jnp.minimum(first * each, end), edge, None)
    with jax.named_scope("whole"):
        lax.fori_loop(first, last, whole, None)
    if each > 1:
        with jax.named_scope("shorter"):
            lax.fori_loop(last * each, seen, shorter, None)
    with jax.named_scope("after"):
        lax.fori_loop(seen, end, edge, None)


def _whole(shape: Shape, position: Array, span: Span) -> tuple[Array, Array]:
    """The cells that every query of the block sees: from, to."""
    low, high = span.low, jnp.clip(position + 1, 0, span.high)
    if shape.window is None:
        return low, high
    return jnp.maximum(low, position + shape.blocks.q_rows - shape.window), high


def _step(
    shape: Shape,
    scratch: Scratch,
    kv: cells.Held,
    position: Array,
    span: Span,
    index: Array,
    size: int,
    *,
    masked: bool,
    opens: bool = False,
) -> None:
    """One of the steps of this size. masked: whether not every query sees all of its cells.

    opens: whether it is the first step of a block.
    """
    part = _part_cells(shape, size)
    words = part * shape.kv_heads // shape.packing
    for number in range(size // part):  # the next one can begin before one is complete
        start = index * size + number * part
        own = scratch._replace(words=scratch.words.at[:, pl.ds(number % 2 * words, words)])
        _take_apart(shape, own, kv, span, start, part, masked=masked)
        seen = _seen(shape, position, span, start, part) if masked else None
        scales = partial(_scales, shape, kv, span, start, part, masked=masked)
        scored = partial(_scored, shape, own, part, seen, scales)
        add = _set if opens and number == 0 else _add
        _of_all_heads(shape, part, scored, partial(add, shape, own))


def _of_all_heads(
    shape: Shape,
    part: int,
    scored: Callable[[Any, int], "Scored"],
    add: Callable[["Scored"], None],
) -> None:
    """Add a part of a step. scored: takes the turn of a head, and its index in the turn."""
    each, together = cells.each(shape), heads_at_once(shape, part)
    ahead = min(4, WAITING // _scores(shape, part))

    def several(index: Any, _: None) -> None:
        """Add some heads. Products with K stand before those with V of as many heads as wait."""
        waiting = list[Scored]()
        for number in range(together + ahead):
            if number < together:
                turn = index * (together // each) + number // each
                waiting.append(scored(turn, number % each))
            if number >= ahead:
                add(waiting[number - ahead])

    if together == shape.kv_heads:
        several(0, None)
    else:
        lax.fori_loop(0, shape.kv_heads // together, several, None)


def whole_cells(shape: Shape) -> int:
    """Cells of a step without a mask: two parts, if one can begin before the other is complete."""
    most = shape.blocks.prefill_cells
    parts = 2 if heads_at_once(shape, most) == shape.kv_heads else 1
    return max(shape.edge_cells, min(most, parts * _part_cells(shape, most)))


def _part_cells(shape: Shape, size: int) -> int:
    """Cells of a part of a step of so many cells."""
    return min(size, max(LEAST, power_to(PART // (shape.group * shape.blocks.q_rows))))


def heads_at_once(shape: Shape, size: int) -> int:
    """KV heads that are taken together in a step of so many cells; with all there is no loop."""
    each = cells.each(shape)
    turns, one = shape.kv_heads // each, each * _scores(shape, _part_cells(shape, size))
    return each * next(
        many for many in (4, 2, 1) if many == 1 or (turns % many == 0 and many * one <= OVERLAPPED)
    )


def _scores(shape: Shape, size: int) -> int:
    """Scores of a KV head in a step of so many cells."""
    return shape.group * shape.blocks.q_rows * size


class Scored(NamedTuple):
    """The scores f32[rows, cells] of a head, with V [cells, width] and its scales f32[1, cells]."""

    head: Any
    scores: Array
    values: Array
    scales: Array | None


def _scored(
    shape: Shape,
    scratch: Scratch,
    size: int,
    seen: Array | None,
    scales: Callable[[Any, int], Array | None],
    turn: Any,
    member: int,
) -> Scored:
    """Multiply Q with K. seen: which cells each query sees; None for all. scales: see `_scales`.

    Scores become exponents of 2 here, so that differences of the largest ones need no factor.
    """
    head = turn * cells.each(shape) + member
    keys, values = _head(shape, scratch, turn, member, size)
    queries = pltpu.bitcast(scratch.queries[head], shape.compute)
    held = scores(shape, queries, keys, scales(head, cells.OF_KEYS)) * exponent(shape)
    held = held if seen is None else jnp.where(seen, held, LOWEST)
    return Scored(head, held, values, scales(head, cells.OF_VALUES))


def _scales(
    shape: Shape,
    kv: cells.Held,
    span: Span,
    start: Array,
    size: int,
    head: Any,
    kind: int,
    *,
    masked: bool,
) -> Array | None:
    """The scales f32[1, cells] of K or V of a head in a part of a step, if there are any.

    masked: 0 stands in cells that no query sees.
    """
    found = cells.scales_of_head(shape, kv, head, span.start + start, size, kind)
    if found is None or not masked:
        return found
    cell = cells.place(shape, lax.broadcasted_iota(jnp.int32, found.shape, 1), size)
    return cells.only_visible(shape, found, cell, span.low - start, span.high - start)


def _add(shape: Shape, scratch: Scratch, scored: Scored) -> None:
    """Add V, weighted by the exponentials of the scores."""
    head, held, values, scales = scored
    before = scratch.largest[head]
    now = jnp.maximum(before, jnp.max(held, axis=1, keepdims=True))
    rescale = power(before - now)
    weights = power(held - spread(now, held.shape[1]))
    scratch.largest[head] = now
    scratch.total[head] = scratch.total[head] * rescale + by_lane(weights)
    added = weigh(shape, weights, values, scales)
    scratch.sums[head] = scratch.sums[head] * spread(rescale, shape.width) + added


def _set(shape: Shape, scratch: Scratch, scored: Scored) -> None:
    """The same for the first step of a block."""
    head, held, values, scales = scored
    like = scratch.largest.shape[1:]
    largest = jnp.broadcast_to(jnp.maximum(jnp.max(held, axis=1, keepdims=True), FLOOR), like)
    weights = power(held - spread(largest, held.shape[1]))
    scratch.largest[head] = largest
    scratch.total[head] = by_lane(weights)
    scratch.sums[head] = weigh(shape, weights, values, scales)


def _take_apart(
    shape: Shape,
    scratch: Scratch,
    kv: cells.Held,
    span: Span,
    start: Array,
    size: int,
    *,
    masked: bool,
) -> None:
    """Copy the words of a step to scratch, where a strided load gives the rows of a head."""
    held = cells.rows(shape, kv, span.start + start, size, 0, shape.lanes)
    if masked:
        held = cells.blanked(shape, held, span.low - start, span.high - start)
    cells.put(scratch.words, cells.words(shape, held))


def _head(
    shape: Shape, scratch: Scratch, turn: Array, member: int, size: int
) -> tuple[Array, Array]:
    """K and V of one head, [cells, width]. member: the index of the head in its turn."""
    both = cells.product(shape, cells.separate(shape, scratch.words, turn, member, size))
    first = shape.key_register
    return both[:, first : first + shape.width], both[:, : shape.width]


def _seen(shape: Shape, position: Array, span: Span, start: Array, size: int) -> Array:
    """bool [rows, cells]: which cell each query may see; causality keeps it below the length."""
    rows = shape.group * shape.blocks.q_rows
    index = lax.broadcasted_iota(jnp.int32, (rows, size), 1)
    cell = start + cells.place(shape, index, size)
    word, _ = divide(lax.broadcasted_iota(jnp.int32, (rows, size), 0), shape.paired)
    _, token = divide(word, shape.blocks.q_rows)
    seen = (cell <= position + token) & (cell < span.high)
    return seen if shape.window is None else seen & (cell > position + token - shape.window)


def sized(shape: Shape) -> Scratch:
    """The shapes of the scratch."""
    blocks, heads = shape.blocks, shape.kv_heads
    rows = shape.group * blocks.q_rows
    words = blocks.prefill_cells * heads // shape.packing
    size, found = int(jnp.dtype(shape.compute).itemsize), jnp.float32
    return Scratch(
        queries=pltpu.VMEM((heads, rows * size // 4, shape.width), jnp.uint32),
        words=pltpu.VMEM((shape.lanes // LANES, words, LANES), jnp.uint32),
        largest=pltpu.VMEM((heads, rows, LANES), found),
        total=pltpu.VMEM((heads, rows, LANES), found),
        sums=pltpu.VMEM((heads, rows, shape.width), found),
    )
