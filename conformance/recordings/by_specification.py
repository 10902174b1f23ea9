"""The specification as the machine of the judge: slower than the fast table, and complete.

It takes the lowest free pages. Where the engine may take any, a page that is taken is unknown until
a row shows it; then the state has it under that number. What the engine does to its index unasked
is taken as in lockstep, from what the lines show.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from conformance.history import Attend, PoisonDead
from conformance.lockstep.unasked import Rows, Taken, Unasked
from conformance.protocol import Action
from conformance.recordings.answers import (
    Change,
    Done,
    Illegal,
    no_such,
    not_free,
    wrong_page,
    wrong_width,
)
from conformance.recordings.fields import Fields, changes, plain_result
from conformance.recordings.format import Header, Line, Saw
from conformance.recordings.page_numbers import (
    exchanged,
    in_use,
    is_free,
    kept_in_index,
    kept_in_rows,
)
from conformance.rungs.coverage import Coverage, in_rows
from conformance.rungs.registry import legal_results
from spec import index
from spec.fields import BY_NAME, RECORDED, IndexEntry, index_entry
from spec.machines.actions import Allocate, Evict
from spec.rung import Machine
from spec.state import PER_PAGE, PER_SLOT, State
from spec.vocabulary import Reason

_EMPTY: Final[Mapping[int, Any]] = {}


class Seen(NamedTuple):
    """What an engine has shown last of its rows and its index."""

    rows: Rows
    indexed: tuple[IndexEntry, ...]


class BySpec:
    """See `conformance.recordings.judge.Machine`.

    fields: the entries that the specification expects now; unknown pages have a number there too.
    blank: the initial entry of each field, which is the same for all slots and pages.
    """

    def __init__(self, header: Header, machine: Machine) -> None:
        self._header, self._machine = header, machine
        self._before = self._state = machine.initial(
            header.geometry, header.limits, header.cleanup, header.capacity
        )
        sizes = header.geometry
        self._seen = Seen(((),) * sizes.slots, ((),) * sizes.pages)
        self._unasked: list[Taken] = []
        self._unknown: frozenset[int] = frozenset()
        self._untold: frozenset[int] = frozenset()
        self._counted: set[int] = set()
        self._shown = self._state
        self.fields = _shown(self._state, range(sizes.slots), range(sizes.pages))
        self.blank = {name: values[0] for name, values in self.fields.items()}

    def reasons(self, action: Action) -> frozenset[Reason]:
        """The reasons for which the specification refuses the action; empty if it is legal."""
        return frozenset(refusal.reason for refusal in self._machine.refusals(self._state, action))

    def do(self, line: Line) -> Done:
        """Take the action of a line, unless it was refused, and what came unasked with it."""
        assert not isinstance(line.step, PoisonDead | Attend)
        self._before, self._unasked, self._untold = self._state, [], self._unknown
        last, self._seen = self._seen, self._shown_now(line.saw)
        own = Unasked(self._machine, self._header.unasked, self._seen)
        if line.refused is None:
            self._follow(own.first(self._state, line.step, last))
            self._move(self._machine.effect(self._state, line.step))
        self._follow(own.then(self._state, last))
        moved = self._moved_keys()
        for slot, row in line.saw.get("rows", _EMPTY).items():
            wrong = self._name(slot, row)
            if wrong is not None:
                raise wrong
        self._name_keys(moved)
        results = [] if line.refused is not None else self._results(line.step)
        self._untold |= self._unknown
        return Done([one for one in self._show() if self._is_told(one)], results)

    def count(self, coverage: Coverage, action: Action, reasons: frozenset[Reason]) -> None:
        """Count the last action. reasons: why it was refused; empty if it was done."""
        for taken in self._unasked:
            coverage.count_unasked(*taken)
        known = in_rows(self._state) - self._unknown
        before = self._state if reasons else self._before
        pages = (self._counted, known)
        coverage.record(before, action, reasons, self._state, pages=pages)
        self._counted = known

    def expected(self, field: str, index: int) -> object:
        """The expected value of an entry, with negative numbers for unknown pages."""
        values = self.fields[field]
        if not self._unknown or index not in values:
            return values.get(index, no_such(field))
        if field == "rows":
            row: Any = values[index]
            return tuple(~page if page in self._unknown else page for page in row)
        unknown = BY_NAME[field].index == "page" and index in self._unknown
        return self.blank[field] if unknown else values[index]

    def holder(self, page: int) -> int | None:
        """A slot whose row names the page; None if no row does."""
        if page in self._unknown:
            return None
        sequences = enumerate(self._state.sequences)
        return next((slot for slot, one in sequences if one and page in one.row), None)

    def agrees(self, field: str, index: int, seen: object) -> bool:
        """Whether a value is the expected one. A page that is shown for the first time is kept."""
        if self._unknown and field == "rows" and isinstance(seen, tuple):
            self._name(index, seen)
            self._show()
        if seen == self.expected(field, index):
            return True
        if not self._unknown or BY_NAME[field].index != "page" or not self._may_be(index):
            return False
        return any(seen == self.fields[field][page] for page in self._unknown)

    def _results(self, action: Action) -> list[object]:
        """The legal results; none if they name an unknown page."""
        found = legal_results(self._machine, self._before, action, self._state)
        results = [plain_result(result) for result in found]
        if self._unknown and isinstance(action, Allocate):
            size = self._header.geometry.page_size
            cells = (cell for result in results for cell in result)  # type: ignore[attr-defined]
            if any(cell // size in self._unknown for cell in cells):
                return []
        return results

    def _show(self) -> list[Change]:
        """Bring the fields up to date with the state, and return what has changed."""
        shown = _shown(self._state, *_touched(self._shown, self._state))
        changed = changes(self.fields, shown)
        for name, values in shown.items():
            self.fields[name].update(values)
        self._shown = self._state
        return changed

    def _is_told(self, change: Change) -> bool:
        """Whether an engine can show a change: not that of a page of unknown number."""
        name, at = change
        return BY_NAME[name].index != "page" or at not in self._untold

    # What the engine did unasked.

    def _shown_now(self, saw: Saw) -> Seen:
        """What the engine shows of its rows and its index with a line, and before it."""
        if not self._header.unasked:
            return self._seen
        rows, keys = saw.get("rows", _EMPTY), saw.get("indexed", _EMPTY)
        return Seen(
            tuple(rows.get(slot, row) for slot, row in enumerate(self._seen.rows)),
            tuple(keys.get(page, key) for page, key in enumerate(self._seen.indexed)),
        )

    def _follow(self, taken: Iterable[Taken]) -> None:
        """Take what the engine did. A key that moves is followed as a merge, and not counted."""
        if not self._header.unasked:
            return
        for one in taken:
            self._move(one.after)
            if type(one.action) in self._header.unasked:
                self._unasked.append(one)

    # The numbers of pages.

    def _move(self, after: State) -> None:
        """The next state, in which every page that was taken is unknown."""
        if self._header.policy == "any":
            kept = kept_in_rows(self._state, after) | kept_in_index(self._state, after)
            kept |= self._state.held & after.held
            self._unknown = in_use(after) - (kept - self._unknown)
        self._state = after

    def _moved_keys(self) -> list[IndexEntry]:
        """The keys that the engine has moved from an idle page to another one.

        An engine that evicts may have several pages of one key. The page is then unknown.
        """
        if Evict not in self._header.unasked or self._header.policy != "any":
            return []
        stays, shown = kept_in_rows(self._before, self._state), self._seen.indexed
        keys = {page: index_entry(one) for page, one in enumerate(self._state.indexed) if one}
        moved = {
            page: entry
            for page, entry in keys.items()
            if page not in stays and entry != shown[page] and entry in shown
        }
        self._unknown |= moved.keys()
        return [*moved.values()]

    def _name_keys(self, moved: Iterable[IndexEntry]) -> None:
        """Name the pages of keys that have moved."""
        for entry in moved:
            page = index.find(self._state.indexed, entry[0], entry[1:])
            assert page is not None
            self._learn(page, self._seen.indexed.index(entry))

    def _name(self, slot: int, seen: tuple[int, ...]) -> Illegal | None:
        """Name the unknown pages of a row as it is shown; returns why that cannot be."""
        sequences, pages = self._state.sequences, self._header.geometry.pages
        sequence = sequences[slot] if slot in range(len(sequences)) else None
        if sequence is None or self._unknown.isdisjoint(sequence.row):
            return None
        if len(seen) != len(sequence.row):
            return wrong_width(slot, seen, len(sequence.row))
        for place, number in enumerate(seen):
            row = self._state.sequences[slot]
            assert row is not None
            page = row.row[place]
            if page not in self._unknown:
                continue
            if number not in range(pages):
                return wrong_page(slot, seen, pages)
            if not self._may_be(number):
                return self._taken_already(slot, seen, number)
            self._learn(page, number)
        return None

    def _taken_already(self, slot: int, seen: tuple[int, ...], page: int) -> Illegal:
        holder = self.holder(page)
        if holder is None:
            return not_free("EVICT", slot, seen, f"page {page} is in the index")
        where = "stands twice in it" if holder == slot else f"is in rows[{holder}]"
        return not_free("SHARE", slot, seen, f"page {page} {where}")

    def _may_be(self, number: int) -> bool:
        """Whether an unknown page may have this number."""
        if number not in range(self._header.geometry.pages):
            return False
        return number in self._unknown or is_free(self._state, number)

    def _learn(self, page: int, number: int) -> None:
        """An unknown page has this number, if it may have it; its own goes to the page there."""
        if not self._may_be(number):
            return
        if page in self._untold:
            self._untold |= {number}
        if page != number:
            self._state = exchanged(self._state, page, number)
        self._unknown -= {number if number in self._unknown else page}


def _touched(before: State, after: State) -> tuple[list[int], list[int]]:
    """The slots and the pages in which two states may differ."""
    pages = {*_unlike(before, after, PER_PAGE)}
    if before.flights != after.flights:
        pages |= before.held | after.held
    return _unlike(before, after, PER_SLOT), sorted(pages)


def _unlike(before: State, after: State, components: Iterable[str]) -> list[int]:
    """The indices at which one of these components differs."""
    found = set[int]()
    for name in components:
        old, new = getattr(before, name), getattr(after, name)
        if old is not new:
            pairs = enumerate(zip(old, new, strict=True))
            found |= {index for index, (one, other) in pairs if one != other}
    return sorted(found)


def _shown(state: State, slots: Iterable[int], pages: Iterable[int]) -> Fields:
    """The entries of these slots and pages, and of the fields without an index."""
    found = {"slot": tuple(slots), "page": tuple(pages), "whole": (0,)}
    shown: Fields = {}
    for field in RECORDED:
        values = field.of(state)
        if field.index != "whole" and not values:
            continue
        entries = (values,) if field.index == "whole" else values
        shown[field.name] = {index: field.to_record(entries[index]) for index in found[field.index]}
    return shown
