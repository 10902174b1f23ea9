"""Ragged paged attention in XLA operations, for every backend: the reference implementation.

The interface is that of JAX's TPU ragged paged attention: a batch of sequences, each with some
query tokens at its end, reads K and V through one page table. Work is proportional to the lengths,
not to the padded shapes: the loops run over the blocks of queries that there are, and over the
blocks of pages that these can see (but see `impl.cache.paged` on narrow floats on CPUs). Sequences
of one query are taken first, in blocks of one query; then all others. Softmax is online
(docs/sources.md, "Online softmax"), in float32.

A cell that no query may see has no influence, even if it holds a NaN: scores are masked after the
product, and V is blanked before it, since 0 * NaN is NaN. Only a cell that is visible to one
query can carry a NaN or an infinity of its V to the other queries of that block.
"""

from functools import partial
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from attrs import evolve, field, frozen
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Float32, Int, Shaped

from impl.attention.interface import (
    Pool,
    check_options,
    check_scales,
    check_shapes,
    check_sinks,
)
from impl.cache import paged
from impl.cache import rows as of_pool
from impl.cache import scales as of_scales

_EXACT: Final = lax.Precision.HIGHEST
Q_BLOCK: Final = 32
"""The default number of queries in a block; docs/reference.md gives the reason."""
_STEP_ELEMENTS: Final = {"cpu": 1}
"""The default of `step_elements`, by backend.

A CPU has few cores and works best within its caches: several blocks to a step are no faster.
"""
_MANY_ELEMENTS: Final = 1 << 24
"""The same for other backends, which have thousands of threads. It is estimated, not measured."""


@frozen(kw_only=True)
class _Options:
    """Static options: see `ragged_paged_attention`. pool: its sizes."""

    pool: Pool
    scale: float = field(converter=float)
    soft_cap: float | None
    sliding_window: int | None
    q_block: int
    kv_block_pages: int
    step_elements: int


class _Stored(NamedTuple):
    """The pool of pages, and the scales of its cells, if there are any; of either shape."""

    pages: Shaped[Array, "P ..."]
    scales: Float32[Array, "P ..."] | None


class _Taken(NamedTuple):
    """K and V of the pages of one step as they are stored, and their scales, if there are any."""

    keys: Float32[Array, "N kv_heads cells D"]
    values: Float32[Array, "N kv_heads cells D"]
    key_scales: Float32[Array, "N kv_heads cells"] | None
    value_scales: Float32[Array, "N kv_heads cells"] | None


class _Rows(NamedTuple):
    """Sequences: table rows, lengths, and the ranges of their queries in q."""

    pages: Int[Array, "B M"]
    kv_len: Int[Array, " B"]
    q_start: Int[Array, " B"]
    q_len: Int[Array, " B"]


class _Blocks(NamedTuple):
    """N blocks of queries. row: the sequence of each block.

    own: which queries of the block exist. tokens: their rows of q. positions: in the sequence.
    """

    row: Int[Array, " N"]
    own: Bool[Array, "N q_block"]
    tokens: Int[Array, "N q_block"]
    positions: Int[Array, "N q_block"]


class _Reads(NamedTuple):
    """The reads of one step: the blocks of queries `owner` read the pages `ids`.

    seen: which query may see which cell of the pages. used: which cells any query of the block may
    see.
    """

    owner: Int[Array, " N"]
    ids: Int[Array, "N kv_block_pages"]
    seen: Bool[Array, "N q_block cells"]
    used: Bool[Array, "N cells"]


class _Running(NamedTuple):
    """The running values of online softmax."""

    largest: Float32[Array, "N kv_heads group q_block"]
    total: Float32[Array, "N kv_heads group q_block"]
    accumulator: Float32[Array, "N kv_heads group q_block D"]


def ragged_paged_attention(
    q: Array,
    kv_pages: Array,
    kv_lens: Array,
    page_indices: Array,
    cu_q_lens: Array,
    num_seqs: ArrayLike,
    *,
    page_size: int | None = None,
    scale: float = 1.0,
    soft_cap: float | None = None,
    sliding_window: int | None = None,
    sinks: Array | None = None,
    scales: Array | None = None,
    q_block: int = Q_BLOCK,
    kv_block_pages: int | None = None,
    step_elements: int | None = None,
) -> Array:
    """Attend for a mixed batch of prefill and decode; returns [T, q_heads, head_dim] in q's dtype.

    q [T, q_heads, head_dim]; query head h reads KV head h // (q_heads // kv_heads).
    kv_pages [pages, page_size, 2 * kv_heads, head_dim], K and V heads interleaved; or pages of
    rows, see `impl.cache.rows`, with their page_size.
    kv_lens i32[B]: cells of each sequence, its queries' own included.
    page_indices i32[B, pages_per_seq]: table rows; entries of pages in which no query sees a cell
    may hold anything. Other ids must be in range: nothing outside the pool is read otherwise.
    cu_q_lens i32[B + 1]: sequence b's queries are rows cu_q_lens[b] to cu_q_lens[b + 1] of q.
    num_seqs i32[] or i32[1]: sequences present; later entries of the arrays above are ignored.

    Query i of n of a sequence of length L is at position L - n + i. It sees the positions up to
    its own, and with a sliding window w only those above its own minus w. Rows that belong to no
    sequence, and queries that see nothing, give 0. More queries than cells is a misuse: queries
    at negative positions see nothing.

    Scores are `scale * q.k`, then `soft_cap * tanh(score / soft_cap)`. sinks f32[q_heads]: one more
    score for each query head, which takes part in the sum of the weights and has no value; neither
    scale nor soft cap applies to it. -inf is no sink; with inf or NaN every answer of its head that
    sees a cell is NaN. scales: K and V are what is stored times these, see `impl.cache.scales`;
    those of cells that a query sees must be finite.

    q_block and kv_block_pages are the rows of q and the pages of a sequence in one block; they
    change speed and rounding only. A sequence of one query has one row in a block, whatever q_block
    is. By default kv_block_pages is the number of pages that 256 cells fill, at least one, or 512
    cells where K and V of a cell are at most 256 elements. step_elements limits the blocks that a
    step of the loops takes together: their elements of K and V, or of scores; one block always
    fits. By default it depends on the backend, and is one block on a CPU.
    Raises InvalidInput for options out of range and shapes that do not fit together.
    """
    given = kv_lens, page_indices, cu_q_lens
    pool = check_shapes(q, kv_pages, *given, jnp.shape(num_seqs), page_size=page_size)
    blocks = {
        "q_block": q_block,
        "kv_block_pages": kv_block_pages,
        "step_elements": step_elements,
    }
    check_options(soft_cap=soft_cap, sliding_window=sliding_window, **blocks)
    check_sinks(sinks, q)
    check_scales(scales, kv_pages, pool, part=pool.page_size)
    width = q.shape[2]
    block_pages = _block_pages(pool, width) if kv_block_pages is None else kv_block_pages
    options = _Options(
        pool=pool,
        scale=scale,
        soft_cap=soft_cap,
        sliding_window=sliding_window,
        q_block=min(q_block, q.shape[0]),
        kv_block_pages=min(block_pages, page_indices.shape[1]),
        step_elements=_step_elements() if step_elements is None else step_elements,
    )
    count = jnp.reshape(jnp.asarray(num_seqs), ())
    stored = _Stored(kv_pages, scales)
    out: Array = _attend(q, stored, kv_lens, page_indices, cu_q_lens, count, sinks, options)
    return out


def _step_elements() -> int:
    """The default size of a step."""
    return _STEP_ELEMENTS.get(jax.default_backend(), _MANY_ELEMENTS)


def _block_pages(pool: Pool, head_dim: int) -> int:
    """The default number of pages in a block; docs/reference.md gives the reason."""
    return max(1, (512 if 2 * pool.kv_heads * head_dim <= 256 else 256) // pool.page_size)


@partial(jax.jit, static_argnames="options")
def _attend(
    q: Float[Array, "T H D"],
    stored: _Stored,
    kv_lens: Int[Array, " B"],
    page_indices: Int[Array, "B M"],
    cu_q_lens: Int[Array, " B+1"],
    num_seqs: Int[Array, ""],
    sinks: Float32[Array, " H"] | None,
    options: _Options,
) -> Float[Array, "T H D"]:
    present = jnp.arange(kv_lens.shape[0]) < num_seqs
    lengths = jnp.where(present, cu_q_lens[1:] - cu_q_lens[:-1], 0)
    rows = _Rows(page_indices, kv_lens, cu_q_lens[:-1], lengths)
    out = jnp.zeros_like(q)
    if options.q_block == 1:
        return _phase(q, stored, rows, out, options, sinks)
    single = lengths == 1
    decode, prefill = (rows._replace(q_len=jnp.where(own, lengths, 0)) for own in (single, ~single))
    out = _phase(q, stored, decode, out, evolve(options, q_block=1), sinks)
    return _phase(q, stored, prefill, out, options, sinks)


def _phase(
    q: Float[Array, "T H D"],
    stored: _Stored,
    rows: _Rows,
    out: Float[Array, "T H D"],
    options: _Options,
    sinks: Float32[Array, " H"] | None,
) -> Float[Array, "T H D"]:
    """Attend for every query of these rows, and put the results in `out`."""
    ends = jnp.cumsum(_ceil_div(rows.q_len, options.q_block))
    width = _at_once(q, rows, options)

    def group(index: Array, out: Array) -> Array:
        numbers = index * width + jnp.arange(width, dtype=jnp.int32)
        blocks = _blocks(rows, ends, numbers, options)
        return _attend_blocks(q, stored, rows, blocks, out, options, sinks)

    end: Array = lax.fori_loop(0, _ceil_div(ends[-1], width), group, out)
    return end


def _at_once(q: Array, rows: _Rows, options: _Options) -> int:
    """The static number of blocks of queries, each with a block of pages, in one step."""
    pool, (_, heads, width) = options.pool, q.shape
    cells = options.kv_block_pages * pool.page_size
    elements = cells * max(2 * pool.kv_heads * width, heads * options.q_block)
    most = min(q.shape[0], rows.kv_len.shape[0] + q.shape[0] // options.q_block)
    return max(1, min(options.step_elements // elements, most))


def _blocks(
    rows: _Rows, ends: Int[Array, " B"], numbers: Int[Array, " N"], options: _Options
) -> _Blocks:
    """Blocks of queries by number; those past the last are empty. ends: cumulative, per row."""
    row = _owner(ends, numbers)
    counts = _ceil_div(rows.q_len, options.q_block)
    first = (numbers - (ends - counts)[row]) * options.q_block
    offsets = first[:, None] + jnp.arange(options.q_block, dtype=jnp.int32)
    own = offsets < rows.q_len[row, None]
    own &= (numbers < ends[-1])[:, None]
    positions = (rows.kv_len - rows.q_len)[row, None] + offsets
    return _Blocks(row, own, rows.q_start[row, None] + offsets, positions)


def _owner(ends: Int[Array, " owners"], numbers: Int[Array, " N"]) -> Int[Array, " N"]:
    """The owner of each number, where owner i has the numbers from ends[i - 1] up to ends[i]."""
    passed = (ends[None, :] <= numbers[:, None]).sum(axis=1, dtype=jnp.int32)
    return jnp.minimum(passed, ends.shape[0] - 1)


def _ceil_div(length: Int[Array, "*N"], size: int) -> Int[Array, "*N"]:
    return _div(length + size - 1, size)


def _div(length: Int[Array, "*N"], size: int) -> Int[Array, "*N"]:
    """Division of numbers that are not negative: `//` would also correct the signs."""
    assert size > 0, "a divisor is positive"
    return lax.div(length, jnp.asarray(size, length.dtype))


def _attend_blocks(
    q: Float[Array, "T H D"],
    stored: _Stored,
    rows: _Rows,
    blocks: _Blocks,
    out: Float[Array, "T H D"],
    options: _Options,
    sinks: Float32[Array, " H"] | None,
) -> Float[Array, "T H D"]:
    """Attend for some blocks of queries, and put the rows that are their own in `out`.

    The blocks of pages that they can see form one list. Each step takes as many of it as there are
    blocks of queries, so that no step waits for the longest sequence.
    """
    count, size = blocks.own.shape
    pool, width = options.pool, q.shape[2]
    heads = pool.kv_heads
    assert q.shape[1] % heads == 0, "a KV head serves a whole group of query heads"
    queries = _queries(q, blocks).astype(jnp.float32).reshape(count, size, heads, -1, width)
    queries = queries.transpose(0, 2, 3, 1, 4)
    low, high = _kv_blocks(rows, blocks, pool.page_size, options)
    ends = jnp.cumsum(high - low)

    def reads(index: Array) -> _Reads:
        items = index * count + jnp.arange(count, dtype=jnp.int32)
        owner = _owner(ends, items)
        # Past the last of the list: the first block past the row, in which nothing can be read.
        past = -(-rows.pages.shape[1] // options.kv_block_pages)
        number = jnp.where(items < ends[-1], items - ends[owner] + high[owner], past)
        return _find(rows, blocks, owner, number, pool.page_size, options)

    def step(index: Array, carry: tuple[_Running, _Reads]) -> tuple[_Running, _Reads]:
        running, now = carry
        taken = _gather(stored, now.ids, heads, width)
        after = _absorb(running, now, queries[now.owner], taken, options)
        return after, reads(index + 1)

    shape = queries.shape[:-1]
    start = _Running(
        jnp.full(shape, -jnp.inf, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros(queries.shape, jnp.float32),
    )
    # The reads are computed one step ahead: XLA would otherwise recompute them for each score.
    first = reads(jnp.zeros((), jnp.int32))
    end, _ = lax.fori_loop(0, _ceil_div(ends[-1], count), step, (start, first))
    end = end if sinks is None else _with_sinks(end, sinks)
    # Exactly 0 means that nothing was seen; a NaN in a live cell must come out as NaN.
    nothing = (end.total == 0)[..., None]
    mean = jnp.where(nothing, 0.0, end.accumulator / jnp.where(nothing, 1.0, end.total[..., None]))
    found = mean.transpose(0, 3, 1, 2, 4).reshape(count, size, *q.shape[1:]).astype(out.dtype)
    tokens = jnp.where(blocks.own, blocks.tokens, q.shape[0])
    return out.at[tokens].set(found, mode="drop")


def _with_sinks(end: _Running, sinks: Float32[Array, " H"]) -> _Running:
    """The sums with the weights of the sinks in the total, where something was seen.

    Rescaled to the larger one of the largest score and the sink, so that nothing overflows.
    """
    seen = end.total != 0
    # Where nothing was seen the difference would be -inf - -inf, whose derivative is NaN.
    score = jnp.where(seen, end.largest, 0.0)
    sink = jnp.where(seen, sinks.reshape(1, *score.shape[1:3], 1), 0.0)
    largest = jnp.maximum(score, sink)
    rescale = jnp.exp(score - largest)
    total = end.total * rescale + jnp.where(seen, jnp.exp(sink - largest), 0.0)
    return _Running(largest, total, end.accumulator * rescale[..., None])


def _queries(q: Float[Array, "T H D"], blocks: _Blocks) -> Float[Array, "N q_block H D"]:
    """The rows of q of each block; arbitrary where not `own`."""
    return q.at[blocks.tokens].get(mode="clip")


def _kv_blocks(
    rows: _Rows, blocks: _Blocks, page_size: int, options: _Options
) -> tuple[Int[Array, " N"], Int[Array, " N"]]:
    """The half-open range of KV blocks that each block of queries can see."""
    cells = options.kv_block_pages * page_size
    queries = blocks.own.sum(axis=1, dtype=jnp.int32)
    position = blocks.positions[:, 0]
    capacity = rows.pages.shape[1] * page_size
    last = jnp.minimum(position + queries, rows.kv_len[blocks.row])
    high = jnp.where(queries > 0, jnp.clip(last, 0, capacity), 0)
    window = options.sliding_window
    low = jnp.zeros_like(high) if window is None else jnp.maximum(position - window + 1, 0)
    end = _ceil_div(high, cells)
    return jnp.minimum(_div(low, cells), end), end


def _find(
    rows: _Rows,
    blocks: _Blocks,
    owner: Int[Array, " N"],
    number: Int[Array, " N"],
    page_size: int,
    options: _Options,
) -> _Reads:
    """The reads of the blocks `owner` of queries in the blocks `number` of their pages.

    An entry of which no query sees a cell reads some page.
    """
    entries = number[:, None] * options.kv_block_pages
    entries += jnp.arange(options.kv_block_pages, dtype=jnp.int32)
    offsets = jnp.arange(options.kv_block_pages * page_size, dtype=jnp.int32)
    cells = entries[:, :1] * page_size + offsets
    seen = _visible(blocks.positions[owner], cells, options.sliding_window)
    seen &= blocks.own[owner][:, :, None]
    ids = _ids(rows.pages, blocks.row[owner, None], entries)
    return _Reads(owner, ids, seen, seen.any(axis=1))


def _ids(
    pages: Int[Array, "B M"], row: Int[Array, "N 1"], entries: Int[Array, "N kv_block_pages"]
) -> Int[Array, "N kv_block_pages"]:
    """Table entries of rows; past the row, its last one."""
    return pages.at[row, entries].get(mode="clip")


def _gather(stored: _Stored, ids: Int[Array, "N kv_block_pages"], heads: int, width: int) -> _Taken:
    """K and V of the pages, and their scales."""
    kv_pages = stored.pages
    words, of_rows = paged.words(kv_pages), kv_pages.ndim == 3
    pool = words if of_rows else words.reshape(*words.shape[:2], heads, 2, width)

    def taken(part: int) -> Array:
        if of_rows:
            moved = of_pool.apart(pool.at[ids].get(mode="clip"), width)[part]
        else:
            moved = pool.at[ids, :, :, part].get(mode="clip")
        block = paged.of_words(moved, kv_pages.dtype).astype(jnp.float32)
        return block.reshape(ids.shape[0], -1, heads, width).transpose(0, 2, 1, 3)

    return _Taken(taken(0), taken(1), *_scales(stored, ids, heads))


def _scales(
    stored: _Stored, ids: Int[Array, "N kv_block_pages"], heads: int
) -> tuple[Float32[Array, "N kv_heads cells"] | None, Float32[Array, "N kv_heads cells"] | None]:
    """The scales of K and of V of the pages."""
    if stored.scales is None:
        return None, None
    found = stored.scales.at[ids].get(mode="clip")
    if stored.pages.ndim == 3:
        found = of_scales.interleaved(found.reshape(-1, *found.shape[2:]), kv_heads=heads)
    by_head = found.reshape(ids.shape[0], -1, heads, 2).transpose(3, 0, 2, 1)
    return by_head[0], by_head[1]


def _visible(
    positions: Int[Array, "N q_block"], cells: Int[Array, "N cells"], window: int | None
) -> Bool[Array, "N q_block cells"]:
    """Which cell positions each query position may see.

    A sequence's own queries are all below its length, so causality keeps them below it too.
    """
    seen = cells[:, None, :] <= positions[:, :, None]
    return seen if window is None else seen & (cells[:, None, :] > positions[:, :, None] - window)


@jax.custom_jvp
def _blank(
    cells: Float32[Array, "N kv_heads cells D"], used: Bool[Array, "N cells"]
) -> Float32[Array, "N kv_heads cells D"]:
    """K or V with 0 in each cell that no query of the block sees.

    The mask is of bits: XLA on a CPU turns a `where` into a branch for each cell, and then copies a
    head of 64 elements one by one. Bits have no derivative, so `_blank_jvp` defines it.
    """
    bits = lax.bitcast_convert_type(cells, jnp.int32)
    kept = bits & -used.astype(jnp.int32)[:, None, :, None]
    return lax.bitcast_convert_type(kept, jnp.float32)


@_blank.defjvp
def _blank_jvp(primals: tuple[Array, Array], changes: tuple[Array, Array]) -> tuple[Array, Array]:
    used = primals[1][:, None, :, None]
    return _blank(*primals), jnp.where(used, changes[0], 0.0)


def _products(
    queries: Float32[Array, "N kv_heads group q_block D"],
    keys: Float32[Array, "N kv_heads cells D"],
) -> Float32[Array, "N kv_heads group*q_block cells"]:
    """The scores before they are scaled, of the queries of a group as one list.

    K is the first operand if a block has one query: XLA's product of a few rows and a transposed
    operand is slow on a CPU.
    """
    rows = queries.reshape(*queries.shape[:2], -1, queries.shape[-1])
    if queries.shape[3] == 1:
        return jnp.einsum("nhcd,nhqd->nhcq", keys, rows, precision=_EXACT).swapaxes(2, 3)
    return jnp.einsum("nhqd,nhcd->nhqc", rows, keys, precision=_EXACT)


def _scaled(
    of_cells: Float32[Array, "N kv_heads rows cells"],
    scales: Float32[Array, "N kv_heads cells"] | None,
    reads: _Reads,
) -> Float32[Array, "N kv_heads rows cells"]:
    """Scores or weights times the scales of their cells; 0 in a cell that no query sees."""
    if scales is None:
        return of_cells
    used = reads.used[:, None, :]
    return of_cells * jnp.where(used, scales, 0.0)[:, :, None, :]


def _absorb(
    running: _Running,
    reads: _Reads,
    queries: Float32[Array, "N kv_heads group q_block D"],
    taken: _Taken,
    options: _Options,
) -> _Running:
    """One step of online softmax.

    The products of queries, keys and values i are added to block owner[i] of the running softmax.
    """
    # K is blanked only for speed: XLA then copies it from its pages by vectors, as it does V.
    owner, products = reads.owner, _products(queries, _blank(taken.keys, reads.used))
    products = _scaled(products, taken.key_scales, reads)
    scores = options.scale * products.reshape(*queries.shape[:-1], -1)
    if options.soft_cap is not None:
        scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
    scores = jnp.where(reads.seen[:, None, None], scores, -jnp.inf)
    largest = running.largest.at[owner].max(scores.max(axis=-1))
    # While a query has seen nothing its maximum is -inf, and -inf - -inf is NaN.
    origin = jnp.where(largest == -jnp.inf, 0.0, largest)
    # Exactly 1 where the maximum stays, as for a block that has nothing in this step.
    rescale = jnp.where(largest == running.largest, 1.0, jnp.exp(running.largest - origin))
    weights = jnp.exp(scores - origin[owner][..., None])
    rows = _scaled(weights.reshape(products.shape), taken.value_scales, reads)
    weighed = (rows, _blank(taken.values, reads.used))
    added = jnp.einsum("nhqc,nhcd->nhqd", *weighed, precision=_EXACT)
    return _Running(
        largest,
        (running.total * rescale).at[owner].add(weights.sum(axis=-1)),
        (running.accumulator * rescale[..., None]).at[owner].add(added.reshape(queries.shape)),
    )
