"""The planner of block sizes, which must fit into a chip's vector memory with spilled registers.

The kernel's allocations are known to the byte; the spills of the compiler are bounded by a model,
see `spills`. Sizes are tried from the largest useful ones to the smallest that work.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from math import prod
from typing import Any, Final

import jax
import jax.numpy as jnp
from attrs import evolve, frozen
from jax.experimental.pallas import tpu as pltpu

from impl.attention import interface
from impl.attention.tpu import buffers, decode, prefill
from impl.attention.tpu.shape import LANES, SUBLANES, Blocks, Shape, ceil_div, power_to
from spec.vocabulary.errors import InvalidInput

MIB: Final = 1 << 20
FEWEST: Final = 16
"""Rows of 16-bit numbers in a register: no block is smaller."""
WORDS: Final = 2048
"""Rows of K in one step of decoding, of all KV heads together."""
FETCHED: Final = 16384
"""Rows of K in one fetch, of all KV heads together; or those of 2048 cells, if these are more."""
MOST_DECODE_CELLS: Final = 1024
MOST_SCORES: Final = (2**20, 2**18)
"""The most scores of a KV head in one step of a prefill; the second if vector memory is short."""
LONG: Final = 2048
"""Fewest tokens of a batch with blocks of 256 queries; in fewer, too much of a block is idle."""
WIDENING: Final = {"int8": 5, "float8_e4m3fn": 5, "float8_e5m2": 9}
"""Bytes that may be spilled for each number in a step of a prefill; decoding takes twice as many.
"""


UNPLANNED: Final = Blocks(kv_pages=1, decode_cells=1, decode_steps=4, q_rows=1, prefill_cells=1)
"""A placeholder, until a shape has its plan."""


@frozen
class Chip:
    """name: its usual name. kinds: its names in jax. vmem: bytes of vector memory of a core.

    cores: number of cores of one device. byte_products, negative_zeros: see `Shape`. The e4m3
    of the matrix units of v5e, v5p and v6e has another bias and, by its name, NaN in place of -0.
    """

    name: str
    kinds: tuple[str, ...]
    vmem: int
    cores: int
    byte_products: bool = True
    negative_zeros: bool = True

    @property
    def limit(self) -> int:
        """Bytes of vector memory that the kernel may use."""
        return self.vmem - max(self.vmem // 16, MIB)


CHIPS: Final = {
    chip.name: chip
    for chip in (
        Chip("v4", ("TPU v4",), 16 * MIB, 2, byte_products=False),
        Chip("v5e", ("TPU v5 lite", "TPU v5e"), 128 * MIB, 1, negative_zeros=False),
        Chip("v5p", ("TPU v5", "TPU v5p"), 64 * MIB, 2, negative_zeros=False),
        Chip("v6e", ("TPU v6 lite", "TPU v6e"), 128 * MIB, 1, negative_zeros=False),
        Chip("7x", ("TPU7x",), 64 * MIB, 1),
    )
}
"""Sizes as the compiler reports them."""


def chip_of(name: str | None) -> Chip:
    """The chip of this name, or the one that the program runs on. Raises InvalidInput."""
    if name is None:
        kind = jax.devices()[0].device_kind
        found = [chip for chip in CHIPS.values() if kind in chip.kinds]
        name = found[0].name if found else f"none, on {kind}"
    if name not in CHIPS:
        raise InvalidInput(
            "chip",
            seen=name,
            allowed=", ".join(CHIPS),
            remedy="Name the chip to compile for, interpret, or use the reference instead.",
        )
    return CHIPS[name]


def plan(shape: Shape, chip: Chip) -> Blocks:
    """The first of `candidates` that fits. Raises InvalidInput if none does."""
    least = None
    for blocks in candidates(shape):
        planned = evolve(shape, blocks=blocks)
        needed = need(planned)
        if needed <= chip.limit:
            check_sizes(planned)
            return blocks
        least = min(least or needed, needed)
    raise InvalidInput(
        "blocks",
        seen=f"{least} bytes for the smallest blocks",
        allowed=f"at most {chip.limit} bytes of {chip.name}",
        remedy="Use smaller pages, fewer KV heads on a device, or a pool of fewer bits.",
    )


def check(shape: Shape, chip: Chip) -> None:
    """Raises InvalidInput unless explicit sizes are consistent and fit."""
    check_sizes(shape)
    needed = need(shape)
    if needed > chip.limit:
        raise InvalidInput(
            "blocks",
            seen=f"{shape.blocks}, which need {needed} bytes",
            allowed=f"at most {chip.limit} bytes of {chip.name}",
            remedy=f"These would fit: {plan(shape, chip)}.",
        )


def check_sizes(shape: Shape) -> None:
    """Raises InvalidInput unless the sizes are consistent; see `Blocks`."""
    require = partial(interface.require, remedy="Leave blocks out to have them planned.")
    blocks = shape.blocks
    fetch = shape.fetch_cells
    for name, fewest in (("kv_pages", 1), ("q_rows", FEWEST)):
        value = getattr(blocks, name)
        allowed = f"a power of two, at least {fewest}"
        require(name, value, allowed, holds=_is_power(value) and value >= fewest)
    for name, least in (("decode_cells", FEWEST), ("prefill_cells", LANES)):
        value = getattr(blocks, name)
        allowed = f"a power of two, at least {least} and at most kv_pages * page_size, {fetch}"
        require(name, value, allowed, holds=_is_power(value) and least <= value <= fetch)
    rows = blocks.decode_cells * shape.kv_heads
    allowed = f"a multiple of {LANES} when multiplied with {shape.kv_heads} KV heads"
    require("decode_cells", blocks.decode_cells, allowed, holds=rows % LANES == 0)
    steps = blocks.decode_steps
    require(
        "decode_steps",
        steps,
        f"a multiple of {decode.BUFFERS}, at least {decode.BUFFERS}",
        holds=steps > 0 and steps % decode.BUFFERS == 0,
    )


def candidates(shape: Shape) -> Iterator[Blocks]:
    """Candidate sizes, best first: long fetches matter most, then many queries per cell read.

    Steps of decoding are shortened only if nothing else fits; prefill steps of the least length
    come last.
    """
    most = _decode_cells(shape)
    usual = [
        blocks
        for decode_cells in (most, most // 2, most // 4)
        if decode_cells >= FEWEST and decode_cells * shape.kv_heads % LANES == 0
        for blocks in _with_decode_cells(shape, decode_cells)
    ]
    yield from usual
    yield from (evolve(blocks, prefill_cells=LANES) for blocks in usual)


def _with_decode_cells(shape: Shape, decode_cells: int) -> Iterator[Blocks]:
    rows = min(256 if shape.tokens >= LONG else 128, _power_from(shape.tokens))
    sizes = _fetches(shape), (256, 128, 64, 32, 16), MOST_SCORES, (4, 8)
    for fetch, q_rows, scores, steps in product(*sizes):
        cells = min(max(fetch, decode_cells, shape.page_size), _power_from(shape.capacity))
        cells = max(cells, decode_cells, LANES)
        if q_rows > max(rows, FEWEST) or steps * decode_cells > max(cells, 4 * decode_cells):
            continue
        yield Blocks(
            kv_pages=max(1, cells // shape.page_size),
            decode_cells=decode_cells,
            decode_steps=steps,
            q_rows=q_rows,
            prefill_cells=min(cells, 1024, max(LANES, power_to(scores // (shape.group * q_rows)))),
        )


def _fetches(shape: Shape) -> list[int]:
    """Cells of a fetch: with few KV heads it is long, so that its begin counts for little."""
    longest = min(8192, max(2048, power_to(FETCHED // shape.kv_heads)))
    return [longest >> power for power in range(longest.bit_length()) if longest >> power >= LANES]


def need(shape: Shape) -> int:
    """Bytes of vector memory: the allocations, and a bound on the compiler's spills."""
    inputs = 2 * sum(map(padded, buffers.given(shape)))  # the compiler may have two of each
    return sum(map(padded, allocated(shape))) + inputs + spills(shape)


def allocated(shape: Shape) -> list[Any]:
    """Every buffer of the kernel that is in vector memory."""
    every = (*buffers.sized(shape), *decode.sized(shape), *prefill.sized(shape))
    kept = [buffer for buffer in every if buffer is not None]
    return [buffer for buffer in kept if buffer.memory_space == pltpu.VMEM]


def padded(buffer: Any) -> int:
    """Bytes of a buffer: the last axis fills registers of 128 lanes, the one before of 8 rows.

    More than 8 rows of numbers of two bytes fill registers of 16.
    """
    *outer, rows, width = buffer.shape
    size: int = jnp.dtype(buffer.dtype).itemsize
    high = SUBLANES if rows <= SUBLANES and size == 2 else SUBLANES * 4 // size
    return int(prod(outer)) * ceil_div(rows, high) * high * ceil_div(width, LANES) * LANES * size


def spills(shape: Shape) -> int:
    """A bound on spilled registers: the scores of two heads of a prefill, and of a decoding step.

    Where 8-bit numbers are widened, a chip without 8-bit products does it in many pieces. `kvspec
    kernel tpu --target` prints the spills of the compiler, see docs/kernel.md.
    """
    blocks = shape.blocks
    one = shape.group * blocks.q_rows * blocks.prefill_cells * 4
    other = shape.q_heads * blocks.decode_cells * shape.kv_heads * 4
    cells = max(2 * blocks.decode_cells, blocks.prefill_cells)
    taken = shape.packing == 4 and shape.byte_products
    bytes_each = 0 if taken else WIDENING.get(str(jnp.dtype(shape.kv_dtype)), 0)
    widened = bytes_each * cells * shape.rows * shape.lanes + MIB // 2
    fixed = 2 * MIB * shape.width // LANES
    return max(fixed + 2 * one + 2 * other, widened)


def _decode_cells(shape: Shape) -> int:
    """A power of two of cells whose rows fill whole registers."""
    cells = max(16, min(MOST_DECODE_CELLS, power_to(WORDS // shape.kv_heads)))
    while cells * shape.kv_heads % LANES:
        cells *= 2
    return cells


def _power_from(number: int) -> int:
    return 1 << (max(1, number) - 1).bit_length()


def _is_power(value: Any) -> bool:
    return type(value) is int and value > 0 and value & (value - 1) == 0
