"""The protocol of a model: its storage, one step over a batch, and draws.

A model is a frozen, hashable description, static under jit; its weights are a pytree that is
passed alongside. It never plans: the plan says which cells are written and which are read.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from jax import Array
from jaxtyping import Float32, Int32, Shaped

from spec.vocabulary.geometry import Geometry

Weights = Any
"""The pytree of a model's weights, of any structure, since only the model uses it."""

Cache = tuple[Array, ...]
"""One pool per layer: an array of pages, in a shape of `impl.cache` that the model chooses."""


class BatchPlan(NamedTuple):
    """One batch of at most T tokens of at most B sequences, as attention consumes it.

    Plan order is stable by slot, then position, padding last. Source: docs/sources.md, "Batch
    plan". The fields after `slot_ids` and up to `num_seqs` have the names and meaning of the ragged
    paged attention interface.

    slot_ids: the slot of each sequence, INVALID past `num_seqs`.
    page_indices: the slots' table rows; an entry that names no page is INVALID.
    kv_lens: the slots' lengths with this batch included.
    cu_q_lens: sequence b's tokens are cu_q_lens[b] to cu_q_lens[b + 1] in plan order.
    num_seqs: sequences present.
    order: for each token in plan order, its index in the caller's batch.
    destinations: for each token in plan order, the cell that is its own (see `impl.cache.paged`);
    INVALID for padding, and for every token of a refused plan.
    """

    slot_ids: Int32[Array, " B"]
    page_indices: Int32[Array, "B M"]
    kv_lens: Int32[Array, " B"]
    cu_q_lens: Int32[Array, " B+1"]
    num_seqs: Int32[Array, ""]
    order: Int32[Array, " T"]
    destinations: Int32[Array, " T"]

    def assert_fits(self, tokens: Array) -> None:
        """Assert, while tracing, that the arrays fit together and to the tokens of the batch."""
        assert self.destinations.shape == tokens.shape, "a plan has a destination for each token"
        assert self.order.shape == tokens.shape, "a plan has a place for each token"
        seqs = self.slot_ids.shape[0]
        assert self.page_indices.shape[0] == seqs, "a plan has a row for each sequence"
        assert self.kv_lens.shape == (seqs,), "a plan has a length for each sequence"
        assert self.cu_q_lens.shape == (seqs + 1,), "a plan has the bounds of each sequence"


@runtime_checkable
class Model(Protocol):
    """A model that the engine can run; frozen and hashable."""

    @property
    def vocabulary(self) -> int:
        """The number of token ids; the engine accepts only ids below it."""
        ...

    def weight_shapes(self) -> Weights:
        """Its weights with a jax.ShapeDtypeStruct for each array; an engine checks against it."""
        ...

    def empty_cache(self, geometry: Geometry) -> Cache:
        """A zeroed pool per layer, with the geometry's pages of the geometry's size."""
        ...

    def decode(
        self,
        params: Weights,
        cache: Cache,
        plan: BatchPlan,
        tokens: Int32[Array, " T"],
        positions: Int32[Array, " T"],
        *,
        window: int | None,
    ) -> tuple[Shaped[Array, "T ..."], Cache]:
        """Store K and V of the batch's tokens, then run the model on them.

        tokens and positions: in plan order. window: how many positions a query sees, its own
        included; None: all up to its own. Cells before them are not read: their pages may be
        released, and table entries of those are INVALID. Returns one row per token, in plan order,
        that `sample` can draw from, and the cache. Rows of padding are meaningless. Nothing is
        written where `destinations` is out of range.
        """
        ...

    def sample(
        self,
        params: Weights,
        rows: Shaped[Array, "N ..."],
        seeds: Int32[Array, " N"],
        choices: Int32[Array, " N"],
        positions: Int32[Array, " N"],
        temperatures: Float32[Array, " N"],
    ) -> tuple[Int32[Array, " N"], Float32[Array, " N"]]:
        """Draw one token per row: (tokens, log-probabilities).

        rows: from `decode`. positions: of the drawn tokens. temperatures: 0 for greedy. A draw
        depends on its own row and numbers alone. The log-probability is that of the drawn token
        before temperature.
        """
        ...
