"""Prefill: a block of query tokens of a sequence against one fetch, KV head by KV head.

K and V of a head are strided rows of the words of a fetch. They are extracted once for all queries
of the block that read this head, so that the extraction costs little.
"""

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
    mean,
    power,
    scores,
    spread,
    weigh,
    with_sink,
)
from impl.attention.tpu.shape import LANES, Shape

OVERLAPPED: Final = 2**20
"""Scores of the heads that are taken together: fewer leave units idle, and more do not fit."""
WAITING: Final = 2**17
"""Scores of the heads whose product with V waits while those of others are multiplied with K."""


class Scratch(NamedTuple):
    """queries, sums [kv_heads, rows, width]; largest, total f32[kv_heads, rows, 128].

    words u32[lanes/128, words of a step, 128]: where rows of several heads are separated. A row of
    the others is a query head of the group and a query token; the tokens of a head are together.
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
        return Scratch(self.queries.at[:, first], self.words, *parts)


def begin(shape: Shape, scratch: Scratch, block: Array) -> None:
    """Reset the scratch for a new block. block [q_rows, q_heads, width]: its rows of q."""
    scratch.largest[...] = jnp.full(scratch.largest.shape, LOWEST)
    scratch.total[...] = jnp.zeros(scratch.total.shape)
    scratch.sums[...] = jnp.zeros(scratch.sums.shape)
    by_head = jnp.swapaxes(block.astype(jnp.float32), 0, 1)
    for head in range(shape.kv_heads):
        own = by_head[head * shape.group : (head + 1) * shape.group]
        scratch.queries[head] = own.reshape(-1, shape.width).astype(shape.compute)


def result(shape: Shape, scratch: Scratch, sinks: Any) -> Array:
    """The result of a block: f32 [q_rows, q_heads, width]. sinks f32[q_heads, 128], or None."""
    parts = []
    for head in range(shape.kv_heads):
        held = scratch.total[head], scratch.sums[head]
        if sinks is not None:
            own = sinks_of(shape, sinks, head)
            held = with_sink(shape, *held, scratch.largest[head], own)
        parts.append(mean(*held).reshape(shape.group, shape.blocks.q_rows, shape.width))
    missing = shape.q_heads - shape.kv_heads * shape.group
    if missing:
        parts.append(jnp.zeros((missing, *parts[0].shape[1:]), jnp.float32))
    return jnp.swapaxes(jnp.concatenate(parts), 0, 1)


def sinks_of(shape: Shape, sinks: Any, head: int) -> Array:
    """The sink of each row of a KV head: f32 [rows, 128]."""
    like = (shape.blocks.q_rows, LANES)
    first = head * shape.group
    rows = [jnp.broadcast_to(sinks[first + member, :], like) for member in range(shape.group)]
    return rows[0] if len(rows) == 1 else jnp.concatenate(rows)


def absorb(shape: Shape, scratch: Scratch, kv: cells.Held, position: Array, span: Span) -> None:
    """Add one fetch to the online softmax. position: of the first query, from its start.

    Cells that every query sees are taken without a mask, in long steps as far as these fit.
    """
    long, short = shape.blocks.prefill_cells, shape.edge_cells
    step = partial(_step, shape, scratch, kv, position, span)

    def whole(index: Array, _: None) -> None:
        step(index, long, masked=False)

    def shorter(index: Array, _: None) -> None:
        step(index, short, masked=False)

    def edge(index: Array, _: None) -> None:
        step(index, short, masked=True)

    low, high = _whole(shape, position, span)
    first = rounded_up(low, long)
    last = jnp.maximum(first, quotient(high, long))
    end, each = rounded_up(span.high, short), long // short
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
) -> None:
    """One of the steps of this size. masked: whether not every query sees all of its cells."""
    start = index * size
    _take_apart(shape, scratch, kv, span, start, size, masked=masked)
    seen = _seen(shape, position, span, start, size) if masked else None
    scales = partial(_scales, shape, kv, span, start, size, masked=masked)

    each, together = cells.each(shape), heads_at_once(shape, size)
    ahead = min(4, WAITING // _scores(shape, size))

    def several(index: Any, _: None) -> None:
        """Add some heads. Products with K stand before those with V of as many heads as wait."""
        waiting = list[Scored]()
        for number in range(together + ahead):
            if number < together:
                turn = index * (together // each) + number // each
                waiting.append(_scored(shape, scratch, turn, number % each, size, seen, scales))
            if number >= ahead:
                _add(shape, scratch, waiting[number - ahead])

    if together == shape.kv_heads:
        several(0, None)
    else:
        lax.fori_loop(0, shape.kv_heads // together, several, None)


def heads_at_once(shape: Shape, size: int) -> int:
    """KV heads that are taken together in a step of so many cells; with all there is no loop."""
    each = cells.each(shape)
    turns, one = shape.kv_heads // each, each * _scores(shape, size)
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
    turn: Any,
    member: int,
    size: int,
    seen: Array | None,
    scales: Callable[[Any, int], Array | None],
) -> Scored:
    """Multiply Q with K. seen: which cells each query sees; None for all. scales: see `_scales`."""
    head = turn * cells.each(shape) + member
    keys, values = _head(shape, scratch, turn, member, size)
    held = scores(shape, scratch.queries[head], keys, scales(head, cells.OF_KEYS))
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
    """The scales f32[1, cells] of K or V of a head in a step, if there are any.

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
    origin = jnp.where(now == LOWEST, 0.0, now)
    rescale = power(shape, before - origin)
    weights = power(shape, held - spread(origin, held.shape[1]))
    scratch.largest[head] = now
    scratch.total[head] = scratch.total[head] * rescale + by_lane(weights)
    added = weigh(shape, weights, values, scales)
    scratch.sums[head] = scratch.sums[head] * spread(rescale, shape.width) + added


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
    _, token = divide(lax.broadcasted_iota(jnp.int32, (rows, size), 0), shape.blocks.q_rows)
    seen = (cell <= position + token) & (cell < span.high)
    return seen if shape.window is None else seen & (cell > position + token - shape.window)


def sized(shape: Shape) -> Scratch:
    """The shapes of the scratch."""
    blocks, heads = shape.blocks, shape.kv_heads
    rows = shape.group * blocks.q_rows
    words = blocks.prefill_cells * heads // shape.packing
    found = jnp.float32
    return Scratch(
        queries=pltpu.VMEM((heads, rows, shape.width), shape.compute),
        words=pltpu.VMEM((shape.lanes // LANES, words, LANES), jnp.uint32),
        largest=pltpu.VMEM((heads, rows, LANES), found),
        total=pltpu.VMEM((heads, rows, LANES), found),
        sums=pltpu.VMEM((heads, rows, shape.width), found),
    )
