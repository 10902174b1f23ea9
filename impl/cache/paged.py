"""The pool of pages of one layer, and the only functions that write or copy its K and V.

The pool is one array `kv_pages [pages, page_size, 2 * kv_heads, head_dim]`; in each cell the heads
alternate k0, v0, k1, v1, ... so that a page holds both (docs/sources.md, "Page pool"). A cell is
named by its destination `page * page_size + offset`, which vLLM calls its entry of `slot_mapping`.
A value that is not a destination writes nothing: so padding and the writes of a refused plan are
dropped.

Each function returns the new pool. Under `jit` with the pool donated it is updated in place, but
for one case: XLA on CPUs copies a pool of bfloat16 or of 8-bit floats as a whole before it indexes
it, so there each step costs time and temporary bytes in proportion to the pool. Use float32 or
float16 on a CPU.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Shaped

from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.geometry import INVALID


def empty(
    pages: int, page_size: int, kv_heads: int, head_dim: int, dtype: DTypeLike
) -> Shaped[Array, "{pages} {page_size} 2*{kv_heads} {head_dim}"]:
    """A pool of zeros."""
    return jnp.zeros((pages, page_size, 2 * kv_heads, head_dim), dtype)


def interleave(k: Array, v: Array) -> Array:
    """The cells of K and V: [T, H, D] and [T, H, D] to [T, 2 * H, D], as k0, v0, k1, v1, ...

    Raises InvalidInput unless both have the same three-dimensional shape.
    """
    if k.ndim != 3 or k.shape != v.shape:
        raise InvalidInput(
            "interleave",
            seen=(k.shape, v.shape),
            allowed="two equal shapes [tokens, kv_heads, head_dim]",
            remedy="Project K and V with the same number of heads.",
        )
    tokens, heads, width = k.shape
    return jnp.stack([k, v], axis=2).reshape(tokens, 2 * heads, width)


def words(kv_pages: Array) -> Array:
    """The pool as unsigned words where it has floats that XLA widens to move them on a CPU.

    Widening the whole pool takes longer, and narrowing it again changes the bits of a NaN. Words
    have no derivative.
    """
    name = kv_pages.dtype.name
    word = jnp.uint16 if name == "bfloat16" else jnp.uint8 if name.startswith("float8") else None
    if word is None or jax.default_backend() != "cpu":
        return kv_pages
    return lax.bitcast_convert_type(kv_pages, word)


def of_words(moved: Array, dtype: DTypeLike) -> Array:
    """The inverse of `words`: a moved array in the pool's dtype."""
    return moved if moved.dtype == dtype else lax.bitcast_convert_type(moved, dtype)


def write(kv_pages: Array, destinations: Array, k: Array, v: Array) -> Array:
    """Store K and V of a batch of tokens, each in the cell that its destination names.

    destinations i32[T]: anything below 0 or past the pool (INVALID among them) is dropped. Two
    tokens must not share a cell: the result would be undefined. k and v [T, kv_heads,
    head_dim] are cast to the pool's dtype. Raises InvalidInput if the shapes do not fit.
    """
    cells = interleave(k, v)
    if destinations.shape != cells.shape[:1] or cells.shape[1:] != kv_pages.shape[2:]:
        raise InvalidInput(
            "write",
            seen=(kv_pages.shape, destinations.shape, k.shape),
            allowed="[P, S, 2H, D], [T] and [T, H, D]",
            remedy="Give one destination per token, and K and V with the pool's heads.",
        )
    pool, moved = words(kv_pages), words(cells.astype(kv_pages.dtype))
    # A negative index would wrap around to the last page before it could be dropped.
    where = jnp.where(destinations < 0, INVALID, destinations)
    if len(where) == 1:  # XLA on CPUs copies the pool before it updates one cell alone
        where, moved = jnp.append(where, INVALID), jnp.repeat(moved, 2, axis=0)
    stored = pool.reshape(-1, *pool.shape[2:]).at[where].set(moved, mode="drop")
    return of_words(stored.reshape(pool.shape), kv_pages.dtype)


def copy_page(
    kv_pages: Shaped[Array, "P ..."], source: ArrayLike, destination: ArrayLike
) -> Shaped[Array, "P ..."]:
    """Copy pages over others: i32[] or i32[N] source and destination page ids.

    A destination past the pool is dropped, whatever its source, so that a planned copy can be
    cancelled without a `where` over the pool, which would copy all of it. Destinations must differ,
    and must not be negative.
    """
    pool = words(kv_pages)
    copied = pool.at[jnp.asarray(source)].get(mode="clip")
    return of_words(pool.at[destination].set(copied, mode="drop"), kv_pages.dtype)


def zero(
    kv_pages: Shaped[Array, "P ..."],
) -> Shaped[Array, "P ..."]:
    """The pool with every byte zero: physical reset, for debugging."""
    # `zeros_like` would not use its argument, and a donated pool would not be reused.
    return kv_pages.at[:].set(0)
