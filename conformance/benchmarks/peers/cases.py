"""The batches for the timing of attention, and the rows of each answer that the oracle judges."""

from functools import cached_property
from typing import Final, NamedTuple

import jax.numpy as jnp
import numpy as np
from attrs import field, frozen
from jax import Array
from numpy.typing import NDArray

from conformance.numerics import oracle

HEADS: Final = ((32, 8, 128), (8, 2, 64))
"""Query heads, KV heads, head_dim."""
JUDGED: Final = 3
"""Queries of each sequence that the oracle judges, the first and the last among them."""


class Arrays(NamedTuple):
    """The arguments of attention, in the order of the interface."""

    q: Array
    kv_pages: Array
    kv_lens: Array
    page_indices: Array
    cu_q_lens: Array
    num_seqs: Array


@frozen(kw_only=True)
class Size:
    """The size of a run. queries: of a sequence in prefill; seconds: of a peer's timed calls."""

    sequences: int
    cells: int
    queries: int
    page_size: int = 16
    dtype: str = "float32"
    seconds: float = 12.0
    turns: int = 51


CPU: Final = Size(sequences=10, cells=2048, queries=256)
ACCELERATOR: Final = Size(sequences=64, cells=2048, queries=256, dtype="bfloat16")
QUICK: Final = Size(sequences=3, cells=64, queries=24, turns=2, seconds=5.0)


@frozen(kw_only=True)
class Case:
    """One batch: every sequence has `size.cells` cells, its last `queries` are queries."""

    size: Size
    heads: tuple[int, int, int]
    queries: int
    seed: int = field(default=0)

    @property
    def name(self) -> str:
        """The name in the table."""
        kind = "decode" if self.queries == 1 else f"prefill of {self.queries}"
        return f"{kind}, {self.heads}"

    @property
    def scale(self) -> float:
        """The factor of the scores."""
        return float(self.heads[2] ** -0.5)

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V that the sequences own."""
        _, heads, width = self.heads
        cells = self.size.sequences * self.size.cells
        return cells * 2 * heads * width * jnp.dtype(self.size.dtype).itemsize

    @cached_property
    def arrays(self) -> Arrays:
        """Random q, K and V; pages in random order, each owned by a sequence."""
        q_heads, heads, width = self.heads
        count, size = self.size.sequences, self.size.page_size
        draws = np.random.default_rng(self.seed)
        rows = self.size.cells // size
        kv = draws.standard_normal((count * rows, size, 2 * heads, width), np.float32)
        q = draws.standard_normal((count * self.queries, q_heads, width), np.float32)
        return Arrays(
            jnp.asarray(q, self.size.dtype),
            jnp.asarray(kv, self.size.dtype),
            jnp.full(count, self.size.cells, jnp.int32),
            jnp.asarray(draws.permutation(count * rows).reshape(count, rows), jnp.int32),
            jnp.arange(count + 1, dtype=jnp.int32) * self.queries,
            jnp.asarray([count], jnp.int32),
        )

    @cached_property
    def judged(self) -> NDArray[np.int64]:
        """The judged rows of q, ascending: a few of each sequence, or all if it has no more."""
        picked = np.unique(np.linspace(0, self.queries - 1, JUDGED).astype(np.int64))
        return (np.arange(self.size.sequences)[:, None] * self.queries + picked).ravel()

    @cached_property
    def expected(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The oracle's answer for the judged rows, and the error bound.

        Each judged query is a sequence of its own, cut off after it. The bound covers every
        blocking, and products whose inputs were rounded to the dtype of q.
        """
        owner, offset = np.divmod(self.judged, self.queries)
        arrays = [np.asarray(part) for part in self.arrays]
        count = len(owner)
        batch = (
            arrays[0][self.judged],
            arrays[1],
            self.size.cells - self.queries + 1 + offset,
            arrays[3][owner],
            np.arange(count + 1),
            np.asarray(count),
        )
        weights = None if self.size.dtype == "float32" else "bfloat16"
        exact = oracle.ragged_paged_attention(*batch, scale=self.scale)
        return exact, oracle.error_bound(*batch, scale=self.scale, weights=weights)

    def wrong(self, answer: Array) -> str | None:
        """The reason why an answer is wrong, or None: its judged rows against the oracle."""
        shape = self.arrays.q.shape
        if answer.shape != shape:
            return f"shape {answer.shape}, not {shape}"
        exact, bound = self.expected
        error = np.abs(np.asarray(answer, np.float64)[self.judged] - exact)
        bad = np.argwhere(~(error <= bound))
        if not len(bad):
            return None
        row, head, at = bad[0]
        seen = (
            f"row {self.judged[row]}, head {head}, element {at}: off by {error[row, head, at]:.3g}"
        )
        return f"{len(bad)} elements out of bound; {seen}, bound {bound[row, head, at]:.3g}"


def cases(size: Size) -> tuple[Case, ...]:
    """Decode and prefill, for each choice of heads."""
    return tuple(
        Case(size=size, heads=heads, queries=queries)
        for queries in (1, size.queries)
        for heads in HEADS
    )
