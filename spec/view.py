"""The view of a paged KV cache: the observable part of its state, which the clauses judge.

The specification and every engine give the same kind of view, so that one predicate judges both. A
field that an engine cannot show is None; clauses that need it are then not checked, and are
reported as not checked.
"""

import operator
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property
from itertools import chain
from typing import Any, Final

from attrs import NOTHING, field, fields, frozen

from spec.fields import VIEWED, FlightEntry, IndexEntry, OutputEntry, PartEntry, QueueEntry
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import (
    INVALID,
    STANDARD,
    Capacity,
    FinishReason,
    Geometry,
    InvalidInput,
    Tokens,
)


def _given(given: Any) -> Any:
    """A field as it is given: `View` brings it into its form, and knows its name."""
    return given


@frozen(kw_only=True, slots=False)
class View:
    """The fields of `spec.fields`; None is a field that the engine does not show.

    counts: per page. used, finished: per slot. rows: per slot, INVALID where there is no page; a
    shorter row names no further page. tokens, proposed, allocated, written, committed, first_page,
    contexts, stale: per slot (empty and 0 where unused). indexed, idle_ranks, held: per page.
    cells: per destination; the cell that ends a prefix should have the value `expected(prefix)`.
    capacity: the policy of the engine; the kit sets it, from the profile. reserved: the cells
    reserved for each slot, from the specification; the kit sets it too, and it is empty if the
    policy reserves none.
    Lists and arrays become tuples, and their numbers Python's own. Raises InvalidInput for a field
    with more or fewer entries, or with other values.
    """

    geometry: Geometry
    counts: tuple[int, ...] | None = field(converter=_given)
    used: tuple[bool, ...] = field(converter=_given)
    rows: tuple[tuple[int, ...], ...] = field(converter=_given)
    allocated: tuple[int, ...] | None = field(default=None, converter=_given)
    written: tuple[int, ...] | None = field(default=None, converter=_given)
    committed: tuple[int, ...] | None = field(default=None, converter=_given)
    first_page: tuple[int, ...] | None = field(default=None, converter=_given)
    indexed: tuple[IndexEntry, ...] | None = field(default=None, converter=_given)
    idle_ranks: tuple[int, ...] | None = field(default=None, converter=_given)
    contexts: tuple[int, ...] | None = field(default=None, converter=_given)
    stale: tuple[bool, ...] | None = field(default=None, converter=_given)
    tokens: tuple[Tokens, ...] | None = field(default=None, converter=_given)
    proposed: tuple[Tokens, ...] | None = field(default=None, converter=_given)
    finished: tuple[bool, ...] | None = field(default=None, converter=_given)
    queue: tuple[QueueEntry, ...] | None = None
    outputs: tuple[OutputEntry, ...] | None = None
    flights: tuple[FlightEntry, ...] | None = None
    held: tuple[int, ...] | None = field(default=None, converter=_given)
    cells: Sequence[object] | None = None
    expected: Callable[[Tokens], object] = field(default=lambda prefix: prefix, eq=False)
    capacity: Capacity = STANDARD
    reserved: tuple[int, ...] = ()

    def __attrs_post_init__(self) -> None:
        for name, form in _FORMS.items():
            given = getattr(self, name)
            shown = None if given is None else _in_form(name, form, given)
            if shown is not given:
                object.__setattr__(self, name, shown)
        width = self.geometry.pages_per_seq
        if any(len(row) < width for row in self.rows):
            rows = tuple(row + (INVALID,) * (width - len(row)) for row in self.rows)
            object.__setattr__(self, "rows", rows)
        sizes = self.geometry
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
        return frozenset(one.name for one in VIEWED if getattr(self, one.name) is None)

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

    def key(self, slot: int, entry: int) -> IndexEntry | None:
        """The key of a page of a row, as an entry of `indexed`; needs contexts and tokens.

        None: the tokens of a slot end before the page does.
        """
        assert self.contexts is not None
        assert self.tokens is not None
        end = (entry + 1) * self.geometry.page_size
        tokens = self.tokens[slot][:end]
        return (self.contexts[slot], *tokens) if len(tokens) == end else None

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

    def steps_of(self, slot: int) -> tuple[PartEntry, ...]:
        """What the steps in flight do with the sequence of a slot, oldest first."""
        return tuple(
            part for _, parts, _ in self.flights or () for part in parts if part[0] == slot
        )

    def heard(self, slot: int) -> Tokens:
        """The tokens of a slot that its host knows, final or proposed; needs tokens.

        What a step in flight has drawn, and what waits behind it, the host does not know.
        """
        assert self.tokens is not None
        return self.tokens[slot] if self.steps_of(slot) else self.known(slot)

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


def plain(value: Any) -> Any:
    """A value with tuples for lists and arrays, and Python's own numbers: what can be compared."""
    if hasattr(value, "tolist"):  # an array or a number of numpy, jax or torch
        value = value.tolist()
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def _in_form(name: str, form: Callable[[Any], Any], given: Any) -> Any:
    """A field in its form. Raises InvalidInput."""
    if given is _IN_FORM.get(name):
        return given
    try:
        shown = form(given)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"View.{name}",
            seen=given,
            allowed=f"a list, tuple or array of {_WORDS[form]}",
            remedy="Show such values.",
        ) from None
    if form is not _contents:
        _IN_FORM[name] = shown
    return shown


def _listed(given: Any) -> list[Any]:
    """The entries of a list, a tuple, an array or an iterator. Raises TypeError."""
    if isinstance(given, Mapping | Set | str | bytes):
        raise TypeError
    return list(given.tolist() if hasattr(given, "tolist") else given)


def _numbers(given: Any) -> tuple[int, ...]:
    if type(given) in _LISTS and _INT.issuperset(map(type, given)):
        return tuple(given)  # a tuple is not copied
    return tuple(int(operator.index(entry)) for entry in _listed(given))


def _flags(given: Any) -> tuple[bool, ...]:
    if type(given) in _LISTS and _BOOL.issuperset(map(type, given)):
        return tuple(given)
    return tuple(_flag(operator.index(plain(entry))) for entry in _listed(given))


def _flag(number: int) -> bool:
    if number not in (0, 1):
        raise ValueError
    return number == 1


def _rows_of_numbers(given: Any) -> tuple[tuple[int, ...], ...]:
    if type(given) is tuple and _are_tuples_of_numbers(given):
        return given
    return tuple(map(_numbers, _listed(given)))


def _are_tuples_of_numbers(given: tuple[Any, ...]) -> bool:
    return _TUPLE.issuperset(map(type, given)) and _INT.issuperset(
        map(type, chain.from_iterable(given))
    )


def _queue(given: Any) -> tuple[tuple[int, ...], ...]:
    entries = _rows_of_numbers(given)
    if any(len(entry) != len(QUEUED) for entry in entries):
        raise ValueError
    return entries


def outputs(given: Any) -> tuple[OutputEntry, ...]:
    """Outputs in the form of a view. Raises TypeError or ValueError."""
    return tuple(
        (
            int(operator.index(request)),
            int(operator.index(choice)),
            _numbers(tokens),
            FinishReason(reason),
        )
        for request, choice, tokens, reason in _listed(given)
    )


def _flights(given: Any) -> tuple[FlightEntry, ...]:
    """Steps in flight in the form of a view. Raises TypeError or ValueError."""
    return tuple(
        (
            _flag(operator.index(plain(retired))),
            tuple(map(_part, _listed(parts))),
            _numbers(held),
        )
        for retired, parts, held in map(_listed, _listed(given))
    )


def _part(given: Any) -> PartEntry:
    slot, first, count = _numbers(_listed(given)[:3])
    (draws,) = _listed(given)[3:]
    return slot, first, count, _flag(operator.index(plain(draws)))


def _contents(given: Any) -> Any:
    """Cells as they are, unless one of them is a list or an array, which cannot be compared."""
    if isinstance(given, list | tuple) and _COMPARED.issuperset(map(type, given)):
        return given
    return plain(given)


QUEUED: Final = ("token", "slot", "position")
"""The entries of a queued token."""
_LISTS: Final = frozenset({list, tuple})
_TUPLE: Final = frozenset({tuple})
_INT: Final = frozenset({int})
_BOOL: Final = frozenset({bool})
_COMPARED: Final = frozenset({int, float, str, tuple, type(None)})
_FORMS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "counts": _numbers,
    "used": _flags,
    "rows": _rows_of_numbers,
    "allocated": _numbers,
    "written": _numbers,
    "committed": _numbers,
    "first_page": _numbers,
    "indexed": _rows_of_numbers,
    "idle_ranks": _numbers,
    "contexts": _numbers,
    "stale": _flags,
    "tokens": _rows_of_numbers,
    "proposed": _rows_of_numbers,
    "finished": _flags,
    "queue": _queue,
    "outputs": outputs,
    "flights": _flights,
    "held": _numbers,
    "cells": _contents,
}
_IN_FORM: Final = dict[str, Any]()
"""The last value of each field in its form; tuples of numbers stay in it."""
_WORDS: Final[Mapping[Callable[[Any], Any], str]] = {
    _numbers: "integers",
    _flags: "booleans",
    _rows_of_numbers: "lists of integers",
    _queue: f"({', '.join(QUEUED)})",
    outputs: "(request, choice, tokens, reason)",
    _flights: "(retired, parts, held)",
    _contents: "contents",
}
_INDEXED = tuple((one.name, one.index) for one in VIEWED if one.index != "whole")


def of(machine: Machine, state: State) -> View:
    """The view of a state of a machine; the value of a cell is its tag.

    A field that no rung of the machine owns is hidden.
    """
    shown: dict[str, Any] = {
        one.name: one.of(state) for one in VIEWED if one.owner in machine.names
    }
    view = View.__new__(View)  # what comes from a state is in form: a search makes millions
    given = {"geometry": state.geometry, "capacity": state.capacity, "reserved": reserved(state)}
    vars(view).update(_HIDDEN, **given, **shown)
    return view


def reserved(state: State) -> tuple[int, ...]:
    """The cells reserved for each slot; empty if the policy reserves none."""
    if state.capacity.reserve == "none":
        return ()
    return tuple(sequence.reserved if sequence else 0 for sequence in state.sequences)


_HIDDEN: Final = {one.name: None if one.default is NOTHING else one.default for one in fields(View)}
