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


def _word(value: ArrayLike) -> Array:
    return jnp.asarray(value).astype(jnp.uint32)


def mix(word: Array) -> Array:
    """A bijection of uint32 words."""
    word = word ^ word >> 16
    word = word * jnp.uint32(MIX_FACTORS[0])
    word = word ^ word >> 15
    word = word * jnp.uint32(MIX_FACTORS[1])
    return word ^ word >> 16


def draw_of(seeds: Array, choices: Array, positions: Array, temperatures: Array) -> Array:
    """uint32[N]: functions of seed, choice and position only; 0 where greedy."""
    key = mix(mix(_word(seeds)) + _word(choices))
    return jnp.where(temperatures == 0, jnp.uint32(0), mix(key + _word(positions)))


@frozen
class IntegerModel:
    """A model without weights; `params` is ignored."""

    @property
    def vocabulary(self) -> int:
        """It reads any token that an int32 holds; those it draws are below VOCABULARY."""
        return INT32_MAX + 1

    def weight_shapes(self) -> tuple[()]:
        """None."""
        return ()

    def empty_cache(self, geometry: Geometry) -> Cache:
        """uint32 pools [pages, page_size, 2, 1], one per layer."""
        pool = paged.empty(geometry.pages, geometry.page_size, 1, 1, jnp.uint32)
        return tuple(jnp.array(pool) for _ in range(LAYERS))

    def decode(
        self, params: Any, cache: Cache, plan: BatchPlan, tokens: Array, positions: Array
    ) -> tuple[Array, Cache]:
        """Rows are the last hidden states, uint32[T]."""
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
            hidden = mix(hidden + _attend(stored, plan, seqs, positions))
            pools.append(stored)
        return hidden, tuple(pools)

    def sample(
        self,
        params: Any,
        rows: Array,
        seeds: Array,
        choices: Array,
        positions: Array,
        temperatures: Array,
    ) -> tuple[Array, Array]:
        """Tokens i32[N]; the log-probability is 24 bits of the row, as a negative float."""
        draws = draw_of(seeds, choices, positions, temperatures)
        tokens = mix(rows + draws) % jnp.uint32(VOCABULARY)
        logprobs = -(rows >> 8).astype(jnp.float32) / jnp.float32(2**24)
        return tokens.astype(jnp.int32), logprobs


def _attend(pool: Array, plan: BatchPlan, seqs: Array, positions: Array) -> Array:
    """uint32[T]: the weighted sum of the cells from 0 to each query's position, through its row."""
    pages = jnp.clip(plan.page_indices, 0, pool.shape[0] - 1)
    cells = pool[pages, :, :, 0].reshape(pages.shape[0], -1, 2)
    order = 2 * jnp.arange(cells.shape[1], dtype=jnp.uint32) + 1
    mixed = jnp.uint32(KEY_FACTOR) * cells[..., 0] + jnp.uint32(VALUE_FACTOR) * cells[..., 1]
    return jnp.cumsum(order * mixed, axis=1, dtype=jnp.uint32)[seqs, positions]
