"""The fast table: the rows, lengths and counts of a table, changed in place by each action.

It is the machine of the specification on the actions of a table, without contents, so that a
million events are judged in seconds. The tests hold it to the specification on every transition of
small tables and on random histories. An engine that promises no policy may take any free page: the
page is read from the row that the engine shows. Until a row shows it, a negative number stands for
the page.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from attrs import define

from conformance.protocol import Action
from conformance.recordings.answers import (
    NOTHING,
    Change,
    Done,
    no_such,
    not_free,
    wrong_page,
    wrong_width,
)
from conformance.recordings.format import Header, Line, Saw
from conformance.recordings.free_list import Lowest
from conformance.rungs.coverage import Coverage
from conformance.rungs.pages import (
    FULL,
    PAGE_REUSED,
    SHORT,
    SHORT_AHEAD,
    SINGLE,
    SLOT_REUSED,
    batch_corners,
    free_corners,
)
from conformance.rungs.sharing import (
    LAZY_COPIES,
    LAZY_COPY,
    LAZY_KEPT,
    SHARED,
    clone_corner,
    edge_corners,
)
from spec import ladder
from spec.fields import BY_NAME, RECORDED, entries
from spec.machines import actions as act
from spec.table import Batch, by_slot
from spec.vocabulary import Geometry, Reason, default_limits

ACTIONS: Final = frozenset(
    {
        act.Reserve,
        act.Assign,
        act.Allocate,
        act.Write,
        act.Clone,
        act.Free,
        act.FreeFinished,
        act.Reset,
        act.TakeOutputs,
    }
)
"""The actions of a table. None of them finishes a sequence, so nothing is finished or output."""
APPENDING: Final = ACTIONS | {act.Append}
"""Those of a table whose caller appends the tokens."""

NONE: Final[frozenset[Reason]] = frozenset()


@define
class Held:
    """A used slot. row: its pages. key: (request, choice), None while there is no prompt."""

    row: list[int]
    tokens: tuple[int, ...] = ()
    allocated: int = 0
    written: int = 0
    key: tuple[int, int] | None = None


class Ledger:
    """A table and its reference counts. See `conformance.recordings.judge.Machine`.

    held: the used slots. counts: of the pages that are named. reached: the corner states that the
    last action reached.
    """

    def __init__(self, header: Header) -> None:
        self._geometry, self._limits = header.geometry, header.limits
        self._longest = header.geometry.max_len
        self._lowest = header.policy == "lowest"
        self._capacity = header.capacity
        self.held: dict[int, Held] = {}
        self.counts: dict[int, int] = {}
        self._keys: set[tuple[int, int]] = set()
        self._seen_later: dict[int, int] = {}
        self._unseen = 0
        self._slots, self._pages = Lowest(self.held), Lowest(self.counts)
        self.reached: list[str] = []
        self._released: set[int] = set()
        self._taken = 0
        self._lengths: dict[int, tuple[int, int]] = {}
        self._changes: list[Change] = []
        self._grouped: dict[int, list[int]] = {}

    # Guards: the reasons of the rungs up to lifecycle, in the same stages.

    def reasons(self, action: Action) -> frozenset[Reason]:
        """The reasons for which the action is refused; empty if it is legal."""
        self.reached = []
        match action:
            case act.Allocate(batch):
                return self._cells(batch) or self._allocate_room()
            case act.Write(batch):
                return self._cells(batch, write=True) or self._write_room()
            case act.Reserve(None):
                return self._some_slot()
            case act.Reserve(int(slot)):
                return self._unused(slot)
            case act.Free(int(slot)):
                return self._used(slot)
            case act.Assign(slot, _, params):
                stops, limits = params.stops, self._limits
                longest = max(map(len, stops), default=0)
                many = len(stops) > limits.stops or longest > limits.stop_len
                found = self._used(slot) or self._assignable(action)
                found = found | {Reason.STOPS} if many else found
                return found or self._reservable(action)
            case act.Append(int(slot), tokens):
                return self._used(slot) or self._appendable(self.held[slot], tokens)
            case act.Clone():
                return self._clonable(action)
            case _:
                return NONE

    def _in_range(self, slot: int) -> bool:
        return 0 <= slot < self._geometry.slots

    def _used(self, slot: int) -> frozenset[Reason]:
        if slot in self.held:
            return NONE
        return frozenset([Reason.SLOT_UNUSED if self._in_range(slot) else Reason.SLOT_RANGE])

    def _unused(self, slot: int) -> frozenset[Reason]:
        if not self._in_range(slot):
            return frozenset([Reason.SLOT_RANGE])
        return frozenset([Reason.SLOT_USED]) if slot in self.held else NONE

    def _some_slot(self) -> frozenset[Reason]:
        full = len(self.held) == self._geometry.slots
        return frozenset([Reason.NO_FREE_SLOT]) if full else NONE

    def _assignable(self, action: act.Assign) -> frozenset[Reason]:
        found = set()
        if self.held[action.slot].key is not None:
            found.add(Reason.SLOT_ASSIGNED)
        if len(action.prompt) + action.params.max_new > self._geometry.max_len:
            found.add(Reason.TOO_LONG)
        if (action.request, action.choice) in self._keys:
            found.add(Reason.CHOICE_TAKEN)
        return frozenset(found)

    def _reservable(self, action: act.Assign) -> frozenset[Reason]:
        wanted = len(self._reserved(action))
        if wanted <= self.free:
            return NONE
        self._short(wanted, ahead=wanted)
        return frozenset([Reason.OUT_OF_PAGES])

    def _reserved(self, action: act.Assign) -> range:
        """The places of the pages that a row gets with its prompt."""
        held, geometry = self.held[action.slot], self._geometry
        cells = self._capacity.reserved_cells(len(action.prompt), action.params.max_new)
        return range(len(held.row), self._capacity.row_pages(geometry, held.allocated, cells))

    def _appendable(self, held: Held, tokens: tuple[int, ...]) -> frozenset[Reason]:
        if held.key is None:
            return frozenset([Reason.SLOT_EMPTY])
        too_long = len(held.tokens) + len(tokens) > self._longest
        return frozenset([Reason.TOO_LONG]) if too_long else NONE

    def _clonable(self, action: act.Clone) -> frozenset[Reason]:
        ids = (action.parent,) if action.child is None else (action.parent, action.child)
        if not all(map(self._in_range, ids)):
            return frozenset([Reason.SLOT_RANGE])
        child = self._some_slot() if action.child is None else self._unused(action.child)
        slots = self._used(action.parent) | child
        if slots:
            return slots
        parent, found = self.held[action.parent], set()
        if parent.allocated != parent.written:
            found.add(Reason.UNWRITTEN)
        elif (wanted := len(parent.row) - self._shared(parent)) > self.free:
            self._short(wanted, ahead=len(parent.row) - self._geometry.pages_for(parent.written))
            found.add(Reason.OUT_OF_PAGES)
        if parent.key is None:
            found.add(Reason.SLOT_EMPTY)
        elif (parent.key[0], action.choice) in self._keys:
            found.add(Reason.CHOICE_TAKEN)
        return frozenset(found)

    def _cells(self, batch: Batch, *, write: bool = False) -> frozenset[Reason]:
        if len(batch) > self._limits.prefill_tokens:
            return frozenset([Reason.BATCH_WIDTH])
        grouped = self._grouped = by_slot(batch)
        if not grouped.keys() <= self.held.keys():
            ranged = all(map(self._in_range, grouped))
            return frozenset([Reason.SLOT_UNUSED if ranged else Reason.SLOT_RANGE])
        found = NONE
        for slot, positions in grouped.items():
            held = self.held[slot]
            if write and held.key is None:
                return frozenset([Reason.SLOT_EMPTY])
            start = held.written if write else held.allocated
            if positions != [*range(start, start + len(positions))]:
                found = frozenset([Reason.BATCH_POSITIONS])
        return found

    def _allocate_room(self) -> frozenset[Reason]:
        if any(positions[-1] >= self._longest for positions in self._grouped.values()):
            return frozenset([Reason.TOO_LONG])
        copies, each, ahead = self._copying(), list[int](), 0
        for slot, positions in self._grouped.items():
            length, row = positions[-1] + 1, len(self.held[slot].row)
            each.append(max(0, self._width(length) - row) + (slot in copies))
            ahead += max(0, self._width(length) - max(row, self._geometry.pages_for(length)))
        self.reached += edge_corners(each, len(copies), self.free)
        if sum(each) <= self.free:
            return NONE
        self._short(sum(each), ahead=ahead)
        return frozenset([Reason.OUT_OF_PAGES])

    def _short(self, wanted: int, *, ahead: int) -> None:
        """The corner states of a refusal for lack of pages. ahead: how many are for later."""
        if wanted == self.free + 1:
            self.reached.append(SHORT)
            self.reached += [SHORT_AHEAD] * (ahead > 0)

    def _width(self, allocated: int) -> int:
        """The pages of a row with this many allocated cells; a reserved one may have more."""
        return self._capacity.row_pages(self._geometry, allocated, 0)

    def _shared(self, parent: Held) -> int:
        """The pages that a clone shares with its parent."""
        return self._capacity.shared_pages(self._geometry, parent.written)

    def _copying(self) -> dict[int, int]:
        """For each slot of the batch that copies the page in which it appends, its place."""
        if self._capacity.copy == "eager":
            return {}
        found, left = dict[int, int](), dict[int, int]()
        for slot in self._grouped:
            held = self.held[slot]
            index, offset = divmod(held.allocated, self._geometry.page_size)
            if not offset:
                continue
            page = self.page(held.row[index])
            owners = left.get(page, self.counts[page])
            if owners > 1:
                found[slot], left[page] = index, owners - 1
        return found

    def _lazy(self, copies: Mapping[int, int]) -> list[str]:
        """The corner states of a batch in which slots copy the page in which they append."""
        size, held = self._geometry.page_size, self.held
        left = {self.page(held[slot].row[index]) for slot, index in copies.items()}
        keeps = any(
            slot not in copies
            and held[slot].allocated % size
            and self.page(held[slot].row[held[slot].allocated // size]) in left
            for slot in self._grouped
        )
        several = len(copies) > 1
        return [LAZY_COPY, *[LAZY_COPIES] * several, *[LAZY_KEPT] * keeps]

    def _write_room(self) -> frozenset[Reason]:
        found = set()
        for slot, positions in self._grouped.items():
            held = self.held[slot]
            if positions[-1] >= held.allocated:
                found.add(Reason.BATCH_POSITIONS)
            if positions[-1] >= len(held.tokens):
                found.add(Reason.BATCH_UNKNOWN)
        return frozenset(found)

    # Effects: those of `spec.machines.lifecycle`.

    def do(self, line: Line) -> Done:
        """Take the action of the last call of `reasons`, which found it legal.

        Raises Illegal for pages that are not to be had.
        """
        if line.refused is not None:
            return NOTHING
        self._changes = []
        result = self._effect(line.step, line.saw)
        if self._geometry.page_size == 1:
            self.reached.append(SINGLE)
        return Done(self._changes, () if result is None else (result,))

    def _effect(self, action: object, saw: Saw) -> object:  # noqa: C901 - a table
        match action:
            case act.Allocate(batch):
                self.reached += batch_corners(batch, self._grouped)
                return self._allocate(saw)
            case act.Write(batch):
                self.reached += batch_corners(batch, self._grouped)
                self._write()
            case act.Reserve(int(slot)):
                return self._reserve(slot)
            case act.Reserve():
                return self._reserve(self._slots.first())
            case act.Free(int(slot)):
                self.reached += self._freeing(self.held[slot])
                self._release(slot)
            case act.Assign():
                self._assign(action, saw)
            case act.Append(int(slot), tokens):
                self.held[slot].tokens += tokens
                self._changes += [("tokens", slot)] if tokens else []
            case act.Clone():
                return self._clone(action, saw)
            case act.Reset():
                for slot in list(self.held):
                    self._release(slot)
            case act.TakeOutputs():
                return []
            case _:
                pass
        return None

    def _reserve(self, slot: int) -> int:
        self.held[slot] = Held([])
        self._changes.append(("used", slot))
        return slot

    def _assign(self, action: act.Assign, saw: Saw) -> None:
        slot, held = action.slot, self.held[action.slot]
        held.tokens, held.key = action.prompt, (action.request, action.choice)
        self._keys.add(held.key)
        self._changes.append(("tokens", slot))
        places = [*self._reserved(action)]
        if places:
            self._extend(slot, held.row, places, saw)
            self._changes.append(("rows", slot))

    def _write(self) -> None:
        for slot, positions in self._grouped.items():
            held = self.held[slot]
            held.written += len(positions)
            self._changes += (("written", slot), ("committed", slot))
            self._longer(slot, held)

    def _longer(self, slot: int, held: Held) -> None:
        """Whether the slot had sequences that were longer, shorter, and longer again."""
        before = self._lengths.get(slot)
        if before is not None and before[0] > before[1] < held.written:
            self.reached.append(SLOT_REUSED)
            del self._lengths[slot]

    def _freeing(self, held: Held) -> list[str]:
        shared = any(self.counts[self.page(page)] > 1 for page in held.row)
        ahead = len(held.row) > self._geometry.pages_for(held.allocated)
        return free_corners(held.written, self._geometry.page_size, shared=shared, ahead=ahead)

    def _allocate(self, saw: Saw) -> list[int] | None:
        size, destinations = self._geometry.page_size, list[int]()
        copies = self._copying()
        if copies:
            self.reached += self._lazy(copies)
        for slot, positions in self._grouped.items():
            held = self.held[slot]
            new = range(len(held.row), self._width(positions[-1] + 1))
            places = [copies[slot], *new] if slot in copies else [*new]
            if places:
                self._extend(slot, held.row, places, saw)
                self._changes.append(("rows", slot))
            held.allocated += len(positions)
            self._changes.append(("allocated", slot))
            row, first, end = self.known(held.row), positions[0], positions[-1] + 1
            for index in range(first // size, len(row)):
                to_page = (row[index] - index) * size
                last = min(end, (index + 1) * size)
                destinations += range(to_page + max(first, index * size), to_page + last)
        return destinations if self._lowest or min(destinations, default=0) >= 0 else None

    def _clone(self, action: act.Clone, saw: Saw) -> int:
        parent = self.held[action.parent]
        child = self._slots.first() if action.child is None else action.child
        row = parent.row[: self._shared(parent)]
        self._reserve(child)
        for page in row:
            self._hold(self.page(page))
        self.reached.append(clone_corner(parent.written, self._geometry.page_size))
        self.reached += [SHARED] * bool(row)
        key = (parent.key or (0, 0))[0], action.choice
        self._extend(child, row, [*range(len(row), len(parent.row))], saw)
        held = Held(row, parent.tokens, parent.allocated, parent.written, key)
        self.held[child] = held
        self._keys.add(key)
        self._longer(child, held)
        self._changes += [(name, child) for name in _filled(held)]
        return child

    def _release(self, slot: int) -> None:
        held = self.held.pop(slot)
        self._slots.returned(slot)
        if held.written:
            self._lengths[slot] = self._lengths.get(slot, (0, 0))[1], held.written
        if held.key is not None:
            self._keys.discard(held.key)
        for name in ("used", *_filled(held)):
            self._changes.append((name, slot))
        for page in map(self.page, held.row):
            self._drop(page)
        if held.row and self._seen_later:
            self._forget(held.row)

    def _drop(self, page: int) -> None:
        self.counts[page] -= 1
        self._changes += [("counts", page)] * (page >= 0)  # nobody can show an unknown page
        if not self.counts[page]:
            del self.counts[page]
            self._pages.returned(page)
            if page >= 0:
                self._released.add(page)
            self._changes.append(("free", 0))

    def _extend(self, slot: int, row: list[int], places: list[int], saw: Saw) -> None:
        """Put new pages in these places of a row, of which the last may lie past its end."""
        for place, page in zip(places, self._take(slot, row, places, saw), strict=True):
            if place < len(row):
                self._drop(self.page(row[place]))
                row[place] = page
            else:
                row.append(page)

    def _take(self, slot: int, row: list[int], places: list[int], saw: Saw) -> list[int]:
        """The new pages of a row: by the policy, as the engine shows them, or negative numbers."""
        if not places:
            return []
        self._changes.append(("free", 0))
        taken = [self._hold(page) for page in self._new(slot, row, places, saw)]
        if not self.free:
            self.reached.append(FULL)
        self._taken += len(places)
        again = not self._released.isdisjoint(taken)
        if again or (min(taken) < 0 and self._taken > self._geometry.pages):
            self._reused()
        return taken

    def _new(self, slot: int, row: list[int], places: list[int], saw: Saw) -> Iterator[int]:
        seen = saw.get("rows", _EMPTY).get(slot)
        if self._lowest or seen is None:
            yield from (self._next() for _ in places)
            return
        width = max(len(row), places[-1] + 1)
        if len(seen) != width:
            raise wrong_width(slot, seen, width)
        for page in (seen[place] for place in places):
            if not 0 <= page < self._geometry.pages:
                raise wrong_page(slot, seen, self._geometry.pages)
            if page in self.counts:
                holder = self.holder(page)
                where = "stands twice in it" if holder is None else f"is in rows[{holder}]"
                raise not_free("SHARE", slot, seen, f"page {page} {where}")
            yield page

    def _reused(self) -> None:
        """A page is taken that was taken before. Once an action."""
        if PAGE_REUSED not in self.reached:
            self.reached.append(PAGE_REUSED)

    def _next(self) -> int:
        if self._lowest:
            return self._pages.first()
        self._unseen -= 1
        return self._unseen

    def _hold(self, page: int) -> int:
        self.counts[page] = self.counts.get(page, 0) + 1
        self._changes += [("counts", page)] * (page >= 0)
        return page

    # What the ledger says.

    def count(self, coverage: Coverage, action: Action, reasons: frozenset[Reason]) -> None:
        """Count the last action. reasons: why it was refused; empty if it was done."""
        coverage.count(type(action), reasons, self.reached)

    @property
    def size(self) -> int:
        """The number of entries kept. It grows with what is in use, and not with the recording."""
        named = len(self.held) + len(self.counts) + len(self._keys) + len(self._seen_later)
        return named + len(self._slots) + len(self._pages) + len(self._released)

    @property
    def free(self) -> int:
        """The number of pages that no row names."""
        return self._geometry.pages - len(self.counts)

    def page(self, page: int) -> int:
        """The page for a number of a row: itself, or the page that was shown for it later."""
        return self._seen_later.get(page, page)

    def known(self, row: list[int]) -> list[int]:
        """A row with the pages that were shown later."""
        return [self.page(page) for page in row] if self._seen_later else row

    def holder(self, page: int) -> int | None:
        """A slot whose row names the page; None if no row does."""
        holders = (slot for slot, held in self.held.items() if page in self.known(held.row))
        return next(holders, None)

    def _has(self, field: str, index: int) -> bool:
        """Whether a field has an entry with this index."""
        match BY_NAME[field].index:
            case "slot":
                return self._in_range(index)
            case "page":
                return 0 <= index < self._geometry.pages
            case _:
                return index == 0

    def expected(self, field: str, index: int) -> object:
        """The expected value of an entry, with negative numbers for pages that no row has shown."""
        if not self._has(field, index):
            return no_such(field)
        found = _EXPECTED.get(field)
        return _UNTOUCHED[field] if found is None else found(self, index)

    def agrees(self, field: str, index: int, seen: object) -> bool:
        """Whether an observed value is right. A page that is shown for the first time is kept."""
        expected = self.expected(field, index)
        if seen == expected:
            return True
        if field == "rows" and isinstance(seen, tuple) and isinstance(expected, tuple):
            return len(seen) == len(expected) and all(map(self._learn, expected, seen))
        if field != "counts" or expected != 0 or not 0 <= index < self._geometry.pages:
            return False
        return any(page < 0 and seen == count for page, count in self.counts.items())

    def _learn(self, known: int, seen: int) -> bool:
        """Whether a row entry can be this page: the same one, or a free one not shown before."""
        if known == seen:
            return True
        if known >= 0 or seen in self.counts or not 0 <= seen < self._geometry.pages:
            return False
        self._seen_later[known] = seen
        if seen in self._released:
            self._reused()
        self.counts[seen] = self.counts.pop(known)
        return True

    def _forget(self, row: Iterable[int]) -> None:
        """Drop the numbers that no row has any more, so that memory does not grow."""
        for page in row:
            if page < 0 and self.page(page) not in self.counts:
                self._seen_later.pop(page, None)


def _filled(held: Held) -> list[str]:
    """The fields in which a slot differs from an unused one."""
    names = [name for name in ("rows", "tokens", "allocated", "written") if _part(held, name)]
    return [*names, "committed"] if held.written else names


def _part(held: Held, name: str) -> Any:
    return held.row if name == "rows" else getattr(held, name)


def _row(ledger: Ledger, slot: int) -> tuple[int, ...]:
    held = ledger.held.get(slot)
    return tuple(ledger.known(held.row)) if held else ()


_EXPECTED: Final[Mapping[str, Callable[[Ledger, int], object]]] = {
    "used": lambda ledger, slot: slot in ledger.held,
    "rows": _row,
    "counts": lambda ledger, page: ledger.counts.get(page, 0),
    "free": lambda ledger, _: ledger.free,
    "tokens": lambda ledger, slot: ledger.held[slot].tokens if slot in ledger.held else (),
    "allocated": lambda ledger, slot: ledger.held[slot].allocated if slot in ledger.held else 0,
    "written": lambda ledger, slot: ledger.held[slot].written if slot in ledger.held else 0,
    "committed": lambda ledger, slot: ledger.held[slot].written if slot in ledger.held else 0,
}
"""The expected value of each field that an action of a table changes."""


def _untouched() -> dict[str, object]:
    """The expected entry of each other field, for any index: that of a new state."""
    smallest = Geometry(pages=1, page_size=1, slots=1, pages_per_seq=1)
    new = ladder.whole().initial(smallest, default_limits(smallest))
    return {
        field.name: field.to_record(entries(field, field.of(new))[0])
        for field in RECORDED
        if field.name not in _EXPECTED
    }


_UNTOUCHED: Final = _untouched()

_EMPTY: Final[Mapping[int, Any]] = {}
