"""Block sizes for known kernels: small ones, so that a small batch takes many steps."""

from collections.abc import Mapping
from math import gcd
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from conformance.kernels.batches import Sizes

if TYPE_CHECKING:
    from impl.attention.tpu.shape import Blocks

Own = Mapping[str, "int | str | Blocks"]
"""Arguments that are specific to one function."""
CRAMPED: Final = frozenset({"widening", "one page"})
"""Plans for which no shape has room for all that a kernel can do."""
BY_DEFAULT: Final[Own] = MappingProxyType({})
"""The sizes that a function chooses itself, as most callers have them."""


def variants(name: str, sizes: Sizes) -> list[tuple[Own, tuple[int, ...]]]:
    """The block arguments of the function of this name, each with the cells taken at a time.

    Most cases use the first. An unknown function has one variant: no arguments.
    """
    known = {"tpu": _tpu, "reference": _reference, "jax": _jax}
    return known[name](sizes) if name in known else [(BY_DEFAULT, ())]


def _tpu(sizes: Sizes) -> list[tuple[Own, tuple[int, ...]]]:
    return [(_named(plan, sizes), ()) for plan in sizes.plans]


def _named(plan: str, sizes: Sizes) -> Own:
    """Arguments of our kernel, by the name of a plan.

    small: two groups of steps in a fetch, so that each loop may go on. short fetches: a prompt may
    fill several. short steps: of decoding, so that few copies of pages of one cell stand beside
    each in the program. long fetches: twice the small ones. long steps: those of a prefill that
    need no mask are half as long as a small fetch. one page: of each fetch, for as many queries as
    a block has. two cores: a chip whose devices have two. usual: the sizes that are planned.
    widening: those of a chip whose matrix unit multiplies no 8-bit numbers, so that they are
    widened, and -0 is kept.
    """
    from impl.attention.tpu.shape import LANES, Blocks, even

    if plan in ("usual", "widening"):
        return BY_DEFAULT if plan == "usual" else {"chip": "v4"}
    heads = sizes.heads[1]
    fewest = 64 if heads % 2 == 0 else 128
    fetches = {"short fetches": fewest, "long fetches": 16 * fewest, "one page": sizes.page_size}
    fetch = fetches.get(plan, 8 * fewest)
    small = Blocks(
        kv_pages=fetch // even(sizes.page_size),
        decode_cells=fewest if plan != "short steps" else max(16, LANES // gcd(LANES, heads)),
        decode_steps=4,
        q_rows=256 if plan == "one page" else 16,
        prefill_cells=fetch // 2 if plan == "long steps" else 128,
    )
    return {"blocks": small, "chip": "v5p"} if plan == "two cores" else {"blocks": small}


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
