"""Decoding: one query token of a sequence against one fetch of its cells, all heads at once.

The rows of K of all KV heads are one matrix, which every query head is multiplied with; the scores
of the other heads' rows are masked. That is more arithmetic than needed, but no row of the pool is
moved: the cost of decoding is to fill the matrix unit with K and V, once in either case. Steps
overlap: while one is summed up, the largest score of the next is found and the products of the one
after that are computed. Of four buffers of scores three are in use at a time, so that each step in
a group of four, or of eight, always has the same buffer.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import tpu as pltpu

from impl.attention.tpu import cells
from impl.attention.tpu.arithmetic import divide, quotient, rounded_up
from impl.attention.tpu.shape import LANES, Shape

LOWEST = -jnp.inf
BUFFERS = 4
AHEAD = 2


class Scratch(NamedTuple):
    """scores f32[4, q_heads, rows]; largest, total f32[q_heads, 128]; sums f32[q_heads, width]."""

    scores: Any
    largest: Any
    total: Any
    sums: Any


class Span(NamedTuple):
    """The visible cells of a fetch: low to high, counted from its start.

    start: where the fetch begins, in cells of the buffer.
    """

    start: Array
    low: Array
    high: Array


def begin(scratch: Scratch) -> None:
    """Reset the scratch for a new query."""
    scratch.largest[...] = jnp.full_like(scratch.largest, LOWEST)
    scratch.total[...] = jnp.zeros_like(scratch.total)
    scratch.sums[...] = jnp.zeros_like(scratch.sums)


def absorb(shape: Shape, scratch: Scratch, kv: Any, queries: Array, span: Span) -> None:
    """Add one fetch to the online softmax. queries [q_heads, width], in `Shape.compute`."""
    steps, size = shape.blocks.decode_steps, shape.blocks.decode_cells
    group = steps * size
    work = Work(shape, scratch, kv, queries, span)

    def turn(index: Array, carry: tuple[Array, Array], step: int | None) -> tuple[Array, Array]:
        """One step. step: its number in a group whose cells are all visible, or None."""
        before, now = carry
        masked, last = step is None, step is None or step == steps - 1
        work.add(index, _slot(index, step, 0), before, now, masked=masked)
        work.score(index + AHEAD, _slot(index, step, AHEAD))
        return now, work.largest(index + 1, _slot(index, step, 1), now, masked=last)

    def whole(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        for step in range(steps):
            carry = turn(number * steps + step, carry, step)
        return carry

    def ragged(index: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        return turn(index, carry, None)

    first, last = quotient(span.low, size), rounded_up(span.high, size)
    low = rounded_up(span.low, group)
    high = jnp.maximum(quotient(span.high, group), low)
    for ahead in range(AHEAD):
        work.score(first + ahead, _slot(first, None, ahead))
    before = scratch.largest[...]
    carry = (before, work.largest(first, _slot(first, None, 0), before, masked=True))
    if shape.window is not None:
        with jax.named_scope("before"):
            carry = lax.fori_loop(first, jnp.minimum(low * steps, last), ragged, carry)
    with jax.named_scope("whole"):
        carry = lax.fori_loop(low, high, whole, carry)
    with jax.named_scope("after"):
        carry = lax.fori_loop(high * steps, last, ragged, carry)
    scratch.largest[...] = carry[0]


def _slot(index: Array, step: int | None, ahead: int) -> Any:
    """The buffer of scores; it is static inside a group, which lets its steps overlap."""
    return divide(index + ahead, BUFFERS)[1] if step is None else (step + ahead) % BUFFERS


def result(shape: Shape, scratch: Scratch, sinks: Any) -> Array:
    """The result of a query: f32 [q_heads, width]. sinks f32[q_heads, 128], or None."""
    held = scratch.total[...], scratch.sums[...]
    if sinks is not None:
        held = with_sink(shape, *held, scratch.largest[...], sinks[...])
    return mean(*held)


def with_sink(
    shape: Shape, total: Array, sums: Array, largest: Array, sink: Array
) -> tuple[Array, Array]:
    """The sums with the weight of a sink [rows, 128] in the total; nothing seen stays nothing.

    Both are rescaled to the larger one of the largest score and the sink, so that no exponential
    overflows. A sink is a score after scale and cap, as `power` takes it with these.
    """
    score = largest * remaining(shape)
    top = jnp.maximum(score, sink)
    kept = jnp.where(score == LOWEST, 0.0, jnp.exp(score - top))
    lane = lax.broadcasted_iota(jnp.int32, total.shape, 1)
    own = jnp.where((lane == 0) & (score != LOWEST), jnp.exp(sink - top), 0.0)
    return total * kept + own, sums * spread(kept, sums.shape[1])


def mean(total: Array, sums: Array) -> Array:
    """The weighted mean of V; 0 where nothing was seen. total [rows, 128], by lanes."""
    total = jnp.sum(total, axis=1, keepdims=True)
    return jnp.where(total == 0.0, 0.0, sums / jnp.where(total == 0.0, 1.0, total))


class Work:
    """The three parts of a step. index: which step of the fetch; slot: which buffer of scores."""

    def __init__(self, shape: Shape, scratch: Scratch, kv: Any, queries: Array, span: Span) -> None:
        self.shape, self.scratch, self.kv = shape, scratch, kv
        self.queries, self.span = queries, span
        self.cells = shape.blocks.decode_cells
        self.count = self.cells * shape.kv_heads
        like = (shape.q_heads, self.count)
        self.cell, head = divide(lax.broadcasted_iota(jnp.int32, like, 1), shape.kv_heads)
        row, _ = divide(lax.broadcasted_iota(jnp.int32, like, 0), shape.group)
        self.own = head == row

    def _start(self, index: Array) -> Array:
        start = jnp.minimum(index * self.cells, self.shape.fetch_cells - self.cells)
        return self.span.start + start

    def score(self, index: Array, slot: Any) -> None:
        """Multiply Q with K, also past the end, where the scores are not used."""
        held = cells.keys(self.shape, self.kv, self._start(index), self.cells)
        found = cells.product(self.shape, held)
        self.scratch.scores[slot] = jnp.where(
            self.own, scores(self.shape, self.queries, found), LOWEST
        )

    def _scores(self, index: Array, slot: Any, *, masked: bool) -> Array:
        held: Array = self.scratch.scores[slot]
        if not masked:
            return held
        cell = index * self.cells + self.cell
        return jnp.where((cell >= self.span.low) & (cell < self.span.high), held, LOWEST)

    def largest(self, index: Array, slot: Any, before: Array, *, masked: bool) -> Array:
        """The largest score so far, this step's included; f32[q_heads, 128], all lanes the same."""
        held = self._scores(index, slot, masked=masked)
        return jnp.maximum(before, jnp.max(held, axis=1, keepdims=True))

    def add(self, index: Array, slot: Any, before: Array, now: Array, *, masked: bool) -> None:
        """Add V, weighted by the exponentials of the scores."""
        origin = jnp.where(now == LOWEST, 0.0, now)
        rescale = power(self.shape, before - origin)
        held = self._scores(index, slot, masked=masked)
        weights = power(self.shape, held - spread(origin, held.shape[1]))
        found = cells.values(self.shape, self.kv, self._start(index), self.cells)
        if masked:
            low, high = ((end - index * self.cells) for end in (self.span.low, self.span.high))
            found = cells.blanked(self.shape, found, low, high)
        total, sums = self.scratch.total, self.scratch.sums
        total[...] = total[...] * rescale + by_lane(weights)
        added = weigh(self.shape, weights, cells.product(self.shape, found))
        sums[...] = sums[...] * spread(rescale, added.shape[1]) + added


def scores(shape: Shape, queries: Array, keys: Array) -> Array:
    """Scores f32 [rows of Q, rows of K], capped if there is a cap; the input of `power`."""
    found = lax.dot_general(
        queries,
        keys,
        (((1,), (1,)), ((), ())),
        precision=precision(shape),
        preferred_element_type=jnp.float32,
    )
    if shape.soft_cap is None:
        return found if shape.scale > 0.0 else found * shape.scale
    return shape.soft_cap * jnp.tanh(found * shape.scale / shape.soft_cap)


def power(shape: Shape, difference: Array) -> Array:
    """e to a difference of scores; a positive scale is applied here, at no extra cost."""
    return jnp.exp2(difference * (remaining(shape) / math.log(2.0)))


def remaining(shape: Shape) -> float:
    """The factor that `scores` leaves to `power`."""
    return shape.scale if shape.soft_cap is None and shape.scale > 0.0 else 1.0


def weigh(shape: Shape, weights: Array, values: Array) -> Array:
    """The weighted sums of V: f32 [rows of the weights, width]."""
    return lax.dot_general(
        weights.astype(shape.compute),
        values,
        (((1,), (0,)), ((), ())),
        precision=precision(shape),
        preferred_element_type=jnp.float32,
    )


def precision(shape: Shape) -> Any:
    """The precision of products."""
    return lax.Precision.HIGHEST if shape.exact else lax.Precision.DEFAULT


def spread(column: Array, width: int) -> Array:
    """[rows, 128], all lanes the same, to [rows, width]: registers repeat, and no lane moves."""
    if width <= LANES:
        return column[:, :width]
    return jnp.concatenate([column] * (width // LANES), axis=1)


def by_lane(weights: Array) -> Array:
    """Sum over the registers of a row, f32[rows, 128]: the lanes are added once, at the end."""
    total = weights[:, :LANES]
    for start in range(LANES, weights.shape[1], LANES):
        total = total + weights[:, start : start + LANES]
    return total


def sized(shape: Shape) -> Scratch:
    """The shapes of the scratch."""
    words = shape.blocks.decode_cells * shape.kv_heads
    heads = shape.q_heads
    return Scratch(
        scores=pltpu.VMEM((BUFFERS, heads, words), jnp.float32),
        largest=pltpu.VMEM((heads, LANES), jnp.float32),
        total=pltpu.VMEM((heads, LANES), jnp.float32),
        sums=pltpu.VMEM((heads, shape.width), jnp.float32),
    )
