"""Block sizes for known kernels: small ones, so that a small batch takes many steps."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from conformance.kernels.batches import Sizes

if TYPE_CHECKING:
    from impl.attention.tpu.shape import Blocks

Own = Mapping[str, "int | str | Blocks"]
"""Arguments that are specific to one function."""
_OF_8_BITS: Final = frozenset({"int8", "float8_e4m3fn", "float8_e5m2"})
BY_DEFAULT: Final[Own] = MappingProxyType({})
"""The sizes that a function chooses itself, as most callers have them."""


def variants(name: str, sizes: Sizes) -> list[tuple[Own, tuple[int, ...]]]:
    """The block arguments of the function of this name, each with the cells taken at a time.

    Most cases use the first. An unknown function has one variant: no arguments.
    """
    known = {"tpu": _tpu, "reference": _reference, "jax": _jax}
    return known[name](sizes) if name in known else [(BY_DEFAULT, ())]


def _tpu(sizes: Sizes) -> list[tuple[Own, tuple[int, ...]]]:
    from impl.attention.tpu.shape import Blocks, even

    page = even(sizes.page_size)  # of which kv_pages is a number
    fewest = 64 if sizes.heads[1] % 2 == 0 else 128
    small = Blocks(
        kv_pages=max(1, 128 // page),
        decode_cells=fewest,
        decode_steps=4,
        q_rows=16,
        prefill_cells=128,
    )
    steps = 8 if sizes.capacity >= 8 * fewest else 4  # a second group, where rows are long enough
    long = sizes.tokens > 256
    large = Blocks(
        kv_pages=steps * fewest // page,  # all steps of a group may be visible
        decode_cells=fewest,
        decode_steps=8 if long else 4,
        q_rows=256 if long else 32,
        prefill_cells=256,
    )
    both: Own = {"blocks": large, "chip": "v5p"}  # whose devices have two cores
    # A chip whose matrix unit multiplies no 8-bit numbers: they are widened, and -0 is kept.
    widening: Own = {"chip": "v4"}
    usual = [({"blocks": small}, (fewest, 128)), (both, (steps * fewest,)), (BY_DEFAULT, ())]
    return [*usual, (widening, ())] if sizes.kinds[1] in _OF_8_BITS else usual


def _reference(sizes: Sizes) -> list[tuple[Own, tuple[int, ...]]]:
    at_once = 1 << (20 if sizes.rows > 128 else 14)
    return [
        ({"q_block": 3, "kv_block_pages": 2}, (2 * sizes.page_size,)),
        # More rows, and more pages, than a number of 8 bits.
        ({"q_block": 160, "kv_block_pages": 160}, ()),
        # Several blocks in each step, as on devices with many threads; more than 8 bits of them, if
        # there are so many.
        ({"q_block": 4, "kv_block_pages": 1, "step_elements": at_once}, ()),
        (BY_DEFAULT, ()),
    ]


def _jax(sizes: Sizes) -> list[tuple[Own, tuple[int, ...]]]:
    return [
        ({"num_kv_pages_per_block": pages, "num_queries_per_block": queries}, (step,))
        for pages, queries in ((2, 8), (3, 16))
        for step in (pages * sizes.page_size,)
    ]
