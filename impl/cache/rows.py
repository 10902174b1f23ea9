"""The pool of pages of one layer in the shape that a TPU holds as it is: pages of rows.

An array whose last two axes do not fill tiles is padded by XLA or turned, and a kernel that wants
it otherwise is given a copy of all of it at every call. Here the pool is one array `[pages,
page_size * kv_heads, lanes]`, in which a page is a block of whole tiles. It has a row for each KV
head of each of its cells, cell by cell. A row has V in its first lanes and K behind it, in as few
registers of 128 lanes as hold both; lanes of neither are 0. V comes first so that the results of
attention begin in the first lane.

On several devices with KV heads of their own each has such a pool of its heads, which is a shard of
the rows of one array.

`impl.attention.tpu` takes this shape alone. Every other function of the cache and of attention
takes both: copies and resets are those of `impl.cache.paged`. Cells are named by destinations, as
there.
"""

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Shaped

from impl.cache import paged
from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.geometry import INVALID

LANES = 128
"""Numbers side by side in a register of a TPU."""


def key_lane(head_dim: int) -> int:
    """The lane of a row in which K begins, behind V."""
    together, alone = _registers(2 * head_dim), _registers(head_dim)
    return head_dim if together < 2 * alone else alone * LANES


def lanes(head_dim: int) -> int:
    """Lanes of a row: a multiple of 128."""
    return _registers(key_lane(head_dim) + head_dim) * LANES


def _registers(numbers: int) -> int:
    return -(-numbers // LANES)


def empty(
    pages: int, page_size: int, kv_heads: int, head_dim: int, dtype: DTypeLike
) -> Shaped[Array, "{pages} {page_size}*{kv_heads} lanes"]:
    """A pool of zeros."""
    return jnp.zeros((pages, page_size * kv_heads, lanes(head_dim)), dtype)


def cells(k: Shaped[Array, "*N H D"], v: Shaped[Array, "*N H D"]) -> Shaped[Array, "*N H lanes"]:
    """The rows of K and V."""
    width = k.shape[-1]
    first, last = key_lane(width), lanes(width)
    outer = [(0, 0)] * (k.ndim - 1)
    before = jnp.pad(v, (*outer, (0, first - width)))
    behind = jnp.pad(k, (*outer, (0, last - first - width)))
    return jnp.concatenate([before, behind], axis=-1)


def of(kv_pages: Shaped[Array, "P page_size KV D"]) -> Shaped[Array, "P rows lanes"]:
    """A pool of `impl.cache.paged` in this shape; all of it is moved."""
    pages, page_size, heads, width = kv_pages.shape
    pairs = paged.words(kv_pages).reshape(pages, page_size, heads // 2, 2, width)
    moved = cells(pairs[..., 0, :], pairs[..., 1, :])
    return paged.of_words(moved.reshape(pages, page_size * heads // 2, -1), kv_pages.dtype)


def interleaved(
    pool: Shaped[Array, "P rows lanes"], *, kv_heads: int, head_dim: int
) -> Shaped[Array, "P page_size KV D"]:
    """The inverse of `of`."""
    found = paged.words(pool).reshape(pool.shape[0], -1, kv_heads, pool.shape[2])
    pairs = jnp.stack(apart(found, head_dim), axis=3)
    moved = pairs.reshape(*found.shape[:2], 2 * kv_heads, head_dim)
    return paged.of_words(moved, pool.dtype)


def apart(found: Shaped[Array, "*N lanes"], head_dim: int) -> tuple[Array, Array]:
    """K and V [..., head_dim] of rows."""
    first = key_lane(head_dim)
    return found[..., first : first + head_dim], found[..., :head_dim]


def write(pool: Array, destinations: Array, k: Array, v: Array) -> Array:
    """As `impl.cache.paged.write`, for a pool in this shape."""
    new = cells(k, v).astype(pool.dtype)
    tokens, heads, width = new.shape
    whole = pool.shape[1] % heads == 0
    fits = destinations.shape == (tokens,) and width == pool.shape[2] and whole
    if not fits:
        raise InvalidInput(
            "write",
            seen=(pool.shape, destinations.shape, k.shape),
            allowed="[P, S * H, lanes], [T] and [T, H, D]",
            remedy="Give one destination per token, and K and V with the pool's heads.",
        )
    inside = (destinations >= 0) & (destinations < pool.shape[0] * (pool.shape[1] // heads))
    first = jnp.where(inside, destinations * heads, INVALID)
    at = jnp.where(inside[:, None], first[:, None] + jnp.arange(heads), INVALID)
    words, moved = paged.words(pool), paged.words(new)
    where, moved = at.reshape(-1), moved.reshape(-1, width)
    if len(where) == 1:  # XLA on CPUs copies the pool before it updates one row alone
        where, moved = jnp.append(where, INVALID), jnp.repeat(moved, 2, axis=0)
    stored = words.reshape(-1, width).at[where].set(moved, mode="drop")
    return paged.of_words(stored.reshape(words.shape), pool.dtype)
