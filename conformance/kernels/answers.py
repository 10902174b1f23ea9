"""Whether an answer is right: finite, and within the derived bound of the float64 oracle.

And whether it is tight: within the probabilistic bound.
"""

from collections.abc import Callable, Collection
from typing import Any, Final, TypedDict

import numpy as np
from attrs import frozen
from numpy.typing import ArrayLike, DTypeLike, NDArray

from conformance.kernels.batches import Arrays, Ints, Sizes, named_pages
from conformance.numerics import oracle, probabilistic_bound

Floats = oracle.Floats
NEAREST: Final = 2
"""Tokens of which the probabilistic bound is computed."""
TOLERANCE: Final = 0.15
"""The tolerance of public tests of ragged paged attention, relative and absolute."""


class _Asked(TypedDict):
    """What the oracle is asked for beside the arrays."""

    scale: float
    soft_cap: float | None
    sliding_window: int | None
    sinks: Floats | None
    scales: NDArray[Any] | None


@frozen(eq=False)
class Right:
    """The oracle's answer, and the error bounds. [T, q_heads, head_dim].

    likely: the bound for random roundings of some tokens, 0 for the others; it decides nothing.
    """

    answer: Floats
    bound: Floats
    likely: Callable[[Collection[int]], Floats]

    def tolerated(self, found: ArrayLike, *, rows: int) -> bool:
        """Whether a test with the tolerance of public tests would pass."""
        given = np.asarray(found, np.float64)[:rows]
        return bool(np.allclose(given, self.answer[:rows], rtol=TOLERANCE, atol=TOLERANCE))

    def ratio(self, found: ArrayLike, *, rows: int) -> float:
        """The largest error over the bound in the first `rows` tokens; infinite for NaN.

        The other rows belong to no sequence, and may hold anything.
        """
        return ratio(np.asarray(found)[:rows], self.answer[:rows], self.bound[:rows])

    def looseness(self, found: ArrayLike, *, rows: int) -> float:
        """Like `ratio`, relative to the probabilistic bound, of the tokens NEAREST to `bound`.

        That bound takes most of the time of a judgement, so it is computed for few.
        """
        held, answer = np.asarray(found)[:rows], self.answer[:rows]
        worst = _shares(held, answer, self.bound[:rows]).max(axis=(1, 2), initial=0.0)
        nearest = np.argsort(-worst, stable=True)[:NEAREST]
        if not len(nearest):
            return 0.0
        likely = self.likely({int(token) for token in nearest})
        return ratio(held[nearest], answer[nearest], likely[nearest])


def ratio(found: ArrayLike, answer: Floats, bound: Floats) -> float:
    """The largest error over the bound; infinite for NaN."""
    return float(_shares(found, answer, bound).max(initial=0.0))


def _shares(found: ArrayLike, answer: Floats, bound: Floats) -> Floats:
    """The error of each number over its bound."""
    error = np.abs(np.asarray(found, np.float64) - answer)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(error == 0.0, 0.0, error / bound)
    return np.where(np.isnan(shares), np.inf, shares)


def right(sizes: Sizes, arrays: Arrays) -> Right:
    """The oracle's answer and the bounds for any blocking, see docs/attention.md."""
    options = sizes.options
    by = options.get("v_scale", 1.0)
    named = named_pages(sizes, arrays.page_indices)
    asked = _Asked(
        scale=options.get("scale", 1.0) * options.get("k_scale", 1.0),
        soft_cap=options.get("soft_cap"),
        sliding_window=options.get("sliding_window"),
        sinks=None if arrays.sinks is None else arrays.sinks.astype(np.float64),
        scales=None if arrays.scales is None else arrays.scales[named],
    )
    given = _in_float64(sizes, arrays, named)
    result, weights = _formats(sizes.kinds)
    answer, certain = (
        found[: len(arrays.q)]
        for found in oracle.bounded(
            oracle.certain_error, *given, **asked, result=result, weights=weights
        )
    )
    step = (by != 1.0) * float(np.finfo(np.float32).eps)  # of v_scale, and of the folded scale

    def grown(error: Floats) -> Floats:
        more = step * (np.abs(answer) + error) if step else 0.0  # an error may be infinite
        return np.asarray(abs(by) * (error + more))

    def likely(tokens: Collection[int]) -> Floats:
        found = probabilistic_bound.probable_bound(
            *given, **asked, result=result, weights=weights, tokens=tokens
        )
        return grown(found[: len(arrays.q)])

    return Right(by * answer, grown(certain), likely)


def _in_float64(sizes: Sizes, arrays: Arrays, named: Ints) -> tuple[NDArray[Any], ...]:
    """The arrays for the oracle: the pages that the table names, and a row for each query."""
    q, pool, lens, table, starts, count = arrays
    missing = max(0, int(starts[: count[0] + 1].max()) - len(q))
    q = np.pad(q, ((0, missing), (0, 0), (0, 0)))
    places = np.searchsorted(named, np.clip(table, 0, sizes.pages - 1))
    inside = (table >= 0) & (table < sizes.pages)
    table = np.where(inside, places, len(named)).astype(table.dtype)
    return (np.asarray(q, np.float64), pool[named], lens, table, starts, count)


def _formats(kinds: tuple[str, str]) -> tuple[DTypeLike, DTypeLike | None]:
    """The formats of the result and of the weights.

    Weights may be narrowed to the 16-bit dtype in which V is read, unless that is float32.
    """
    q_kind, kv_kind = kinds
    exact = kv_kind == "float32"
    import ml_dtypes

    return getattr(ml_dtypes, q_kind, q_kind), None if exact else ml_dtypes.bfloat16
