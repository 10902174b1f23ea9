"""Ragged paged attention in XLA operations, for every backend: the reference implementation.

The interface is that of JAX's TPU ragged paged attention: a batch of sequences, each with some
query tokens at its end, reads K and V through one page table. Work is proportional to what is
there: loops over sequences, over blocks of queries and over blocks of pages run as often as the
lengths demand, whatever the padded shapes are (but see `impl.cache.paged` on bfloat16 on CPUs).
Softmax is online (seed 004, section 6), in float32.

What a cell that no query may see holds, NaN included, has no influence: scores are masked after
the product, and V is blanked before it, since 0 * NaN is NaN. Only a cell that is visible to one
query can carry a NaN or an infinity of its V to the other queries of that block.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from attrs import field, frozen
from jax import Array, lax
from jax.typing import ArrayLike

from impl.attention.interface import check_options, check_shapes


@frozen(kw_only=True)
class _Options:
    """What is static: see `ragged_paged_attention`."""

    scale: float = field(converter=float)
    soft_cap: float | None
    sliding_window: int | None
    q_block: int
    kv_block_pages: int


class _Row(NamedTuple):
    """One sequence: its table row i32[pages_per_seq], its length, and where its queries are."""

    pages: Array
    kv_len: Array
    q_start: Array
    q_len: Array


class _Running(NamedTuple):
    """Online softmax so far: f32 [kv_heads, group, q_block], and [..., head_dim] at the end."""

    largest: Array
    total: Array
    accumulator: Array


def ragged_paged_attention(
    q: Array,
    kv_pages: Array,
    kv_lens: Array,
    page_indices: Array,
    cu_q_lens: Array,
    num_seqs: ArrayLike,
    *,
    scale: float = 1.0,
    soft_cap: float | None = None,
    sliding_window: int | None = None,
    q_block: int = 16,
    kv_block_pages: int = 16,
) -> Array:
    """Attend for a mixed batch of prefill and decode; returns [T, q_heads, head_dim] in q's dtype.

    q [T, q_heads, head_dim]; query head h reads KV head h // (q_heads // kv_heads).
    kv_pages [pages, page_size, 2 * kv_heads, head_dim], K and V heads interleaved.
    kv_lens i32[B]: cells of each sequence, its queries' own included.
    page_indices i32[B, pages_per_seq]: table rows; entries past a row's length are never read, and
    an id out of range hides its page.
    cu_q_lens i32[B + 1]: sequence b's queries are rows cu_q_lens[b] to cu_q_lens[b + 1] of q.
    num_seqs i32[] or i32[1]: sequences present; later entries of the arrays above are ignored.

    Query i of n of a sequence of length L is at position L - n + i. It sees the positions up to
    its own, and with a sliding window w only those above its own minus w. Rows that belong to no
    sequence, and queries that see nothing, give 0. More queries than cells is a misuse: queries
    at negative positions see nothing.

    Scores are `scale * q.k`, then `soft_cap * tanh(score / soft_cap)`. q_block and kv_block_pages
    are rows of q and pages that one step of the loops takes; they change speed and rounding only.
    Raises InvalidInput for options out of range and shapes that do not fit together.
    """
    check_shapes(q, kv_pages, kv_lens, page_indices, cu_q_lens, jnp.shape(num_seqs))
    check_options(
        soft_cap=soft_cap,
        sliding_window=sliding_window,
        q_block=q_block,
        kv_block_pages=kv_block_pages,
    )
    options = _Options(
        scale=scale,
        soft_cap=soft_cap,
        sliding_window=sliding_window,
        q_block=q_block,
        kv_block_pages=kv_block_pages,
    )
    count = jnp.reshape(jnp.asarray(num_seqs), ())
    out: Array = _attend(q, kv_pages, kv_lens, page_indices, cu_q_lens, count, options)
    return out


@partial(jax.jit, static_argnames="options")
def _attend(
    q: Array,
    kv_pages: Array,
    kv_lens: Array,
    page_indices: Array,
    cu_q_lens: Array,
    num_seqs: Array,
    options: _Options,
) -> Array:
    padded = _pad(q, options.q_block)

    def sequence(index: Array, out: Array) -> Array:
        start = cu_q_lens[index]
        row = _Row(page_indices[index], kv_lens[index], start, cu_q_lens[index + 1] - start)

        def block(number: Array, out: Array) -> Array:
            return _attend_block(padded, kv_pages, row, number, out, options)

        end: Array = lax.fori_loop(0, _ceil_div(row.q_len, options.q_block), block, out)
        return end

    present = jnp.minimum(num_seqs, kv_lens.shape[0])
    out: Array = lax.fori_loop(0, present, sequence, jnp.zeros_like(padded))
    return out[: q.shape[0]]


def _pad(q: Array, q_block: int) -> Array:
    """q with one block of rows more: a slice that would not fit is moved, and so its rows."""
    return jnp.pad(q, ((0, q_block), (0, 0), (0, 0)))


def _ceil_div(length: Array, size: int) -> Array:
    return _div(length + size - 1, size)


def _div(length: Array, size: int) -> Array:
    """Division of what is not negative: `//` would also correct the signs."""
    return lax.div(length, jnp.asarray(size, length.dtype))


def _attend_block(
    padded: Array, kv_pages: Array, row: _Row, number: Array, out: Array, options: _Options
) -> Array:
    """Attend for one block of one sequence's queries and put the rows that are its own in `out`."""
    size, heads = options.q_block, kv_pages.shape[2] // 2
    first = row.q_start + number * size
    offsets = number * size + jnp.arange(size, dtype=jnp.int32)
    own = offsets < row.q_len
    positions = row.kv_len - row.q_len + offsets
    block = lax.dynamic_slice_in_dim(padded, first, size)
    width = block.shape[2]
    queries = block.astype(jnp.float32).reshape(size, heads, -1, width)
    low, high = _kv_blocks(positions[0], number, row, kv_pages.shape[1], options)

    def step(index: Array, running: _Running) -> _Running:
        keys, values, cells, readable = _gather(kv_pages, row, index, options.kv_block_pages)
        seen = _visible(positions, cells, options.sliding_window)
        seen &= own[:, None] & readable[None, :]
        return _absorb(running, queries, keys, values, seen, options)

    shape = (heads, queries.shape[2], size)
    start = _Running(
        jnp.full(shape, -jnp.inf, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, width), jnp.float32),
    )
    end = lax.fori_loop(low, high, step, start)
    # Exactly 0 means that nothing was seen; a NaN in a live cell must come out as NaN.
    nothing = (end.total == 0)[..., None]
    mean = jnp.where(nothing, 0.0, end.accumulator / jnp.where(nothing, 1.0, end.total[..., None]))
    rows = mean.transpose(2, 0, 1, 3).reshape(block.shape).astype(out.dtype)
    others = lax.dynamic_slice_in_dim(out, first, size)
    kept = jnp.where(own[:, None, None], rows, others)
    return lax.dynamic_update_slice_in_dim(out, kept, first, 0)


def _kv_blocks(
    position: Array, number: Array, row: _Row, page_size: int, options: _Options
) -> tuple[Array, Array]:
    """The half-open range of KV blocks that a block of queries from `position` on can see."""
    cells = options.kv_block_pages * page_size
    queries = jnp.minimum(options.q_block, row.q_len - number * options.q_block)
    capacity = row.pages.shape[0] * page_size
    high = jnp.clip(jnp.minimum(position + queries, row.kv_len), 0, capacity)
    window = options.sliding_window
    low = jnp.zeros_like(high) if window is None else jnp.maximum(position - window + 1, 0)
    return _div(low, cells), _ceil_div(high, cells)


def _gather(
    kv_pages: Array, row: _Row, index: Array, kv_block_pages: int
) -> tuple[Array, Array, Array, Array]:
    """One block of a row's pages: K and V f32 [cells, kv_heads, head_dim], the cells' positions.

    Also says which cells were read at all: an entry past the row or its length, or an id out of
    range, reads page 0 instead and is masked.
    """
    pages, page_size = kv_pages.shape[:2]
    entries = index * kv_block_pages + jnp.arange(kv_block_pages, dtype=jnp.int32)
    ids = row.pages[jnp.minimum(entries, row.pages.shape[0] - 1)]
    readable = (entries < row.pages.shape[0]) & (entries * page_size < row.kv_len)
    readable &= (ids >= 0) & (ids < pages)
    block = kv_pages[jnp.where(readable, ids, 0)].astype(jnp.float32)
    cells = block.reshape(-1, *kv_pages.shape[2:])
    positions = entries[0] * page_size + jnp.arange(cells.shape[0], dtype=jnp.int32)
    return cells[:, 0::2], cells[:, 1::2], positions, jnp.repeat(readable, page_size)


def _visible(positions: Array, cells: Array, window: int | None) -> Array:
    """bool [queries, cells]: which cell positions each query position may see.

    A sequence's own queries are all below its length, so causality keeps them below it too.
    """
    seen = cells[None, :] <= positions[:, None]
    return seen if window is None else seen & (cells[None, :] > positions[:, None] - window)


def _blank(values: Array, seen: Array) -> Array:
    """V [cells, kv_heads, head_dim] with 0 in each cell that no query of the block sees."""
    return jnp.where(seen.any(axis=0)[:, None, None], values, 0.0)


def _absorb(
    running: _Running, queries: Array, keys: Array, values: Array, seen: Array, options: _Options
) -> _Running:
    """One step of online softmax: queries f32 [q_block, kv_heads, group, head_dim]."""
    exact = lax.Precision.HIGHEST
    scores = options.scale * jnp.einsum("qhgd,chd->hgqc", queries, keys, precision=exact)
    if options.soft_cap is not None:
        scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
    scores = jnp.where(seen, scores, -jnp.inf)
    largest = jnp.maximum(running.largest, scores.max(axis=-1))
    # While a query has seen nothing its maximum is -inf, and -inf - -inf is NaN.
    origin = jnp.where(largest == -jnp.inf, 0.0, largest)
    rescale = jnp.exp(running.largest - origin)
    weights = jnp.exp(scores - origin[..., None])
    added = jnp.einsum("hgqc,chd->hgqd", weights, _blank(values, seen), precision=exact)
    return _Running(
        largest,
        running.total * rescale + weights.sum(axis=-1),
        running.accumulator * rescale[..., None] + added,
    )
