"""Checks of the arguments of ragged paged attention, shared by every implementation."""

from typing import Final

from attrs import frozen
from jax import Array

from impl.cache import rows
from impl.cache import scales as of_scales
from spec.vocabulary.errors import InvalidInput

OF_ROWS: Final = "impl.cache.rows makes such a pool."
OPTIONAL: Final = ("sliding_window", "kv_block_pages", "step_elements")


@frozen(kw_only=True)
class Pool:
    """The sizes of a pool, of either shape."""

    pages: int
    page_size: int
    kv_heads: int


def check_options(
    *, soft_cap: float | None, sliding_window: int | None, **blocks: int | None
) -> None:
    """Raises InvalidInput for options out of range. blocks: sizes by name, each at least 1."""
    for name, value in {"sliding_window": sliding_window, **blocks}.items():
        allowed = "an integer, 1 or more" + (", or None" if name in OPTIONAL else "")
        fits = (type(value) is int and value >= 1) or (value is None and name in OPTIONAL)
        remedy = f"Give another number, or leave {name} out."
        require(name, value, allowed, holds=fits, remedy=remedy)
    fits = soft_cap is None or soft_cap > 0
    remedy = "Leave soft_cap out if scores are not capped."
    require("soft_cap", soft_cap, "above 0, or None", holds=fits, remedy=remedy)


def check_sinks(sinks: Array | None, q: Array) -> None:
    """Raises InvalidInput unless there are none, or one of float32 for each query head."""
    if sinks is None:
        return
    heads = q.shape[1:2]
    remedy = "Give one for each query head; -inf is none."
    require("sinks", sinks.shape, f"{heads}", holds=sinks.shape == heads, remedy=remedy)
    seen = str(sinks.dtype)
    remedy = "Cast them: sinks.astype(jnp.float32)."
    require("sinks", seen, "float32", holds=seen == "float32", remedy=remedy)


def check_scales(scales: Array | None, kv_pages: Array, pool: Pool, *, part: int) -> None:
    """Raises InvalidInput unless there are none, or those of `impl.cache.scales` for this pool.

    part: the cells of a page that are taken together, a divisor of its size.
    """
    if scales is None:
        return
    of_rows = kv_pages.ndim == 3
    allowed = of_scales.shape(pool.pages, pool.page_size, pool.kv_heads, of_rows=of_rows, part=part)
    remedy = "impl.cache.scales makes such an array."
    require("scales", scales.shape, f"{allowed}", holds=scales.shape == allowed, remedy=remedy)
    seen = str(scales.dtype)
    remedy = "Cast them: scales.astype(jnp.float32)."
    require("scales", seen, "float32", holds=seen == "float32", remedy=remedy)


def require(name: str, seen: object, allowed: str, *, holds: bool, remedy: str) -> None:
    """Raises InvalidInput unless `holds`."""
    if not holds:
        raise InvalidInput(name, seen=seen, allowed=allowed, remedy=remedy)


def check_shapes(
    q: Array,
    kv_pages: Array,
    kv_lens: Array,
    page_indices: Array,
    cu_q_lens: Array,
    num_seqs: tuple[int, ...],
    *,
    page_size: int | None,
) -> Pool:
    """The sizes of the pool. Raises InvalidInput for shapes that do not fit together.

    num_seqs: its shape. page_size: of a pool of rows; the other shape has it already, or None.
    """
    remedy = "Give one row for each token, with its heads: q.reshape(tokens, q_heads, head_dim)."
    require("q", q.shape, "[T, q_heads, head_dim]", holds=q.ndim == 3, remedy=remedy)
    every, remedy = q.shape + kv_pages.shape, "Pad what is empty, or leave the call out."
    seen = q.shape, kv_pages.shape
    require("q", seen, "no empty axis", holds=0 not in every, remedy=remedy)
    of_rows = kv_pages.ndim == 3 and page_size is not None
    pool = (_of_rows if of_rows else _interleaved)(q, kv_pages, page_size)
    heads = pool.kv_heads
    remedy = "Pad the query heads of each KV head with zeros to as many, and drop their results."
    allowed, whole = f"a multiple of {heads} KV heads", q.shape[1] % heads == 0
    require("q", q.shape, allowed, holds=whole, remedy=remedy)
    _check_batch(kv_lens, page_indices, cu_q_lens, num_seqs)
    return pool


def _check_batch(
    kv_lens: Array, page_indices: Array, cu_q_lens: Array, num_seqs: tuple[int, ...]
) -> None:
    """Raises InvalidInput for shapes that are not those of one batch."""
    seen, remedy = page_indices.shape, "Give one row of page ids for each sequence, padded alike."
    rows = seen[0] if len(seen) == 2 else 0
    table = rows > 0 and seen[1] > 0
    require("page_indices", seen, "[B, pages_per_seq]", holds=table, remedy=remedy)
    for name, shape, wanted, remedy in (
        ("kv_lens", kv_lens.shape, [(rows,)], "Pad it to the rows of page_indices."),
        ("cu_q_lens", cu_q_lens.shape, [(rows + 1,)], "Begin it with 0, and pad it."),
        ("num_seqs", num_seqs, [(), (1,)], "Give the number of sequences alone."),
    ):
        allowed = " or ".join(map(str, wanted))
        require(name, shape, allowed, holds=shape in wanted, remedy=remedy)


def _interleaved(q: Array, kv_pages: Array, page_size: int | None) -> Pool:
    pool = kv_pages.shape
    layout = "[pages, page_size, 2 * kv_heads, head_dim], or pages of rows with their page_size"
    require("kv_pages", pool, layout, holds=len(pool) == 4 and pool[2] % 2 == 0, remedy=OF_ROWS)
    allowed = f"a head_dim of {pool[3]}, as in kv_pages"
    remedy = "Pad the narrower one with zeros, and cut the result; the scale stays."
    require("q", q.shape, allowed, holds=q.shape[2] == pool[3], remedy=remedy)
    allowed, remedy = f"{pool[1]}, as in kv_pages, or None", "Leave page_size out."
    require("page_size", page_size, allowed, holds=page_size in (None, pool[1]), remedy=remedy)
    return Pool(pages=pool[0], page_size=pool[1], kv_heads=pool[2] // 2)


def _of_rows(q: Array, kv_pages: Array, page_size: int | None) -> Pool:
    pages, count, lanes = kv_pages.shape
    size, width = page_size or 0, rows.lanes(q.shape[2])
    whole = type(page_size) is int and size >= 1 and count % size == 0
    allowed = f"the cells of a page, a divisor of its {count} rows"
    remedy = "Give the page_size with which the pool was made."
    require("page_size", page_size, allowed, holds=whole, remedy=remedy)
    allowed = f"rows of {width} lanes for a head_dim of {q.shape[2]}"
    require("kv_pages", kv_pages.shape, allowed, holds=lanes == width, remedy=OF_ROWS)
    return Pool(pages=pages, page_size=size, kv_heads=count // size)


def check_new(
    keys: Array,
    values: Array,
    destinations: Array | None,
    q: Array,
    kv_pages: Array,
    kv_heads: int,
) -> None:
    """Raises InvalidInput unless K and V of the new cells fit the queries and the pool."""
    wanted = (q.shape[0], kv_heads, q.shape[2])
    every = "Give one for each token of q, those of no sequence included."
    for name, given in (("keys", keys), ("values", values)):
        require(name, given.shape, f"{wanted}", holds=given.shape == wanted, remedy=every)
        require(
            name,
            str(given.dtype),
            f"the pool's dtype, {kv_pages.dtype}",
            holds=given.dtype == kv_pages.dtype,
            remedy="Cast it; for 8 bits, first divide by k_scale or v_scale and round.",
        )
    where, tokens = q.shape[:1] if destinations is None else destinations.shape, q.shape[:1]
    require("destinations", where, f"{tokens}", holds=where == tokens, remedy=every)
