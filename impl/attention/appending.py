"""Writing K and V of a batch's own tokens and attending, as one call: for every backend.

The interface is that of `impl.attention.tpu.append_and_attend`; here the write comes first.
"""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from impl.attention import places, reference
from impl.attention.interface import check_new, check_shapes
from impl.cache import paged, rows


def append_and_attend(
    q: Array,
    kv_pages: Array,
    kv_lens: Array,
    page_indices: Array,
    cu_q_lens: Array,
    num_seqs: ArrayLike,
    *,
    keys: Array,
    values: Array,
    destinations: Array | None = None,
    page_size: int | None = None,
    scale: float = 1.0,
    soft_cap: float | None = None,
    sliding_window: int | None = None,
    sinks: Array | None = None,
    scales: Array | None = None,
    q_block: int = reference.Q_BLOCK,
    kv_block_pages: int | None = None,
    step_elements: int | None = None,
) -> tuple[Array, Array]:
    """Write the new cells, then attend: the result of `ragged_paged_attention`, and the pool.

    keys, values [T, kv_heads, head_dim] in the dtype of the pool: of the tokens of q, in order.
    destinations i32[T]: the cell of each token, `page * page_size + offset`, out of range
    for a token without a cell; computed by `places.of` unless given. The result of a sequence with
    such tokens is undefined. Two tokens must not share a cell, and no token between two whose cells
    share a page may have a cell of another. The old content of a new cell is not read, and every
    other cell of the pool is unchanged. Under `jit` with kv_pages donated the pool is changed in
    place. scales: those of the new cells are in their places already, see
    `impl.cache.scales.write`. The other arguments and errors are those of
    `reference.ragged_paged_attention`.
    """
    arrays = (kv_lens, page_indices, cu_q_lens, num_seqs)
    sizes = check_shapes(q, kv_pages, *arrays[:3], jnp.shape(num_seqs), page_size=page_size)
    check_new(keys, values, destinations, q, kv_pages, sizes.kv_heads)
    if destinations is None:
        destinations = places.of(sizes, *arrays, tokens=q.shape[0])
    write = rows.write if kv_pages.ndim == 3 else paged.write
    pool = write(kv_pages, destinations, keys, values)
    out = reference.ragged_paged_attention(
        q,
        pool,
        *arrays,
        page_size=page_size,
        scale=scale,
        soft_cap=soft_cap,
        sliding_window=sliding_window,
        sinks=sinks,
        scales=scales,
        q_block=q_block,
        kv_block_pages=kv_block_pages,
        step_elements=step_elements,
    )
    return out, pool
