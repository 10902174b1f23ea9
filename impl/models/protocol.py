"""What the engine asks of a model: storage, one step over a batch, and draws.

A model is a frozen, hashable description, static under jit; its weights are a pytree that is
passed alongside. It never plans: where tokens are stored and what is read comes in the plan.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from jax import Array

from spec.vocabulary.geometry import Geometry

Weights = Any
"""The pytree of a model's weights: any, since only the model looks inside."""

Cache = tuple[Array, ...]
"""One pool `kv_pages [pages, page_size, 2 * kv_heads, head_dim]` per layer."""


class BatchPlan(NamedTuple):
    """One batch of at most T tokens of at most B sequences, as attention consumes it.

    Plan order is stable by slot, then position, padding last. Source: seed 000, section 5.2
    (`PageBatchInfo`). The fields after `slot_ids` and up to `num_seqs` have the names and meaning
    of the ragged paged attention interface.

    slot_ids i32[B]: the slot of each sequence, INVALID past `num_seqs`.
    page_indices i32[B, pages_per_seq]: the slots' table rows.
    kv_lens i32[B]: the slots' lengths with this batch included.
    cu_q_lens i32[B + 1]: sequence b's tokens are cu_q_lens[b] to cu_q_lens[b + 1] in plan order.
    num_seqs i32[]: sequences present.
    order i32[T]: for each token in plan order, its index in the caller's batch.
    destinations i32[T]: for each token in plan order, `page * page_size + offset`; INVALID for
    padding, and for every token of a refused plan.
    """

    slot_ids: Array
    page_indices: Array
    kv_lens: Array
    cu_q_lens: Array
    num_seqs: Array
    order: Array
    destinations: Array


@runtime_checkable
class Model(Protocol):
    """A model that the engine can run; frozen and hashable."""

    @property
    def vocabulary(self) -> int:
        """The token ids that it knows are those below this; the engine takes no other."""
        ...

    def weight_shapes(self) -> Weights:
        """Its weights with a jax.ShapeDtypeStruct for each array; what an engine is given fits."""
        ...

    def empty_cache(self, geometry: Geometry) -> Cache:
        """A zeroed pool per layer, with the geometry's pages of the geometry's size."""
        ...

    def decode(
        self, params: Weights, cache: Cache, plan: BatchPlan, tokens: Array, positions: Array
    ) -> tuple[Array, Cache]:
        """Store K and V of the batch's tokens, then run the model on them.

        tokens and positions i32[T], in plan order. Returns one row [T, ...] per token, in plan
        order, that `sample` can draw from, and the cache. Rows of padding mean nothing. Nothing
        is written where `destinations` is out of range.
        """
        ...

    def sample(
        self,
        params: Weights,
        rows: Array,
        seeds: Array,
        choices: Array,
        positions: Array,
        temperatures: Array,
    ) -> tuple[Array, Array]:
        """Draw one token per row: (tokens i32[N], log-probabilities f32[N]).

        rows [N, ...] from `decode`; seeds, choices and positions (of the drawn token) i32[N];
        temperatures f32[N], 0 for greedy. A draw depends on its own row and numbers alone. The
        log-probability is that of the drawn token before temperature.
        """
        ...
