"""Whether an answer is right: finite, and within the derived bound of the float64 oracle.

And whether it is tight: within the probabilistic bound.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from attrs import frozen

from conformance.kernels.batches import Arrays, Sizes
from conformance.numerics import oracle, probabilistic_bound

Floats = oracle.Floats
TOLERANCE: Final = 0.15
"""The tolerance of public tests of ragged paged attention, relative and absolute."""


@frozen(eq=False)
class Right:
    """The oracle's answer, and the error bounds. [T, q_heads, head_dim].

    likely: the bound for random roundings; it decides nothing.
    """

    answer: Floats
    bound: Floats
    likely: Floats

    def tolerated(self, found: Any, *, rows: int) -> bool:
        """Whether a test with the tolerance of public tests would pass."""
        given = np.asarray(found, np.float64)[:rows]
        return bool(np.allclose(given, self.answer[:rows], rtol=TOLERANCE, atol=TOLERANCE))

    def ratio(self, found: Any, *, rows: int) -> float:
        """The largest error over the bound in the first `rows` tokens; infinite for NaN.

        The other rows belong to no sequence, and may hold anything.
        """
        return self._share(found, self.bound, rows)

    def looseness(self, found: Any, *, rows: int) -> float:
        """Like `ratio`, relative to the probabilistic bound."""
        return self._share(found, self.likely, rows)

    def _share(self, found: Any, bound: Floats, rows: int) -> float:
        error = np.abs(np.asarray(found, np.float64)[:rows] - self.answer[:rows])
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(error == 0.0, 0.0, error / bound[:rows])
        shares = np.where(np.isnan(shares), np.inf, shares)
        return float(shares.max(initial=0.0))


def right(sizes: Sizes, arrays: Arrays) -> Right:
    """The oracle's answer and the bounds for any blocking, see docs/attention.md."""
    options: dict[str, Any] = dict(sizes.options)
    options["scale"] = options.get("scale", 1.0) * options.pop("k_scale", 1.0)
    by = options.pop("v_scale", 1.0)
    given = [np.asarray(array, np.float64) for array in (arrays.q, arrays.kv_pages)]
    rest: Any = (arrays.kv_lens, arrays.page_indices, arrays.cu_q_lens, arrays.num_seqs)
    answer = oracle.ragged_paged_attention(*given, *rest, **options)
    options |= _formats(sizes.kinds)
    step = (by != 1.0) * float(np.finfo(np.float32).eps)  # of v_scale, and of the folded scale
    bound, likely = (
        by * (error + step * (np.abs(answer) + error))
        for error in (
            oracle.error_bound(*given, *rest, **options),
            probabilistic_bound.probable_bound(*given, *rest, **options),
        )
    )
    return Right(by * answer, bound, likely)


def _formats(kinds: tuple[str, str]) -> Mapping[str, Any]:
    """Weights may be narrowed to the 16-bit dtype in which V is read, unless that is float32."""
    q_kind, kv_kind = kinds
    exact = kv_kind == "float32"
    import ml_dtypes

    result: Any = getattr(ml_dtypes, q_kind, q_kind)
    return {"result": result, "weights": None if exact else ml_dtypes.bfloat16}
