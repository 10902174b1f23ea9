"""The view of a paged KV cache: the observable part of its state, which the clauses judge.

The specification and every engine give the same kind of view, so that one predicate judges both. A
field that an engine cannot show is None; clauses that need it are then not checked, and are
reported as not checked.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from attrs import frozen

from spec.fields import VIEWED, OutputEntry, QueueEntry
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import INVALID, STANDARD, Capacity, Geometry, InvalidInput, Tokens


@frozen(kw_only=True, slots=False)
class View:
    """The fields of `spec.fields`; None is a field that the engine does not show.

    counts: per page. used, finished: per slot. rows: full width, INVALID where there is no page.
    tokens, proposed, allocated, written, committed, first_page: per slot (empty and 0 where
    unused). cells: per destination; the cell that ends a prefix should have the value
    `expected(prefix)`. capacity: the policy of the engine; the kit sets it, from the profile.
    Raises InvalidInput for a field with more or fewer entries.
    """

    geometry: Geometry
    counts: tuple[int, ...] | None
    used: tuple[bool, ...]
    rows: tuple[tuple[int, ...], ...]
    allocated: tuple[int, ...] | None = None
    written: tuple[int, ...] | None = None
    committed: tuple[int, ...] | None = None
    first_page: tuple[int, ...] | None = None
    tokens: tuple[Tokens, ...] | None = None
    proposed: tuple[Tokens, ...] | None = None
    finished: tuple[bool, ...] | None = None
    queue: tuple[QueueEntry, ...] | None = None
    outputs: tuple[OutputEntry, ...] | None = None
    cells: Sequence[object] | None = None
    expected: Callable[[Tokens], object] = lambda prefix: prefix
    capacity: Capacity = STANDARD

    def __attrs_post_init__(self) -> None:
        sizes = self.geometry
        for slot, row in enumerate(self.rows):
            if len(row) != sizes.pages_per_seq:
                raise InvalidInput(
                    f"View.rows[{slot}]",
                    seen=f"{len(row)} entries",
                    allowed=f"{sizes.pages_per_seq}, as many as a row of the table has",
                    remedy="Show the whole row, with INVALID where it names no page.",
                )
        counts = {
            "slot": sizes.slots,
            "page": sizes.pages,
            "cell": sizes.pages * sizes.page_size,
        }
        for name, index in _INDEXED:
            count = counts[index]
            entries = getattr(self, name)
            if entries is not None and len(entries) != count:
                raise InvalidInput(
                    f"View.{name}",
                    seen=f"{len(entries)} entries",
                    allowed=f"{count}, one for each slot, page or cell",
                    remedy="Show every entry, used or not.",
                )

    @cached_property
    def hidden(self) -> frozenset[str]:
        """The fields that the engine does not show."""
        return frozenset(field.name for field in VIEWED if getattr(self, field.name) is None)

    def require_same_fields(self, later: "View") -> None:
        """Raises InvalidInput if a later view of the engine hides other fields than this one."""
        for name in sorted(self.hidden ^ later.hidden):
            raise InvalidInput(
                f"View.{name}",
                seen="shown in one view and None in another",
                allowed="the same fields in every view of an engine",
                remedy="Show it always, with empty entries where there is nothing, or never.",
            )

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

    def known(self, slot: int) -> Tokens:
        """The tokens of a slot, final or proposed; needs tokens."""
        assert self.tokens is not None
        return self.tokens[slot] + (self.proposed[slot] if self.proposed is not None else ())

    def committed_cells(self, slot: int) -> int:
        """The number of leading cells whose tokens are final; needs written.

        Without the rung rollback every written cell is committed.
        """
        assert self.written is not None
        return self.written[slot] if self.committed is None else self.committed[slot]

    def first_cell(self, slot: int) -> int:
        """The first cell that a row still covers. Without the rung window it is 0."""
        first = 0 if self.first_page is None else self.first_page[slot]
        return max(0, first) * self.geometry.page_size

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


_INDEXED = tuple((field.name, field.index) for field in VIEWED if field.index != "whole")


def of(machine: Machine, state: State) -> View:
    """The view of a state of a machine; the value of a cell is its tag.

    A field that no rung of the machine owns is hidden.
    """
    shown: dict[str, Any] = {
        field.name: field.of(state) for field in VIEWED if field.owner in machine.names
    }
    return View(geometry=state.geometry, capacity=state.capacity, **shown)
