"""Known kernels: their arguments for ahead-of-time compilation, and their resulting sizes.

Only the compiling process imports this module: it needs jax.
"""

from collections.abc import Callable, Mapping
from typing import Final

import jax
import jax.numpy as jnp
from attrs import asdict, evolve
from jax.typing import DTypeLike

from conformance.kernels.compile.grid import Cell
from impl.attention.tpu import blocks as planning
from impl.attention.tpu import flow, prefill, shape_of, writing
from impl.attention.tpu.shape import Shape

UNTUNED: Final = (128, 32)
UNTUNED_V4: Final = (32, 32)
"""Default pages and queries of a block, in jax's function beside its table."""
FAMILIES: Final = {"v5e": "TPU v5", "v5p": "TPU v5", "v6e": "TPU v6", "7x": "TPU7x"}
"""The key of a chip in jax's table: the first two words of its device kind."""


def arguments(name: str, cell: Cell) -> dict[str, int]:
    """The kernel's own arguments, beside those that every kernel receives."""
    maker = ARGUMENTS.get(name)
    return maker(cell) if maker else {}


def sizes(
    name: str, cell: Cell, given: Mapping[str, int], scratch: list[list[int]]
) -> dict[str, int] | None:
    """The sizes with which the kernel works, for `loops`; None where unknown.

    given: the arguments above. scratch: the shapes that it requested in vector memory.
    """
    maker = SIZES.get(name)
    return maker(cell, given, scratch) if maker else None


def _blocks_of_jax(cell: Cell) -> dict[str, int]:
    """The block sizes in jax's own table for this chip.

    Its function looks up the device that the program runs on, and there is no TPU here. This
    function looks up the target chip in the same way, and patches nothing.
    """
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import (
        tuned_block_sizes as tuned,
    )

    try:
        q, kv = _heads_of_jax(cell)
    except ValueError:
        return {}  # the kernel says so itself, before it looks at its table
    key = tuned.simplify_key(  # type: ignore[no-untyped-call]
        (
            *(jnp.dtype(cell.q), jnp.dtype(cell.kv), q, kv // 2),
            *(cell.heads.dim, cell.page_size, cell.tokens, cell.pages_per_seq),
        )
    )
    table = {} if cell.chip == "v4" else tuned.TUNED_BLOCK_SIZES.get(FAMILIES[cell.chip], {})
    pages, tokens = table.get(key, UNTUNED_V4 if cell.chip == "v4" else UNTUNED)
    return {
        "num_kv_pages_per_block": min(cell.pages_per_seq, pages),
        "num_queries_per_block": min(cell.tokens, tokens),
    }


def _heads_of_jax(cell: Cell) -> tuple[int, int]:
    """Query heads, and rows of K and V, of one block of heads. Raises ValueError if none."""
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import kernel

    q, kv = kernel.get_min_heads_per_blk(  # type: ignore[no-untyped-call]
        cell.heads.q, 2 * cell.heads.kv, jnp.dtype(cell.q), jnp.dtype(cell.kv)
    )
    return int(q), int(kv)


def _sizes_of_jax(cell: Cell, given: Mapping[str, int], _: list[list[int]]) -> dict[str, int]:
    q, _rows = _heads_of_jax(cell)
    return {
        "head_blocks": cell.heads.q // q,
        "kv_cells": given["num_kv_pages_per_block"] * cell.page_size,
        "q_rows": given["num_queries_per_block"],
    }


def shaped(shape: tuple[int, ...], dtype: DTypeLike) -> jax.ShapeDtypeStruct:
    """An array of which there is the shape alone."""
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))  # type: ignore[no-untyped-call]


def planned(cell: Cell) -> Shape:
    """Our kernel's sizes for this grid point, with planned blocks. Raises InvalidInput."""
    heads = cell.heads
    return shape_of(
        shaped((cell.tokens, heads.q, heads.dim), cell.q),
        shaped(cell.pool(of_rows=True), cell.kv),
        shaped((cell.seqs, cell.pages_per_seq), jnp.int32),
        page_size=cell.page_size,
        chip=cell.chip,
        append=cell.append,
    )


def _our_sizes(cell: Cell, _: Mapping[str, int], scratch: list[list[int]]) -> dict[str, int] | None:
    """The planned blocks of this grid point, if they agree with the requested scratch."""
    shape = planned(cell)
    every = planning.allocated(shape)
    every += writing.sized(shape)[:2] if cell.append else ()
    explained = sorted(list(buffer.shape) for buffer in every)
    if explained != sorted(scratch):
        return None
    whole = prefill.whole_cells(shape)
    few = evolve(shape, blocks=evolve(shape.blocks, q_rows=flow.FEW))
    return asdict(shape.blocks) | {
        "prefill_cells": whole,
        "edge_cells": shape.edge_cells,
        "head_turns": shape.kv_heads // prefill.heads_at_once(shape, whole),
        "loops_before": _first_loops(shape) + _first_loops(few) + _step_loops(few),
    }


def _step_loops(shape: Shape) -> int:
    """Loops over the steps of a prefill: long, short and masked ones, if there are long ones."""
    return 3 if shape.edge_cells < prefill.whole_cells(shape) else 2


def _first_loops(shape: Shape) -> int:
    """Loops over heads in the first step of a prefill, which is in no loop over steps."""
    return int(prefill.heads_at_once(shape, shape.edge_cells) < shape.kv_heads)


ARGUMENTS: Final[Mapping[str, Callable[[Cell], dict[str, int]]]] = {"jax": _blocks_of_jax}
SIZES: Final[Mapping[str, Callable[..., dict[str, int] | None]]] = {
    "tpu": _our_sizes,
    "jax": _sizes_of_jax,
}
"""By the short name of the kernel, see `kernel_under_test.KNOWN`."""
