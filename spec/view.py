"""What can be observed of a paged KV cache, whoever implements it; the clauses judge this.

The specification and every engine are looked at through the same window, so that one predicate
serves both. A field that an engine cannot show is None, and the clauses that need it are then not
checked, and said not to be.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain

from attrs import fields, frozen

from spec.machines import lifecycle, scheduling
from spec.vocabulary import INVALID, FinishReason, Geometry, InvalidInput, Tokens

QueueEntry = tuple[int, int, int]
"""(token, slot, position)."""

OutputEntry = tuple[int, int, Tokens, FinishReason]
"""(request, choice, generated tokens, reason)."""


@frozen(kw_only=True, slots=False)
class View:
    """counts: per page. used, finished: slots. rows: full width, INVALID where there is no page.

    tokens, allocated, written: per slot (empty and 0 where unused). cells: per destination, a value
    that `expected(prefix)` gives for the cell that ends this prefix. Raises InvalidInput for a
    field with more or fewer entries.
    """

    geometry: Geometry
    counts: tuple[int, ...] | None
    used: tuple[bool, ...]
    rows: tuple[tuple[int, ...], ...]
    allocated: tuple[int, ...] | None = None
    written: tuple[int, ...] | None = None
    tokens: tuple[Tokens, ...] | None = None
    finished: tuple[bool, ...] | None = None
    queue: tuple[QueueEntry, ...] | None = None
    outputs: tuple[OutputEntry, ...] | None = None
    cells: Sequence[object] | None = None
    expected: Callable[[Tokens], object] = lambda prefix: prefix

    def __attrs_post_init__(self) -> None:
        sizes, slots = self.geometry, self.geometry.slots
        for name, count in (
            ("counts", sizes.pages),
            ("used", slots),
            ("rows", slots),
            ("allocated", slots),
            ("written", slots),
            ("tokens", slots),
            ("finished", slots),
            ("cells", sizes.pages * sizes.page_size),
        ):
            entries = getattr(self, name)
            if entries is not None and len(entries) != count:
                raise InvalidInput(
                    f"View.{name}",
                    seen=f"{len(entries)} entries",
                    allowed=f"{count}, one for each slot, page or cell",
                    remedy="Show all of them, used or not.",
                )

    @cached_property
    def hidden(self) -> frozenset[str]:
        """The fields that the engine does not show."""
        names = (field.name for field in fields(View))
        return frozenset(name for name in names if getattr(self, name) is None)

    @cached_property
    def named(self) -> dict[int, int]:
        """How many row entries of used slots name each page."""
        named: dict[int, int] = {}
        for used, row in zip(self.used, self.rows, strict=True):
            if used:
                for page in row:
                    if page != INVALID:
                        named[page] = named.get(page, 0) + 1
        return named

    def read(self, slot: int) -> tuple[object, ...]:
        """The written cells of a slot, in order, through its row; needs cells and written.

        None stands where the row names no page.
        """
        return self._read[slot]

    @cached_property
    def _read(self) -> tuple[tuple[object, ...], ...]:
        return tuple(self._read_slot(slot) for slot in range(len(self.rows)))

    def _read_slot(self, slot: int) -> tuple[object, ...]:
        assert self.cells is not None
        assert self.written is not None
        size, row, found = self.geometry.page_size, self.rows[slot], list[object]()
        for position in range(self.written[slot]):
            index, offset = divmod(position, size)
            page = row[index] if index < len(row) else INVALID
            there = 0 <= page < self.geometry.pages
            found.append(self.cells[page * size + offset] if there else None)
        return tuple(found)


def of(state: scheduling.State) -> View:
    """The specification's own state, seen through the window; a cell's value is its tag."""
    sequences = state.sequences
    width = state.geometry.pages_per_seq
    empty = (INVALID,) * width
    return View(
        geometry=state.geometry,
        counts=state.lifecycle.sharing.counts,
        used=tuple(sequence is not None for sequence in sequences),
        rows=tuple(
            sequence.row + empty[len(sequence.row) :] if sequence else empty
            for sequence in sequences
        ),
        allocated=tuple(sequence.allocated if sequence else 0 for sequence in sequences),
        written=tuple(sequence.written if sequence else 0 for sequence in sequences),
        tokens=tuple(sequence.tokens if sequence else () for sequence in sequences),
        finished=tuple(bool(detail and detail.finished) for detail in state.lifecycle.details),
        queue=tuple((queued.token, queued.slot, queued.position) for queued in state.queue),
        outputs=tuple(output_entry(output) for output in state.lifecycle.outputs),
        cells=tuple(chain.from_iterable(state.lifecycle.sharing.pages.cells)),
    )


def output_entry(output: lifecycle.Output) -> OutputEntry:
    """What a caller receives of a finished choice."""
    return output.request, output.choice, output.tokens, output.reason
