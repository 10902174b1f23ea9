"""Checks of the arguments of ragged paged attention, shared by every implementation."""

from typing import Final

from attrs import frozen
from jax import Array

from impl.cache import rows
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
        require(name, value, allowed, holds=fits)
    require("soft_cap", soft_cap, "above 0, or None", holds=soft_cap is None or soft_cap > 0)


def require(
    name: str,
    seen: object,
    allowed: str,
    *,
    holds: bool,
    remedy: str = "See ragged_paged_attention for what it means.",
) -> None:
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
    require("q", q.shape, "[T, q_heads, head_dim]", holds=q.ndim == 3)
    every = q.shape + kv_pages.shape
    require("q", (q.shape, kv_pages.shape), "no empty axis", holds=0 not in every)
    of_rows = kv_pages.ndim == 3 and page_size is not None
    pool = (_of_rows if of_rows else _interleaved)(q, kv_pages, page_size)
    heads = pool.kv_heads
    require("q", q.shape, f"a multiple of {heads} KV heads", holds=q.shape[1] % heads == 0)
    rows = page_indices.shape[0] if page_indices.ndim == 2 else 0
    table = rows > 0 and page_indices.shape[1] > 0
    require("page_indices", page_indices.shape, "[B, pages_per_seq]", holds=table)
    require("kv_lens", kv_lens.shape, f"({rows},)", holds=kv_lens.shape == (rows,))
    bounds = (rows + 1,)
    require("cu_q_lens", cu_q_lens.shape, f"{bounds}", holds=cu_q_lens.shape == bounds)
    require("num_seqs", num_seqs, "() or (1,)", holds=num_seqs in ((), (1,)))
    return pool


def _interleaved(q: Array, kv_pages: Array, page_size: int | None) -> Pool:
    pool = kv_pages.shape
    layout = "[pages, page_size, 2 * kv_heads, head_dim], or pages of rows with their page_size"
    require("kv_pages", pool, layout, holds=len(pool) == 4 and pool[2] % 2 == 0, remedy=OF_ROWS)
    require("q", q.shape, f"a head_dim of {pool[3]}, as in kv_pages", holds=q.shape[2] == pool[3])
    allowed = f"{pool[1]}, as in kv_pages, or None"
    require("page_size", page_size, allowed, holds=page_size in (None, pool[1]))
    return Pool(pages=pool[0], page_size=pool[1], kv_heads=pool[2] // 2)


def _of_rows(q: Array, kv_pages: Array, page_size: int | None) -> Pool:
    pages, count, lanes = kv_pages.shape
    size, width = page_size or 0, rows.lanes(q.shape[2])
    whole = type(page_size) is int and size >= 1 and count % size == 0
    allowed = f"the cells of a page, a divisor of its {count} rows"
    require("page_size", page_size, allowed, holds=whole)
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
    for name, given in (("keys", keys), ("values", values)):
        require(name, given.shape, f"{wanted}", holds=given.shape == wanted)
        require(
            name,
            str(given.dtype),
            f"the pool's dtype, {kv_pages.dtype}",
            holds=given.dtype == kv_pages.dtype,
            remedy="Cast it; for 8 bits, first divide by k_scale or v_scale and round.",
        )
    where, tokens = q.shape[:1] if destinations is None else destinations.shape, q.shape[:1]
    require("destinations", where, f"{tokens}", holds=where == tokens)
