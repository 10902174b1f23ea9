"""Destinations in the pool for the K and V of a batch's own tokens."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Int32

from impl.attention.interface import Pool
from spec.vocabulary.geometry import INVALID


def of(
    pool: Pool,
    kv_lens: Array,
    page_indices: Array,
    cu_q_lens: Array,
    num_seqs: ArrayLike,
    *,
    tokens: int,
) -> Int32[Array, " {tokens}"]:
    """The destination of each token of q (see `impl.cache.paged`), INVALID where it has no cell.

    Token i of the n of a sequence of length L is at position L - n + i. It has no cell if it
    belongs to no sequence, if its position is negative or past the table row, and if its page id
    is out of range. The arrays are those of `ragged_paged_attention`.
    """
    pages, page_size = pool.pages, pool.page_size
    seq, owned = owners(cu_q_lens, num_seqs, tokens=tokens)
    position = kv_lens[seq] - cu_q_lens[seq + 1] + jnp.arange(tokens, dtype=jnp.int32)
    owned &= (position >= 0) & (position < page_indices.shape[1] * page_size)
    position = jnp.where(owned, position, 0)
    page = page_indices[seq, position // page_size]
    owned &= (page >= 0) & (page < pages)
    return jnp.where(owned, page * page_size + position % page_size, INVALID)


def owners(
    cu_q_lens: Array, num_seqs: ArrayLike, *, tokens: int
) -> tuple[Int32[Array, " {tokens}"], Bool[Array, " {tokens}"]]:
    """The sequence of each token, and whether it has one; otherwise the sequence is arbitrary."""
    rows = cu_q_lens.shape[0] - 1
    present = jnp.arange(rows) < jnp.reshape(jnp.asarray(num_seqs), ())
    # Entries past num_seqs are meaningless, and may be out of order.
    ends = jnp.where(present, cu_q_lens[1:], INVALID)
    token = jnp.arange(tokens, dtype=jnp.int32)
    seq = jnp.searchsorted(ends, token, side="right", method="compare_all").astype(jnp.int32)
    last = jnp.minimum(seq, rows - 1)
    return last, (seq < rows) & present[last]
