"""Decoding: one query token of a sequence against one fetch of its cells, all heads at once.

The rows of K of all KV heads are one matrix, which every query head is multiplied with; the scores
of the other heads' rows are masked. That is more arithmetic than needed, but no row of the pool is
moved: the cost of decoding is to fill the matrix unit with K and V, once in either case. Steps
of a group overlap: while one is summed up, the largest score of the next is found and the products
of the one after that are computed. Of four buffers of scores three are in use at a time, so that
each step in a group of four, or of eight, always has the same buffer.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
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


class Cut(NamedTuple):
    """How a fetch is cut into steps: i32[] each, from its start.

    first to end: steps, of which those of the groups low to high are whole. Behind the last one
    there is a shorter step, if visible cells are left.
    """

    first: Array
    low: Array
    high: Array
    end: Array


def cut(shape: Shape, span: Span) -> Cut:
    """Whole groups of steps, and single ones before and after them."""
    size, steps = shape.blocks.decode_cells, shape.blocks.decode_steps
    shorter = max(shape.rest_cells, default=0)
    low = rounded_up(span.low, steps * size)
    high = jnp.maximum(quotient(span.high, steps * size), low)
    first = quotient(span.low, size)
    end = quotient(span.high + (size - shorter - 1), size)
    return Cut(first, low, high, end)


class Fetched(NamedTuple):
    """What decoding works with: a fetch, and the query. queries [q_heads, width], in `compute`."""

    shape: Shape
    scratch: Scratch
    kv: cells.Held
    queries: Array
    span: Span


def absorb(work: Fetched, beside: Callable[[Array], None] | None = None) -> None:
    """Add the steps of a fetch, but for the last, shorter one, to the online softmax.

    Steps of whole groups overlap, and need no mask. What is before and after them is taken in steps
    by themselves. beside: called in each step, with its number from the first one on, for what the
    scalar unit does meanwhile.
    """
    shape, at = work.shape, cut(work.shape, work.span)
    group = shape.blocks.decode_steps
    steps = Steps(work, shape.blocks.decode_cells, beside)

    def alone(index: Array, _: None) -> None:
        steps.alone(index)

    if shape.window is not None:
        with jax.named_scope("before"):
            lax.fori_loop(at.first, jnp.minimum(at.low * group, at.end), alone, None)
    with jax.named_scope("whole"):
        steps.groups(at.low, at.high)
    with jax.named_scope("after"):
        lax.fori_loop(at.high * group, at.end, alone, None)


def rest(work: Fetched) -> None:
    """Add the last step, as short as the cells allow."""
    begin = cut(work.shape, work.span).end * work.shape.blocks.decode_cells
    left = work.span.high - begin
    for size, shorter in pairwise((*work.shape.rest_cells, 0)):
        step = Steps(work, size)
        with jax.named_scope(str(size)):
            pl.when((left <= size) & (left > shorter))(partial(step.alone, quotient(begin, size)))


def result(shape: Shape, scratch: Scratch, sinks: Any) -> Array:
    """The result of a query: f32 [q_heads, width]. sinks f32[q_heads, 128], or None."""
    held = scratch.total[...], scratch.sums[...]
    if sinks is not None:
        score = scratch.largest[...] * remaining(shape)
        held = with_sink(shape, *held, score, sinks[...])
    return mean(*held)


def with_sink(
    shape: Shape, total: Array, sums: Array, score: Array, sink: Array
) -> tuple[Array, Array]:
    """The sums with the weight of a sink [rows, 128] in the total; nothing seen stays nothing.

    score: the largest one, after scale and cap, as a sink is. Both are rescaled to the larger one
    of it and the sink, so that no exponential overflows.
    """
    top = jnp.maximum(score, sink)
    kept = jnp.where(score == LOWEST, 0.0, jnp.exp(score - top))
    lane = lax.broadcasted_iota(jnp.int32, total.shape, 1)
    own = jnp.where((lane == 0) & (score != LOWEST), jnp.exp(sink - top), 0.0)
    return total * kept + own, sums * spread(kept, shape.width)


def mean(total: Array, sums: Array) -> Array:
    """The weighted mean of V; 0 where nothing was seen. total [rows, 128], by lanes."""
    total = jnp.sum(total, axis=1, keepdims=True)
    return jnp.where(total == 0.0, 0.0, sums * (1.0 / total))


class Steps:
    """Steps of one length over a fetch. index: which step of it; slot: which buffer of scores.

    beside: see `absorb`. The compiler moves a copy across no load of cells, so it is called between
    those of K and of V.
    """

    def __init__(
        self, work: Fetched, count: int, beside: Callable[[Array], None] | None = None
    ) -> None:
        self.shape, self.scratch, self.kv, self.queries, self.span = work
        self.cells, self.beside = count, beside
        self.first = quotient(self.span.low, count)

    def groups(self, first: Array, last: Array) -> None:
        """Whole groups, from one to another; slots are static, so that their steps overlap."""
        steps = self.shape.blocks.decode_steps

        @pl.when(first < last)
        def _() -> None:
            for ahead in range(AHEAD):
                self._score(first * steps + ahead, ahead)
            before = self.scratch.largest[...]
            carry = before, self._largest(0, before)

            def group(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
                for step in range(steps):
                    carry = self._turn(number * steps + step, step, *carry)
                return carry

            self.scratch.largest[...] = lax.fori_loop(first, last, group, carry)[0]

    def alone(self, index: Array) -> None:
        """One step by itself, of which not all cells may be visible."""
        low, high = ((end - index * self.cells) for end in (self.span.low, self.span.high))
        found = masked(self.shape, self._products(index), low, high)
        if self.beside is not None:
            self.beside(index - self.first)
        before = self.scratch.largest[...]
        now = jnp.maximum(before, jnp.max(found, axis=1, keepdims=True))
        self.scratch.largest[...] = now
        values = cells.values(self.shape, self.kv, self._start(index), self.cells)
        scales = self._scales(index, cells.OF_VALUES)
        if scales is not None:
            cell, _ = divide(lax.broadcasted_iota(jnp.int32, scales.shape, 1), self.shape.kv_heads)
            scales = cells.only_visible(self.shape, scales, cell, low, high)
        self._add(found, cells.blanked(self.shape, values, low, high), scales, before, now)

    def _turn(self, index: Array, step: int, before: Array, now: Array) -> tuple[Array, Array]:
        """Sum one step up, and prepare the two after it, which may be past the last group."""
        if self.beside is not None:
            self.beside(index - self.first)
        values = cells.values(self.shape, self.kv, self._start(index), self.cells)
        scales = self._scales(index, cells.OF_VALUES)
        self._add(self.scratch.scores[step % BUFFERS], values, scales, before, now)
        self._score(index + AHEAD, (step + AHEAD) % BUFFERS)
        return now, self._largest((step + 1) % BUFFERS, now)

    def _start(self, index: Array) -> Array:
        start = jnp.minimum(index * self.cells, self.shape.fetch_cells - self.cells)
        return self.span.start + start

    def _products(self, index: Array) -> Array:
        """Q with K, also past the end and of other heads; f32[q_heads, rows]."""
        held = cells.keys(self.shape, self.kv, self._start(index), self.cells)
        scales = self._scales(index, cells.OF_KEYS)
        return scores(self.shape, self.queries, cells.product(self.shape, held), scales)

    def _scales(self, index: Array, kind: int) -> Array | None:
        return cells.scales(self.shape, self.kv, self._start(index), self.cells, kind)

    def _score(self, index: Array, slot: int) -> None:
        self.scratch.scores[slot] = masked(self.shape, self._products(index))

    def _largest(self, slot: int, before: Array) -> Array:
        """The largest score so far, this step's included; f32[q_heads, 128], all lanes the same."""
        return jnp.maximum(before, jnp.max(self.scratch.scores[slot], axis=1, keepdims=True))

    def _add(
        self, held: Array, values: Array, scales: Array | None, before: Array, now: Array
    ) -> None:
        """Add V, weighted by the exponentials of the scores, and by its scales if it has any."""
        origin = jnp.where(now == LOWEST, 0.0, now)
        factor = exponent(self.shape)
        rescale = power((before - origin) * factor)
        weights = power((held - spread(origin, held.shape[1])) * factor)
        total, sums = self.scratch.total, self.scratch.sums
        total[...] = total[...] * rescale + by_lane(weights)
        added = weigh(self.shape, weights, cells.product(self.shape, values), scales)
        sums[...] = sums[...] * spread(rescale, added.shape[1]) + added


def masked(
    shape: Shape, found: Array, low: Array | None = None, high: Array | None = None
) -> Array:
    """Scores f32[q_heads, rows] with the lowest in place of those of other heads and cells.

    low, high: the visible cells, from the first row; all are without them. As far as the pattern of
    heads repeats from register to register, it is made once.
    """
    rows, heads = found.shape[1], shape.kv_heads
    width = LANES if LANES % heads == 0 else rows
    like = (shape.q_heads, width)
    cell, head = divide(lax.broadcasted_iota(jnp.int32, like, 1), heads)
    own = head == divide(lax.broadcasted_iota(jnp.int32, like, 0), shape.group)[0]
    parts = []
    for first in range(0, rows, width):
        seen = own
        if high is not None:
            seen = seen & (cell < high - first // heads)
        if low is not None and shape.window is not None:
            seen = seen & (cell >= low - first // heads)
        parts.append(jnp.where(seen, found[:, first : first + width], LOWEST))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)


def scores(shape: Shape, queries: Array, keys: Array, scales: Array | None) -> Array:
    """Scores f32 [rows of Q, rows of K], capped if there is a cap; see `exponent`.

    scales f32[1, rows of K], or None.
    """
    found = lax.dot_general(
        queries,
        keys,
        (((1,), (1,)), ((), ())),
        precision=precision(shape),
        preferred_element_type=jnp.float32,
    )
    if scales is not None:
        found = found * scales
    if shape.soft_cap is None:
        return found if shape.scale > 0.0 else found * shape.scale
    return shape.soft_cap * jnp.tanh(found * shape.scale / shape.soft_cap)


def power(difference: Array) -> Array:
    """2 to a difference of scores that are exponents of 2, see `exponent`."""
    return jnp.exp2(difference)


def exponent(shape: Shape) -> float:
    """The factor that makes of `scores` exponents of 2; a positive scale is in it, at no cost."""
    return remaining(shape) / math.log(2.0)


def remaining(shape: Shape) -> float:
    """The factor that `scores` leaves out."""
    return shape.scale if shape.soft_cap is None and shape.scale > 0.0 else 1.0


def weigh(shape: Shape, weights: Array, values: Array, scales: Array | None) -> Array:
    """The sums of V: f32 [rows of the weights, width]. scales f32[1, rows of V], or None."""
    if scales is not None:
        weights = weights * scales
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
