"""Whether an answer is right: within the derived bound of the float64 oracle, and finite.

And whether it is tight: within the bound that roundings like coins would keep to.
"""

from typing import Final, TypedDict

import numpy as np
from attrs import frozen
from numpy.typing import ArrayLike, DTypeLike

from conformance.kernels.batches import Arrays, Sizes
from conformance.numerics import oracle, probabilistic_bound

Floats = oracle.Floats
TOLERANCE: Final = 0.15
"""Of the public tests of ragged paged attention, relative and absolute."""


class _Asked(TypedDict):
    """What the oracle is asked for beside the arrays."""

    scale: float
    soft_cap: float | None
    sliding_window: int | None


@frozen(eq=False)
class Right:
    """The oracle's answer, and how far a correct kernel may be from it. [T, q_heads, head_dim].

    likely: how far it may be if its roundings are random; more decides nothing.
    """

    answer: Floats
    bound: Floats
    likely: Floats

    def tolerated(self, found: ArrayLike, *, rows: int) -> bool:
        """Whether a test with the tolerance that is usual in public would pass."""
        given = np.asarray(found, np.float64)[:rows]
        return bool(np.allclose(given, self.answer[:rows], rtol=TOLERANCE, atol=TOLERANCE))

    def ratio(self, found: ArrayLike, *, rows: int) -> float:
        """The largest error over the bound of the first `rows` tokens; infinite for NaN.

        The rest belongs to no sequence, and may be anything.
        """
        return self._share(found, self.bound, rows)

    def looseness(self, found: ArrayLike, *, rows: int) -> float:
        """As `ratio`, over the probable bound."""
        return self._share(found, self.likely, rows)

    def _share(self, found: ArrayLike, bound: Floats, rows: int) -> float:
        error = np.abs(np.asarray(found, np.float64)[:rows] - self.answer[:rows])
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(error == 0.0, 0.0, error / bound[:rows])
        shares = np.where(np.isnan(shares), np.inf, shares)
        return float(shares.max(initial=0.0))


def right(sizes: Sizes, arrays: Arrays) -> Right:
    """What the mathematics says, and the bounds for any blocking, see docs/attention.md."""
    options = sizes.options
    by = options.get("v_scale", 1.0)
    asked = _Asked(
        scale=options.get("scale", 1.0) * options.get("k_scale", 1.0),
        soft_cap=options.get("soft_cap"),
        sliding_window=options.get("sliding_window"),
    )
    q, pool, *rest = arrays
    given = (np.asarray(q, np.float64), np.asarray(pool, np.float64), *rest)
    answer = oracle.ragged_paged_attention(*given, **asked)
    result, weights = _formats(sizes.kinds)
    step = (by != 1.0) * float(np.finfo(np.float32).eps)  # of v_scale, and of the folded scale
    bound, likely = (
        by * (error + step * (np.abs(answer) + error))
        for error in (
            oracle.error_bound(*given, **asked, result=result, weights=weights),
            probabilistic_bound.probable_bound(*given, **asked, result=result, weights=weights),
        )
    )
    return Right(by * answer, bound, likely)


def _formats(kinds: tuple[str, str]) -> tuple[DTypeLike, DTypeLike | None]:
    """Of the result and of the weights.

    Weights may be narrowed to 16 bits, the dtype of V as it is read, unless that is float32.
    """
    q_kind, kv_kind = kinds
    exact = kv_kind == "float32"
    import ml_dtypes

    return getattr(ml_dtypes, q_kind, q_kind), None if exact else ml_dtypes.bfloat16
