"""The exact model in JAX: a two-layer transformer in wrapping 32-bit integers.

Written from the description, not from `spec.model`: that the two agree is what is checked. K and V
of a position are stored in the paged cache like those of any model, with one head of width one, and
every output depends on each cell it may read and on no other.
"""

from typing import Any

import jax.numpy as jnp
from attrs import frozen
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float32, Int32, UInt32

from impl.cache import paged
from impl.models.protocol import BatchPlan, Cache
from spec.vocabulary import Geometry
from spec.vocabulary.integers import (
    KEY_FACTOR,
    KEY_SALTS,
    LAYERS,
    MIX_FACTORS,
    POSITION_FACTOR,
    TOKEN_FACTOR,
    VALUE_FACTOR,
    VALUE_SALTS,
    VOCABULARY,
)
from spec.vocabulary.rules import INT32_MAX


def _word(value: ArrayLike) -> UInt32[Array, "..."]:
    return jnp.asarray(value).astype(jnp.uint32)


def mix(word: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """A bijection of words."""
    word = word ^ word >> 16
    word = word * jnp.uint32(MIX_FACTORS[0])
    word = word ^ word >> 15
    word = word * jnp.uint32(MIX_FACTORS[1])
    return word ^ word >> 16


def draw_of(
    seeds: Int32[Array, " N"],
    choices: Int32[Array, " N"],
    positions: Int32[Array, " N"],
    temperatures: Float32[Array, " N"],
) -> UInt32[Array, " N"]:
    """The random words of N draws, from seed, choice and position only; 0 where greedy."""
    key = mix(mix(_word(seeds)) + _word(choices))
    return jnp.where(temperatures == 0, jnp.uint32(0), mix(key + _word(positions)))


@frozen
class IntegerModel:
    """A model without weights; `params` is ignored."""

    @property
    def vocabulary(self) -> int:
        """The model reads any token of an int32; the tokens that it draws are below VOCABULARY."""
        return INT32_MAX + 1

    def weight_shapes(self) -> tuple[()]:
        """An empty pytree: the model has no weights."""
        return ()

    def empty_cache(self, geometry: Geometry) -> Cache:
        """uint32 pools [pages, page_size, 2, 1], one per layer."""
        pool = paged.empty(geometry.pages, geometry.page_size, 1, 1, jnp.uint32)
        return tuple(jnp.array(pool) for _ in range(LAYERS))

    def decode(
        self,
        params: Any,
        cache: Cache,
        plan: BatchPlan,
        tokens: Int32[Array, " T"],
        positions: Int32[Array, " T"],
        *,
        window: int | None,
    ) -> tuple[UInt32[Array, " T"], Cache]:
        """See `protocol.Model.decode`; rows are the last hidden states."""
        plan.assert_fits(tokens)
        assert len(cache) == LAYERS, "there is a pool for each layer"
        hidden = mix(
            _word(tokens) * jnp.uint32(TOKEN_FACTOR)
            + _word(positions) * jnp.uint32(POSITION_FACTOR)
            + jnp.uint32(1)
        )
        index = jnp.arange(tokens.shape[0])
        seqs = jnp.searchsorted(plan.cu_q_lens[1:], index, side="right")
        pools = []
        for layer, pool in enumerate(cache):
            key = mix(hidden + jnp.uint32(KEY_SALTS[layer]))
            value = mix(hidden + jnp.uint32(VALUE_SALTS[layer]))
            stored = paged.write(pool, plan.destinations, key[:, None, None], value[:, None, None])
            hidden = mix(hidden + _attend(stored, plan, seqs, positions, window))
            pools.append(stored)
        return hidden, tuple(pools)

    def sample(
        self,
        params: Any,
        rows: UInt32[Array, " N"],
        seeds: Int32[Array, " N"],
        choices: Int32[Array, " N"],
        positions: Int32[Array, " N"],
        temperatures: Float32[Array, " N"],
    ) -> tuple[Int32[Array, " N"], Float32[Array, " N"]]:
        """See `protocol.Model.sample`; a log-probability is 24 bits of the row, not above 0."""
        draws = draw_of(seeds, choices, positions, temperatures)
        tokens = mix(rows + draws) % jnp.uint32(VOCABULARY)
        logprobs = -(rows >> 8).astype(jnp.float32) / jnp.float32(2**24)
        return tokens.astype(jnp.int32), logprobs


def _attend(
    pool: UInt32[Array, "P page_size 2 1"],
    plan: BatchPlan,
    seqs: Int32[Array, " T"],
    positions: Int32[Array, " T"],
    window: int | None,
) -> UInt32[Array, " T"]:
    """The weighted sum of the cells that each query sees, up to its position, through its row.

    With a window it is a difference of two sums from cell 0 on. Words wrap, so whatever the cells
    before the window hold cancels exactly.
    """
    read = pool.at[plan.page_indices, :, :, 0].get(mode="clip")
    cells = read.reshape(plan.page_indices.shape[0], -1, 2)
    order = 2 * jnp.arange(cells.shape[1], dtype=jnp.uint32) + 1
    mixed = jnp.uint32(KEY_FACTOR) * cells[..., 0] + jnp.uint32(VALUE_FACTOR) * cells[..., 1]
    sums = jnp.cumsum(order * mixed, axis=1, dtype=jnp.uint32)
    if window is None:
        return sums[seqs, positions]
    before = positions - window
    unseen = sums[seqs, jnp.maximum(before, 0)]
    return sums[seqs, positions] - jnp.where(before >= 0, unseen, jnp.uint32(0))
