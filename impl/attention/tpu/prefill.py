"""Prefill: a block of query tokens of a sequence against one fetch, KV head by KV head.

K and V of a head are strided rows of the words of a fetch. They are extracted once for all queries
of the block that read this head, so that the extraction costs little.
"""

from typing import Any, NamedTuple

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


class Scratch(NamedTuple):
    """queries, sums [kv_heads, rows, width]; largest, total f32[kv_heads, rows, 128].

    words u32[lanes/128, words of a step, 128]; mixed f32[width/128, q_rows * q_heads, 128]: where
    rows of several heads are separated. A row of the others is a query head of the group and a
    query token; the tokens of a head are together.
    """

    queries: Any
    words: Any
    mixed: Any
    largest: Any
    total: Any
    sums: Any


def lanes(shape: Shape) -> int:
    """Registers of 128 lanes that a head fills."""
    return shape.width // LANES


def begin(shape: Shape, scratch: Scratch, block: Array) -> None:
    """Reset the scratch for a new block. block [q_rows, q_heads, width]: its rows of q."""
    scratch.largest[...] = jnp.full_like(scratch.largest, LOWEST)
    scratch.total[...] = jnp.zeros_like(scratch.total)
    scratch.sums[...] = jnp.zeros_like(scratch.sums)
    wide = block.astype(jnp.float32).reshape(-1, shape.width)
    size = shape.blocks.q_rows
    for lane in range(lanes(shape)):
        scratch.mixed[lane] = wide[:, lane * LANES : (lane + 1) * LANES]
    for head in range(shape.kv_heads):
        for member in range(shape.group):
            row = head * shape.group + member
            found = [
                scratch.mixed[lane, pl.ds(row, size, stride=shape.q_heads), :]
                for lane in range(lanes(shape))
            ]
            rows = slice(member * size, (member + 1) * size)
            scratch.queries[head, rows, :] = joined(found).astype(shape.compute)


def result(shape: Shape, scratch: Scratch, sinks: Any) -> Array:
    """The result of a block: f32 [q_rows, q_heads, width]. sinks f32[q_heads, 128], or None."""
    size = shape.blocks.q_rows
    for head in range(shape.kv_heads):
        held = scratch.total[head], scratch.sums[head]
        if sinks is not None:
            own = sinks_of(shape, sinks, head)
            held = with_sink(shape, *held, scratch.largest[head], own)
        found = mean(*held)
        for member in range(shape.group):
            row = head * shape.group + member
            for lane in range(lanes(shape)):
                part = found[member * size : (member + 1) * size, lane * LANES : (lane + 1) * LANES]
                scratch.mixed[lane, pl.ds(row, size, stride=shape.q_heads), :] = part
    whole = joined([scratch.mixed[lane] for lane in range(lanes(shape))])
    return whole.reshape(size, shape.q_heads, shape.width)


def sinks_of(shape: Shape, sinks: Any, head: int) -> Array:
    """The sink of each row of a KV head: f32 [rows, 128]."""
    like = (shape.blocks.q_rows, LANES)
    first = head * shape.group
    rows = [jnp.broadcast_to(sinks[first + member, :], like) for member in range(shape.group)]
    return rows[0] if len(rows) == 1 else jnp.concatenate(rows)


def absorb(shape: Shape, scratch: Scratch, kv: Any, position: Array, span: Span) -> None:
    """Add one fetch to the online softmax. position: of the first query, from its start.

    Cells that every query sees are taken in long steps without a mask, others in short ones.
    """
    long, short = shape.blocks.prefill_cells, shape.edge_cells

    def whole(index: Array, _: None) -> None:
        _step(shape, scratch, kv, position, span, index * long, masked=False)

    def edge(index: Array, _: None) -> None:
        _step(shape, scratch, kv, position, span, index * short, masked=True)

    low, high = _whole(shape, position, span)
    first = rounded_up(low, long)
    last = jnp.maximum(first, quotient(high, long))
    end, each = rounded_up(span.high, short), long // short
    if shape.window is not None:
        with jax.named_scope("before"):
            lax.fori_loop(quotient(span.low, short), jnp.minimum(first * each, end), edge, None)
    with jax.named_scope("whole"):
        lax.fori_loop(first, last, whole, None)
    with jax.named_scope("after"):
        lax.fori_loop(last * each, end, edge, None)


def _whole(shape: Shape, position: Array, span: Span) -> tuple[Array, Array]:
    """The cells that every query of the block sees: from, to."""
    low, high = span.low, jnp.clip(position + 1, 0, span.high)
    if shape.window is None:
        return low, high
    return jnp.maximum(low, position + shape.blocks.q_rows - shape.window), high


def _step(
    shape: Shape,
    scratch: Scratch,
    kv: Any,
    position: Array,
    span: Span,
    start: Array,
    *,
    masked: bool,
) -> None:
    size = shape.edge_cells if masked else shape.blocks.prefill_cells
    _take_apart(shape, scratch, kv, span, start, size, masked=masked)
    seen = _seen(shape, position, span, start, size) if masked else None

    each = cells.each(shape)

    def absorb_head(turn: Array, member: int) -> None:
        head = turn * each + member
        keys, values = _head(shape, scratch, turn, member, size)
        held = scores(shape, scratch.queries[head], keys)
        if seen is not None:
            held = jnp.where(seen, held, LOWEST)
        before = scratch.largest[head]
        now = jnp.maximum(before, jnp.max(held, axis=1, keepdims=True))
        origin = jnp.where(now == LOWEST, 0.0, now)
        rescale = power(shape, before - origin)
        weights = power(shape, held - spread(origin, held.shape[1]))
        scratch.largest[head] = now
        scratch.total[head] = scratch.total[head] * rescale + by_lane(weights)
        added = weigh(shape, weights, values)
        scratch.sums[head] = scratch.sums[head] * spread(rescale, shape.width) + added

    def heads(turn: Array, _: None) -> None:
        for member in range(each):
            absorb_head(turn, member)

    lax.fori_loop(0, shape.kv_heads // each, heads, None)


def _take_apart(
    shape: Shape, scratch: Scratch, kv: Any, span: Span, start: Array, size: int, *, masked: bool
) -> None:
    """Copy the words of a step to scratch, where a strided load gives the rows of a head."""
    first = pl.multiple_of((span.start + start) * shape.rows, size * shape.rows)
    held = kv[pl.ds(first, size * shape.rows), :]
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


def joined(parts: list[Array]) -> Array:
    """The parts, concatenated along the last axis."""
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)


def sized(shape: Shape) -> Scratch:
    """The shapes of the scratch."""
    blocks, heads = shape.blocks, shape.kv_heads
    rows, deep = shape.group * blocks.q_rows, lanes(shape)
    words = blocks.prefill_cells * heads // shape.packing
    found = jnp.float32
    return Scratch(
        queries=pltpu.VMEM((heads, rows, shape.width), shape.compute),
        words=pltpu.VMEM((shape.lanes // LANES, words, LANES), jnp.uint32),
        mixed=pltpu.VMEM((deep, blocks.q_rows * shape.q_heads, LANES), found),
        largest=pltpu.VMEM((heads, rows, LANES), found),
        total=pltpu.VMEM((heads, rows, LANES), found),
        sums=pltpu.VMEM((heads, rows, shape.width), found),
    )
