"""Ragged paged attention for TPUs in Pallas: the interface of the reference, compiled for a chip.

The kernel copies K and V through the page table, page by page, while it works on earlier pages.
A sequence with one query takes the path for decoding, in `decode`; others take the one in
`prefill`. `flow` schedules the copies, `cells` extracts K and V from the pool's rows, and `blocks`
plans the sizes.
"""

from functools import partial
from itertools import count
from typing import Any, Final

import jax
import jax.numpy as jnp
from attrs import evolve
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import ArrayLike
from jaxtyping import Float, Float32, Int32, Shaped

from impl.attention import interface, places
from impl.attention.interface import (
    check_new,
    check_options,
    check_scales,
    check_shapes,
    check_sinks,
    require,
)
from impl.attention.tpu import blocks as planning
from impl.attention.tpu import buffers, decode, flow, fresh, prefill
from impl.attention.tpu.shape import LANES, Blocks, Shape, ceil_div, copied, even
from impl.attention.tpu.writing import write
from impl.cache import rows

NAME: Final = "kvspec_ragged_paged_attention"
INTERPRETED_CHIP: Final = "v5e"
"""The chip whose block sizes an interpreted kernel has by default."""
Q_DTYPES: Final = ("bfloat16", "float32", "float16")
WIDENED: Final = {"float16": "float32"}
"""The dtype of queries in the kernel, if it is another: the vector units have no float16."""
KV_DTYPES: Final = ("bfloat16", "float32", "int8", "float8_e4m3fn", "float8_e5m2")


def ragged_paged_attention(
    q: Array,
    kv_pages: Array,
    kv_lens: Array,
    page_indices: Array,
    cu_q_lens: Array,
    num_seqs: ArrayLike,
    *,
    page_size: int,
    scale: float = 1.0,
    soft_cap: float | None = None,
    sliding_window: int | None = None,
    sinks: Array | None = None,
    scales: Array | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    blocks: Blocks | None = None,
    chip: str | None = None,
    interpret: Any = False,
) -> Array:
    """Attend as `impl.attention.reference.ragged_paged_attention`, which has the other arguments.

    q: one of Q_DTYPES; with float16 all arithmetic is in float32, and the result is rounded to
    float16. kv_pages [pages, page_size * kv_heads, lanes]: one of KV_DTYPES, in the shape of
    `impl.cache.rows`. A page must be one that can be copied alone (see `shape.alone`); one whose
    size is no power of two is taken as several, which must fill tiles.
    k_scale, v_scale: factors of the stored K and V. Page ids must be in range: one that is not is
    clamped, so that nothing outside the pool is read. Rows that cu_q_lens has past the end of q are
    neither read nor written.

    blocks: sizes, planned for the chip unless given. chip: one of `blocks.CHIPS`, by default the
    one that the program runs on; required to compile ahead of time. interpret:
    `pltpu.InterpretParams` to run on any machine. Raises InvalidInput for unsupported arguments.
    """
    _check_rows(kv_pages)
    given = kv_lens, page_indices, cu_q_lens
    sizes = check_shapes(q, kv_pages, *given, jnp.shape(num_seqs), page_size=page_size)
    check_sinks(sinks, q)
    check_scales(scales, kv_pages, sizes, part=even(page_size))
    shape = shape_of(
        q,
        kv_pages,
        page_indices,
        page_size=page_size,
        scale=scale,
        soft_cap=soft_cap,
        sliding_window=sliding_window,
        k_scale=k_scale,
        v_scale=v_scale,
        blocks=blocks,
        chip=chip,
        interpret=interpret,
        append=False,
        sinks=sinks is not None,
        scales=scales is not None,
    )
    arrays = (kv_lens, page_indices, cu_q_lens, _count(num_seqs))
    wide = q.astype(shape.q_dtype)
    out: Array = _call(shape, interpret, wide, kv_pages, *arrays, sinks=sinks, scales=scales)
    return out.astype(q.dtype)


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
    page_size: int,
    destinations: Array | None = None,
    scale: float = 1.0,
    soft_cap: float | None = None,
    sliding_window: int | None = None,
    sinks: Array | None = None,
    scales: Array | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    blocks: Blocks | None = None,
    chip: str | None = None,
    interpret: Any = False,
) -> tuple[Array, Array]:
    """As `impl.attention.appending.append_and_attend`, which has the other arguments.

    K and V of the queries' own tokens are read from the operands, not from the pool: attention
    reads older cells, and the new ones are written when it has ended. If one cell cannot be copied
    alone (see `Shape.single`), they are written first instead, and then read like the others. The
    result of a sequence with rows past the end of q is undefined, since it lacks new cells.
    """
    _check_rows(kv_pages)
    given = kv_lens, page_indices, cu_q_lens
    sizes = check_shapes(q, kv_pages, *given, jnp.shape(num_seqs), page_size=page_size)
    check_new(keys, values, destinations, q, kv_pages, sizes.kv_heads)
    check_sinks(sinks, q)
    check_scales(scales, kv_pages, sizes, part=even(page_size))
    shape = shape_of(
        q,
        kv_pages,
        page_indices,
        page_size=page_size,
        scale=scale,
        soft_cap=soft_cap,
        sliding_window=sliding_window,
        k_scale=k_scale,
        v_scale=v_scale,
        blocks=blocks,
        chip=chip,
        interpret=interpret,
        append=True,
        sinks=sinks is not None,
        scales=scales is not None,
    )
    arrays = (kv_lens, page_indices, cu_q_lens, _count(num_seqs))
    if destinations is None:
        destinations = places.of(sizes, *arrays, tokens=q.shape[0])
    cells = rows.cells(keys, values)
    wide = q.astype(shape.q_dtype)
    out, pool = _appended(
        *(shape, interpret, kv_pages, cells, destinations, wide, *arrays),
        sinks=sinks,
        scales=scales,
    )
    return out.astype(q.dtype), pool


def _count(num_seqs: ArrayLike) -> Array:
    return jnp.reshape(jnp.asarray(num_seqs, jnp.int32), (1,))


def shape_of(
    q: Any,
    kv_pages: Any,
    page_indices: Any,
    *,
    page_size: int,
    scale: float = 1.0,
    soft_cap: float | None = None,
    sliding_window: int | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    blocks: Blocks | None = None,
    chip: str | None = None,
    interpret: Any = False,
    append: bool = False,
    sinks: bool = False,
    scales: bool = False,
) -> Shape:
    """The static shape of a call, with blocks that fit. Raises InvalidInput.

    q, kv_pages, page_indices: arrays, or their shapes and dtypes. append: whether new cells are
    given too. sinks, scales: whether there are any.
    """
    check_options(soft_cap=soft_cap, sliding_window=sliding_window)
    heads = kv_pages.shape[1] // page_size
    _check_kinds(q, kv_pages)
    _check_page(kv_pages, page_size, heads)
    parts = page_size // even(page_size)
    target = (
        planning.CHIPS[INTERPRETED_CHIP] if interpret and chip is None else planning.chip_of(chip)
    )
    shape = Shape(
        tokens=q.shape[0],
        seqs=page_indices.shape[0],
        q_heads=ceil_div(q.shape[1], 8) * 8,
        kv_heads=heads,
        group=q.shape[1] // heads,
        head_dim=q.shape[2],
        page_size=page_size // parts,
        pages=kv_pages.shape[0] * parts,
        pages_per_seq=page_indices.shape[1] * parts,
        q_dtype=jnp.dtype(WIDENED.get(str(q.dtype), q.dtype)),
        kv_dtype=jnp.dtype(kv_pages.dtype),
        scale=float(scale) * (1.0 if k_scale is None else float(k_scale)),
        v_scale=1.0 if v_scale is None else float(v_scale),
        soft_cap=None if soft_cap is None else float(soft_cap),
        window=sliding_window,
        vmem=target.limit,
        cores=target.cores,
        byte_products=target.byte_products,
        negative_zeros=target.negative_zeros,
        sinks=sinks,
        scales=scales,
        blocks=blocks or planning.UNPLANNED,
    )
    shape = evolve(shape, fresh=append and shape.single)
    if blocks is None:
        return evolve(shape, blocks=planning.plan(shape, target))
    planning.check(shape, target)
    return shape


def _check_rows(kv_pages: Array) -> None:
    allowed = "[pages, page_size * kv_heads, lanes], as a TPU holds it"
    shape = kv_pages.shape
    require("kv_pages", shape, allowed, holds=len(shape) == 3, remedy=interface.OF_ROWS)


def _check_kinds(q: Array, kv_pages: Array) -> None:
    seen = str(q.dtype), str(kv_pages.dtype)
    remedy = "Cast q; the result has its dtype."
    require("q", seen[0], ", ".join(Q_DTYPES), holds=seen[0] in Q_DTYPES, remedy=remedy)
    remedy = "Make the pool in bfloat16 or float32, and cast K and V when they are written."
    require("kv_pages", seen[1], ", ".join(KV_DTYPES), holds=seen[1] in KV_DTYPES, remedy=remedy)


def _check_page(kv_pages: Array, page_size: int, heads: int) -> None:
    """Raises InvalidInput for a page that cannot be copied, with a run of pages that can."""
    fits = partial(copied, rows=heads, size=kv_pages.dtype.itemsize)
    run = next(many for many in (1 << power for power in count()) if fits(page_size * many))
    allowed = f"pages that fill tiles or words, with {heads} rows in a cell, as {page_size * run}"
    remedy = (
        f"Give pages out in aligned runs of {run}, and name a run as one page:"
        f" page_size={page_size * run}, the pool reshaped, its first id // {run}."
    )
    require("page_size", page_size, allowed, holds=run == 1, remedy=remedy)


@partial(jax.jit, static_argnums=(0, 1))
def _call(
    shape: Shape,
    interpret: Any,
    q: Float[Array, "T H D"],
    kv_pages: Shaped[Array, "P rows lanes"],
    kv_lens: Int32[Array, " B"],
    page_indices: Int32[Array, "B M"],
    cu_q_lens: Int32[Array, " B+1"],
    num_seqs: Int32[Array, "1"],
    *,
    new: Shaped[Array, "N lanes"] | None = None,
    sinks: Float32[Array, " H"] | None = None,
    scales: Float32[Array, "whole R 2 128"] | None = None,
) -> Float[Array, "T H D"]:
    """Attend. new: the rows of the queries' own tokens, if they are an operand; see `fresh`.

    scales: of the whole pages, of which those of the pool may be parts.
    """
    _, q_heads, head_dim = q.shape
    wide = jnp.pad(
        q,
        (
            (0, 0),
            (0, shape.q_heads - q_heads),
            (shape.shift, shape.width - shape.shift - head_dim),
        ),
    )
    blank = jnp.zeros_like(wide)
    more = [] if new is None else [_tiles(shape, new)]
    spaces = [pltpu.HBM] * len(more)
    if sinks is not None:
        more.append(_by_row(shape, sinks))
        spaces.append(pltpu.VMEM)
    if scales is not None:
        more.append(scales.reshape(-1, 2, LANES))
        spaces.append(pltpu.HBM)
    split = (shape.cores,) if shape.cores > 1 else ()
    out: Array = pl.pallas_call(
        partial(_kernel, shape),
        out_shape=jax.typeof(blank),
        grid=split,
        in_specs=[
            *[pl.BlockSpec(memory_space=pltpu.SMEM)] * 3,
            *[pl.BlockSpec(memory_space=pltpu.HBM)] * 3,
            *[pl.BlockSpec(memory_space=space) for space in spaces],
            pl.BlockSpec(memory_space=pltpu.HBM),
        ],
        out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
        scratch_shapes=[one for part in _scratch(shape) for one in part if one is not None],
        input_output_aliases={6 + len(more): 0},  # rows of no sequence stay 0
        compiler_params=pltpu.CompilerParams(
            vmem_limit_bytes=shape.vmem,
            disable_bounds_checks=True,  # most of starting a copy; `flow` clamps what it is given
            dimension_semantics=(pltpu.PARALLEL,) * len(split),
        ),
        interpret=interpret,
        name=NAME,
    )(
        *(kv_lens, cu_q_lens, num_seqs, _ids(shape, page_indices), wide),
        *(_tiles(shape, _in_parts(shape, kv_pages)), *more, blank),
    )
    return out[:, :q_heads, :head_dim]


def _in_parts(shape: Shape, kv_pages: Shaped[Array, "P rows lanes"]) -> Array:
    """The pool with the pages of the shape; nothing is moved, since their rows fill tiles."""
    return kv_pages.reshape(shape.pages, shape.page_rows, shape.lanes)


def _tiles(shape: Shape, kv_rows: Shaped[Array, "*axes lanes"]) -> Shaped[Array, "N tile lanes"]:
    """Rows of the pool, or of new cells, as tiles; or as pages that have fewer rows than a tile.

    Nothing is moved, as the axis of tiles or of pages is no part of the layout.
    """
    return kv_rows.reshape(-1, min(shape.tile, kv_rows.shape[-2]), shape.lanes)


def _ids(shape: Shape, page_indices: Int32[Array, "B M"]) -> Int32[Array, "N 1 128"]:
    """The table as the kernel copies it, with ids of the pages of the shape; all are in range.

    The first id of a run is negative, see `Shape.runs`.
    """
    seqs, entries = page_indices.shape
    parts = shape.pages_per_seq // entries
    inside = jnp.clip(page_indices, 0, shape.pages // parts - 1)
    ids = inside[:, :, None] * parts + jnp.arange(parts, dtype=jnp.int32)
    missing = shape.table_rows * LANES - shape.pages_per_seq
    padded = jnp.pad(ids.reshape(seqs, shape.pages_per_seq), ((0, 0), (0, missing)))
    if shape.runs:
        blocks = padded.reshape(-1, shape.together)
        is_run = jnp.all(jnp.diff(blocks, axis=1) == 1, axis=1)
        padded = blocks.at[:, 0].set(jnp.where(is_run, ~blocks[:, 0], blocks[:, 0]))
    return padded.reshape(-1, 1, LANES)


def _by_row(shape: Shape, sinks: Float32[Array, " H"]) -> Float32[Array, "q_heads 128"]:
    """The sink of each query head in all lanes; -inf for a head that only fills a register."""
    filled = jnp.pad(sinks, (0, shape.q_heads - sinks.shape[0]), constant_values=-jnp.inf)
    return jnp.broadcast_to(filled[:, None], (shape.q_heads, LANES))


@partial(jax.jit, static_argnums=(0, 1))
def _appended(
    shape: Shape,
    interpret: Any,
    kv_pages: Shaped[Array, "P rows lanes"],
    cells: Shaped[Array, "T K lanes"],
    destinations: Int32[Array, " T"],
    q: Float[Array, "T H D"],
    *arrays: Array,
    sinks: Float32[Array, " H"] | None,
    scales: Float32[Array, "P R 2 128"] | None,
) -> tuple[Float[Array, "T H D"], Shaped[Array, "P rows lanes"]]:
    """The result of attention, and the pool; the second kernel waits for the first."""
    kv_lens, _, cu_q_lens, num_seqs = arrays
    new = fresh.operand(shape, cells, kv_lens, cu_q_lens, num_seqs)
    pages = _in_parts(shape, kv_pages)
    written = partial(write, shape, pages, new, destinations, interpret=interpret)
    if shape.fresh:
        out = _call(shape, interpret, q, pages, *arrays, new=new.rows, sinks=sinks, scales=scales)
        pool = written(after=out)
    else:
        pool = written(after=q)
        out = _call(shape, interpret, q, pool, *arrays, sinks=sinks, scales=scales)
    return out, pool.reshape(kv_pages.shape)


def _scratch(shape: Shape) -> tuple[buffers.Buffers, decode.Scratch, prefill.Scratch]:
    """The shapes of all buffers; None for one that is not needed."""
    return buffers.sized(shape), decode.sized(shape), prefill.sized(shape)


def _kernel(shape: Shape, *refs: Any) -> None:
    given = iter(refs)

    def take(sized: Any) -> Any:
        return type(sized)(*(None if one is None else next(given) for one in sized))

    there = {"fresh": shape.fresh, "sinks": shape.sinks, "scales": shape.scales}
    named = [name for name in buffers.Inputs._fields if there.get(name, True)]
    inputs = buffers.Inputs(**dict(zip(named, given, strict=False)))
    _blank, out = next(given), next(given)
    held, *scratch = map(take, _scratch(shape))
    flow.Flow(shape, inputs, out, held, tuple(scratch)).run()
