"""Scales of K and V, one for each cell and KV head, beside a pool of narrow numbers.

A stored K or V times its scale is what attention reads; `impl.attention` takes them as `scales=`.
Beside a pool of `impl.cache.paged` they are f32 `[pages, page_size, 2 * kv_heads]`, in the order of
its heads. Beside a pool of `impl.cache.rows` they are f32 `[pages, page_size * kv_heads / 128, 2,
128]`: 128 rows of the pool have their scales side by side, those of K and then those of V, so that
they stand in a register as the scores of these rows do. Pages are copied by
`impl.cache.paged.copy_page`, and reset by `zero`, as those of the pool are.
"""

from math import gcd, prod
from typing import Final

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32

from impl.cache.rows import LANES
from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.geometry import INVALID

KINDS: Final = 2
"""K and V."""


def empty(pages: int, page_size: int, kv_heads: int, *, of_rows: bool) -> Float32[Array, "P ..."]:
    """Scales of 0, as the cells of an empty pool are. Raises InvalidInput as `shape` does."""
    return jnp.zeros(shape(pages, page_size, kv_heads, of_rows=of_rows), jnp.float32)


def shape(
    pages: int, page_size: int, kv_heads: int, *, of_rows: bool, part: int | None = None
) -> tuple[int, ...]:
    """The shape of the scales of a pool. of_rows: of one of `impl.cache.rows`.

    part: the cells of a page that are taken together, a divisor of its size; by default all. Raises
    InvalidInput unless the rows of a part then fill registers.
    """
    if not of_rows:
        return pages, page_size, KINDS * kv_heads
    run = LANES // gcd(LANES, (part or page_size) * kv_heads)
    if run > 1:
        raise InvalidInput(
            "page_size",
            seen=page_size,
            allowed=f"with scales, pages that fill {LANES} rows, with {kv_heads} in a cell",
            remedy=f"Give pages out in aligned runs of {run}, and name a run as one page:"
            f" page_size={page_size * run}.",
        )
    return pages, page_size * kv_heads // LANES, KINDS, LANES


def of(scales: Float32[Array, "P page_size KV"]) -> Float32[Array, "P R 2 128"]:
    """Scales beside a pool of `impl.cache.paged` as those beside one of `impl.cache.rows`."""
    pages, page_size, heads = scales.shape
    by_kind = scales.reshape(pages, -1, LANES, KINDS)
    assert by_kind.shape[1] * LANES * KINDS == page_size * heads, "rows of a page fill registers"
    return by_kind.swapaxes(2, 3)


def interleaved(
    scales: Float32[Array, "P R 2 128"], *, kv_heads: int
) -> Float32[Array, "P page_size KV"]:
    """The inverse of `of`."""
    return scales.swapaxes(2, 3).reshape(scales.shape[0], -1, KINDS * kv_heads)


def write(
    scales: Float32[Array, "P ..."], destinations: Array, k: Array, v: Array
) -> Float32[Array, "P ..."]:
    """Store the scales of a batch of tokens, in the cells that their destinations name.

    destinations: as for `impl.cache.paged.write`. k, v f32[T, kv_heads]. Raises InvalidInput if the
    shapes do not fit.
    """
    tokens, heads = k.shape
    each = prod(scales.shape[1:])
    fits = k.shape == v.shape and destinations.shape == (tokens,) and each % (KINDS * heads) == 0
    if not fits:
        raise InvalidInput(
            "write",
            seen=(scales.shape, destinations.shape, k.shape, v.shape),
            allowed="[P, ...], [T], [T, H] and [T, H]",
            remedy="Give one destination per token, and a scale of K and of V for each KV head.",
        )
    cells = scales.shape[0] * (each // (KINDS * heads))
    inside = (destinations >= 0) & (destinations < cells)
    row = jnp.where(inside, destinations, 0)[:, None] * heads + jnp.arange(heads)
    if scales.ndim == 3:
        places = row * KINDS, row * KINDS + 1
    else:
        block, lane = row // LANES, row % LANES
        places = (block * KINDS * LANES + lane, (block * KINDS + 1) * LANES + lane)
    at = jnp.where(inside[:, None], jnp.stack(places), INVALID)
    stored = scales.reshape(-1).at[at].set(jnp.stack([k, v]), mode="drop")
    return stored.reshape(scales.shape)
