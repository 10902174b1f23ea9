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

PLACE: Final = re.compile(r"(?P<chain>[^\[]*?)(?: \[(?P<scope>[^\]]*)\])?")
"""The functions of a site, the innermost first, and its scope."""
LINE: Final = re.compile(r" \([^)]*\)")
"""File and line of a function."""


@frozen
class Reason:
    """Why some outcomes cannot be reached. why: in words.

    where: a pattern of the innermost functions of a site. what: of the beginning of the outcome.
    holds: for the sizes of a call, and the power of two that the scope names, 0 if none. scope: a
    pattern of it. looped: whether a loop is around the site; None if that does not matter. given:
    whether destinations are; None if that does not matter.
    """

    why: str
    where: str
    what: str
    holds: "Callable[[Shape, int], bool]" = lambda _shape, _power: True
    scope: str = r"\d*"
    looped: bool | None = None
    given: bool | None = None

    def names(self, outcome: Outcome) -> bool:
        """Whether it is of this outcome."""
        chain, scope = _place(outcome)
        return bool(
            self.looped in (None, outcome.site.looped)
            and re.match(rf"(?:{self.where})(?: < |$)", chain)
            and re.fullmatch(self.scope, scope)
            and re.match(self.what, outcome.what)
        )


def _place(outcome: Outcome) -> tuple[str, str]:
    """The functions of its site without files and lines, and its scope."""
    found = PLACE.fullmatch(outcome.site.where)
    assert found is not None
    return LINE.sub("", found["chain"]), found["scope"] or ""


def why(outcome: Outcome, shape: "Shape | None", *, destinations: bool = False) -> str | None:
    """Why our kernel cannot do this in a call of this shape; None if it can, or is another's.

    destinations: whether those of new cells are given.
    """
    if shape is None:
        return None
    _, scope = _place(outcome)
    number = int(scope) if scope.isdigit() else 0
    for reason in REASONS:
        meant = reason.given in (None, destinations)
        if meant and reason.names(outcome) and reason.holds(shape, number):
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


def _group(shape: "Shape") -> int:
    """Cells of a group of steps of decoding."""
    return shape.blocks.decode_steps * shape.blocks.decode_cells


def _blended(shape: "Shape") -> int:
    """Blocks that are blended together."""
    from impl.attention.tpu import writing

    return int(writing.sized(shape).old.shape[0])


def _all_wait(shape: "Shape") -> bool:
    """Whether the first and the last blocks of all sequences can wait together."""
    return 2 * shape.seqs <= _blended(shape) - 2


REASONS: Final = (
    Reason(
        "the first fetch of a call begins a block of queries",
        r"_start_pages( < _start_pages.*)?$",
        "not taken",
        looped=False,
    ),
    Reason(
        "a decoded sequence has one row of q",
        r"in_powers < (_store < _decode|_start_rows < _start_query|_wait_rows < _wait_query)",
        "not taken",
        scope="1",
    ),
    Reason("a fetch has a visible cell", r"_start_scales", "no pass", scope="scales"),
    Reason(
        "so few pages are seen, or are in a fetch, that their scales are copied in one block",
        r"_start_scales",
        "several passes",
        lambda shape, _power: (
            min(shape.fetch_cells, shape.capacity) <= shape.together * shape.page_size
        ),
        scope="scales",
    ),
    Reason(
        "two short steps of a prefill are a long one",
        r"absorb < _prefill",
        "several pass",
        lambda shape, _power: shape.blocks.prefill_cells <= 2 * shape.edge_cells,
        scope="shorter",
    ),
    Reason("groups of steps begin if there is one", r"groups", "no pass"),
    Reason("there are two cores at most", r"_first < run", "several passes"),
    Reason(
        "a call has fewer new cells than this part of a copy",
        r"in_powers < _start_fresh",
        "taken",
        lambda shape, power: power > shape.tokens,
    ),
    Reason(
        "the first block of the only core sees no more new cells than it has queries",
        r"in_powers < _start_fresh",
        "taken",
        lambda shape, power: shape.cores == 1 and power > shape.blocks.q_rows,
        looped=False,
    ),
    Reason(
        "a call has fewer new cells than these blocks",
        r"in_powers < (blocks|wait_for_blocks)",
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
        r"absorb < _decode",
        "(one|several) pass",
        lambda shape, _power: min(_decoded(shape), shape.fetch_cells) < _group(shape),
        scope="whole",
    ),
    Reason(
        "a block of pages is left at least, and it takes more steps than are without a group",
        r"groups < absorb < _absorb_and_start",
        "not taken",
        lambda shape, _power: (
            shape.window is None and shape.together > shape.blocks.decode_steps * shape.beside
        ),
        scope="whole",
    ),
    Reason(
        "a fetch has fewer cells than two groups of steps, or a query sees fewer",
        r"absorb < _decode",
        "several pass",
        lambda shape, _power: min(_decoded(shape), shape.fetch_cells) < 2 * _group(shape),
        scope="whole",
    ),
    Reason(
        "a call has fewer queries than this part of a copy",
        r"in_powers < (_start_rows|_wait_rows|_store)",
        "taken",
        lambda shape, power: power > shape.tokens,
    ),
    Reason(
        "so few pages of a fetch are seen that none are started together",
        r"_start_pages",
        "(one|several) pass",
        lambda shape, _power: _pages(shape) < shape.together,
        scope="together",
    ),
    Reason(
        "so none is a run, of as many as are started together",
        r"_start_together < _start_pages",
        "",
        lambda shape, _power: _pages(shape) < shape.together,
    ),
    Reason(
        "so few pages of a fetch are seen that they are started together once",
        r"_start_pages",
        "several pass",
        lambda shape, _power: _pages(shape) < 2 * shape.together,
        scope="together",
    ),
    Reason(
        "pages from the first on are started one by one if there are so few, and a fetch has one",
        r"_start_pages",
        "no pass",
        lambda shape, _power: (
            shape.window is None and _pages(shape) < shape.together and not shape.fresh
        ),
        scope="alone",
    ),
    Reason(
        "new cells are copied one by one up to the next unit, and a unit has two cells",
        r"_start_fresh",
        "several pass",
        lambda shape, _power: shape.unit <= 2,
    ),
    Reason("a call has a token", r"_kernel", "no pass"),
    Reason(
        "each sequence begins and ends inside of one block, and blocks wait until there are more",
        r"room < run",
        "taken",
        lambda shape, _power: _all_wait(shape),
        given=False,
    ),
    Reason(
        "so none is written before the end",
        r"blend < room",
        "",
        lambda shape, _power: _all_wait(shape),
        given=False,
    ),
    Reason("a block waits if one is due", r"blend < room", "no pass"),
    Reason(
        "without destinations none is due until several wait",
        r"blend < room",
        "one pass",
        lambda shape, _power: _blended(shape) > 2,
        given=False,
    ),
)
"""Of our kernel, see `impl.attention.tpu`."""
