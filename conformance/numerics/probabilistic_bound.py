"""A probabilistic error bound of attention, for random roundings.

`oracle.error_bound` adds up every rounding at its worst. Here roundings are random with mean zero,
and add up like their squares: a model, not a theorem about any machine. docs/probabilistic-bound.md
derives the bound, and shows where the model is wrong; the comments below use its symbols.
"""

import math
from collections.abc import Collection
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from conformance.numerics import oracle
from conformance.numerics.oracle import Drift, Floats, Head
from spec.vocabulary.errors import InvalidInput

FAILURE: Final = 1e-9
"""The probability, in the model, that any element of a batch exceeds the bound."""


def probable_bound(
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
    failure: float = FAILURE,
    tokens: Collection[int] | None = None,
) -> Floats:
    """The probabilistic bound; never above `oracle.error_bound`: [T, q_heads, head_dim].

    The steps are taken in the order of the positions, and that of a sink is the last. failure: the
    probability, above 0 and below 1, with which the model allows one element or more of this batch
    beyond its bound. tokens: whose rows are wanted; the others are 0. Raises InvalidInput like
    `error_bound`, and for any other failure.
    """
    if not 0 < failure < 1:
        raise InvalidInput(
            "failure", seen=failure, allowed="above 0, below 1", remedy=f"Use {FAILURE}."
        )
    return oracle.bounded(
        partial(_error, deviations=deviations(np.size(q), failure)),
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
        tokens=tokens,
    )[1]


def deviations(elements: int, failure: float) -> float:
    """lambda: Azuma's inequality, applied to all elements together."""
    return math.sqrt(2 * math.log(2 * max(elements, 1) / failure))


def _error(head: Head, *, deviations: float) -> Floats:
    """The error [head_dim] of the quotient; at most the certain one."""
    rises = _rises(head)
    rescaled = rises[max(0, len(rises) - (head.steps.blocks - 1)) :]
    moves = oracle.drift(head, rescalings=len(rescaled))
    far = np.abs(apart := head.values - moves.mean)
    with np.errstate(over="ignore", invalid="ignore"):
        random = deviations * _deviation(head, moves, far)
        numerator = random + _shared(head, moves, far)
        numerator += _rescaling(head, moves, apart, rises, rescaled)
        likely = moves.quotient(numerator + _second_order(head, moves, far, len(rescaled)))
    return np.minimum(likely, oracle.certain_error(head))


def _rises(head: Head) -> NDArray[np.intp]:
    """The cells, in order, whose computed score may exceed all earlier ones: 1 to n - 1."""
    lowest = np.maximum.accumulate(head.scores - head.delta)
    return np.flatnonzero(head.scores[1:] + head.delta[1:] > lowest[:-1]) + 1


def _deviation(head: Head, moves: Drift, far: Floats) -> Floats:
    """The coefficient of lambda: the roundings that are treated as random, [head_dim]."""
    p, width = head.steps.precision, head.values.shape[1]
    r = head.steps.scalings
    random = (width + 1 + r) * head.magnitudes**2 + 2 * moves.gaps**2
    squares = p.step**2 * random + p.elementary**2
    scores = (moves.shares**2 * squares) @ np.square(far)
    narrowed = (1 + r) * p.step**2 + head.steps.narrow**2
    products = narrowed * (moves.shares**2 @ np.square(head.sizes))
    heights = (moves.shares @ head.sizes) ** 2 + moves.mean**2
    return np.asarray(np.sqrt(scores + products + p.step * moves.in_sum * heights))


def _shared(head: Head, moves: Drift, far: Floats) -> Floats:
    """Constants that are rounded once for all cells, and the soft cap, at their worst."""
    constants = head.steps.precision.step * (2 * np.abs(head.scores) + head.delta)
    capped = head.delta - head.raw
    return np.asarray((moves.shares * (constants + capped)) @ far)


def _rescaling(
    head: Head,
    moves: Drift,
    apart: Floats,
    rises: NDArray[np.intp],
    rescaled: NDArray[np.intp],
) -> Floats:
    """The rescaled sums times the error of a factor, at its worst, [head_dim]."""
    p, reach = head.steps.precision, moves.shares[:, None] * apart
    np.cumsum(reach, axis=0, out=reach)
    np.maximum.accumulate(np.abs(reach, out=reach), axis=0, out=reach)
    lowest = np.maximum.accumulate(head.scores - head.delta)
    jumps = head.scores[rises] + head.delta[rises] - lowest[rises - 1]
    exponents = 2 * p.step * (jumps @ reach[rises - 1])
    return np.asarray(exponents + p.elementary * reach[rescaled - 1].sum(axis=0))


def _second_order(head: Head, moves: Drift, far: Floats, rescalings: int) -> Floats:
    """Products of roundings, at their worst, [head_dim]."""
    p, roundings = head.steps.precision, head.values.shape[1] + 2 + head.steps.scalings
    underflow = head.raw - np.expm1(roundings * p.step) * head.magnitudes
    rest = _excess(roundings * p.step) * head.magnitudes + underflow
    rest = rest + _excess(3 * p.step) * moves.gaps + p.step * head.delta
    rest = rest + (rescalings + 1) * p.elementary**2
    if head.soft_cap is not None:
        rest = rest + head.raw**2 / (2 * head.soft_cap)
    size, mean = head.sizes, np.abs(moves.mean)
    error = (moves.shares * (_excess(moves.common) + rest)) @ far
    grown = moves.shares * np.expm1(moves.common)
    error += np.expm1(moves.in_mean) * (grown @ size) + np.expm1(moves.in_sum) * grown.sum() * mean
    error += _excess(moves.in_mean) * (moves.shares @ size) + _excess(moves.in_sum) * mean
    return np.asarray(error)


def _excess(far: Floats | float) -> Floats:
    """An upper bound of exp(x) - 1 - x for every x of this magnitude."""
    return np.asarray(np.square(far) / 2 * np.exp(far))
