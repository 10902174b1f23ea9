"""What our kernel cannot do with its sizes, each with the reason: nothing else may be missed.

A reason names lines of the kernel by their functions and scopes, and holds or not for the sizes of
a call. Tests hold every reason against the planner and against long searches: where one holds,
nothing reaches what it names; where it does not, a batch does.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from attrs import frozen

from conformance.kernels.coverage.sites import Outcome

if TYPE_CHECKING:
    from impl.attention.tpu.shape import Shape

LINE: Final = re.compile(r" \([^)]*\)")
"""File and line of a function."""
POWER: Final = re.compile(r"\[(\d+)\]$")


@frozen
class Reason:
    """Why some outcomes cannot be reached. why: in words.

    where: a pattern of the functions and the scope of a site. what: of the outcome. holds: for the
    sizes of a call, and the power of two that the scope names, 0 if none.
    """

    why: str
    where: str
    what: str
    holds: "Callable[[Shape, int], bool]" = lambda _shape, _power: True
    looped: bool | None = None

    def names(self, outcome: Outcome) -> bool:
        """Whether it is of this outcome."""
        fits = self.looped is None or self.looped == outcome.site.looped
        place = _place(outcome)
        return bool(fits and re.fullmatch(self.where, place) and re.match(self.what, outcome.what))


def _place(outcome: Outcome) -> str:
    """The functions and the scope of its site, without files and lines."""
    return LINE.sub("", outcome.site.where)


def why(outcome: Outcome, shape: "Shape | None") -> str | None:
    """Why our kernel cannot do this in a call of this shape; None if it can, or is another's."""
    if shape is None:
        return None
    power = POWER.search(outcome.site.where)
    number = int(power[1]) if power else 0
    for reason in REASONS:
        if reason.names(outcome) and reason.holds(shape, number):
            return reason.why
    return None


def _seen(shape: "Shape") -> int:
    """The most cells that a block of queries sees."""
    if shape.window is None:
        return shape.capacity
    return min(shape.capacity, shape.window + shape.blocks.q_rows - 1)


def _decoded(shape: "Shape") -> int:
    """The most cells that one query sees."""
    return min(shape.capacity, shape.window or shape.capacity)


def _pages(shape: "Shape") -> int:
    """The most pages of a fetch that hold cells which a block of queries sees."""
    return min(shape.blocks.kv_pages, (_seen(shape) - 2) // shape.page_size + 2)


def _alike(shape: "Shape") -> int:
    """The most cells that all queries of a block see."""
    return _decoded(shape) - (0 if shape.window is None else shape.blocks.q_rows - 1)


def _together() -> int:
    """Pages whose copies are started together."""
    from impl.attention.tpu import flow

    return flow.TOGETHER


def _group(shape: "Shape") -> int:
    """Cells of a group of steps of decoding."""
    return shape.blocks.decode_steps * shape.blocks.decode_cells


def _blended(shape: "Shape") -> int:
    """Blocks that are blended together."""
    from impl.attention.tpu import writing

    return int(writing.sized(shape).old.shape[0])


REASONS: Final = (
    Reason(
        "the first fetch of a call begins a block of queries",
        r"_start_pages",
        "not taken",
        looped=False,
    ),
    Reason("a decoded sequence has one row of q", r"in_powers < _store \[1\]", "not taken"),
    Reason("there are two cores at most", r"_first < run", "several passes"),
    Reason(
        "a call has fewer new cells than this part of a copy",
        r"in_powers < _start_fresh \[\d+\]",
        "taken",
        lambda shape, power: power > shape.tokens,
    ),
    Reason(
        "the first block sees no more new cells than it has queries",
        r"in_powers < _start_fresh \[\d+\]",
        "taken",
        lambda shape, power: power > shape.blocks.q_rows,
        looped=False,
    ),
    Reason(
        "a call has fewer new cells than these blocks",
        r"in_powers < (blocks|wait_for_blocks) \[\d+\]",
        "taken",
        lambda shape, power: power * shape.block > shape.tokens,
    ),
    Reason(
        "a page of one cell is copied whole",
        r"_start_rest < _start_pages",
        "taken",
        lambda shape, _power: shape.page_size == 1,
    ),
    Reason(
        "a fetch has fewer cells than a group of steps, or a query sees fewer",
        r"absorb < _decode \[whole\]",
        "(one|several) pass",
        lambda shape, _power: min(_decoded(shape), shape.fetch_cells) < _group(shape),
    ),
    Reason(
        "a fetch has fewer cells than two groups of steps, or a query sees fewer",
        r"absorb < _decode \[whole\]",
        "several pass",
        lambda shape, _power: min(_decoded(shape), shape.fetch_cells) < 2 * _group(shape),
    ),
    Reason(
        "a call has fewer queries than this part of a copy",
        r"in_powers < (_start_queries|_wait_rows|_store) \[\d+\]",
        "taken",
        lambda shape, power: power > shape.tokens,
    ),
    Reason(
        "so few pages of a fetch are seen that none are started together",
        r"_start_pages < .* \[together\]|_start_pages \[together\]",
        "(one|several) pass",
        lambda shape, _power: _pages(shape) < _together(),
    ),
    Reason(
        "so few pages of a fetch are seen that they are started together once",
        r"_start_pages < .* \[together\]|_start_pages \[together\]",
        "several pass",
        lambda shape, _power: _pages(shape) < 2 * _together(),
    ),
    Reason("a call has a token", r"_kernel", "no pass"),
    Reason(
        "each sequence begins and ends inside of one block, and blocks wait until there are more",
        r"(part < run|blend < part)",
        "",
        lambda shape, _power: 2 * shape.seqs < _blended(shape),
    ),
    Reason("a full buffer holds several blocks", r"blend < part", "(no|one) pass"),
)
"""Of our kernel, see `impl.attention.tpu`."""
