"""Packed states of the rung sharing: many states at once, each one row of an array of bytes.

It is `spec.machines.sharing` without contents. All tokens of a used slot are allocated and written,
so that its length and its row describe it completely. The tests show, on every transition of
smaller geometries, that this is the same machine.
"""

import math
from collections.abc import Iterator
from itertools import permutations, product
from typing import Any, Final, NamedTuple

import numpy as np
from attrs import frozen

from spec.vocabulary import Geometry, InvalidInput, Reason

States = np.ndarray[Any, np.dtype[np.uint8]]
"""u8[N, width]: the lengths of the slots, UNUSED for an unused slot; their rows, NO_PAGE past the
end; the counts of the pages."""
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Masks = np.ndarray[Any, np.dtype[np.uint64]]
"""Reasons for a refusal, u64[N]: one bit for each Reason, at its code; 0 is "done"."""

Keys = np.ndarray[Any, np.dtype[np.uint64]]

UNUSED: Final = 255
NO_PAGE: Final = 255
BATCH_FAULTS: Final = {"gap": (1,), "twice": (0, 0), "rewrite": (-1,)}
"""Batches that are not the next positions of a slot: offsets from its length."""


@frozen
class Move:
    """One action. other: tokens to append, or the child; 0 where there is neither."""

    kind: str
    slot: int
    other: int = 0

    def __str__(self) -> str:
        other = f", {self.other}" if self.kind in {"extend", "clone"} else ""
        return f"{self.kind}({self.slot}{other})"


class Expansion(NamedTuple):
    """The result of a move in N states.

    applies bool[N]: whether the move is in the alphabet in a state. reasons u64[N]: why it is
    refused. after u8[N, width]: the successors; where the move is not done, the same states.
    """

    applies: Flags
    reasons: Masks
    after: States


def bit(reason: Reason) -> np.uint64:
    """The mask of one reason."""
    return np.uint64(1 << reason.value)


@frozen
class Allocator:
    """The allocator instance at a geometry. illegal: with the illegal alphabet instead.

    open_pages: states are taken up to renaming of pages and slots; the canonical one has a key.
    """

    geometry: Geometry
    illegal: bool = False
    open_pages: bool = False

    def __attrs_post_init__(self) -> None:
        sizes = self.geometry
        largest = max(sizes.max_len, sizes.pages, sizes.slots * sizes.pages_per_seq)
        if largest >= UNUSED or math.prod(self._radices) > 2**64:
            raise InvalidInput(
                "geometry",
                seen=sizes,
                allowed=f"lengths, pages and counts below {UNUSED}, and a state in 64 bits",
                remedy="Explore a smaller geometry.",
            )

    @property
    def moves(self) -> tuple[Move, ...]:
        """The alphabet, in a fixed order."""
        return tuple(self._illegal_moves() if self.illegal else self._legal_moves())

    def initial(self) -> States:
        """The initial state, u8[1, width]: no slot used, every page free."""
        sizes = self.geometry
        ends = sizes.slots * (1 + sizes.pages_per_seq)
        state = np.zeros((1, ends + sizes.pages), np.uint8)
        state[:, :ends] = UNUSED
        return state

    def parts(self, states: States) -> tuple[States, States, States]:
        """Views: lengths [N, slots], rows [N, slots, pages_per_seq], counts [N, pages]."""
        sizes = self.geometry
        first, ends = sizes.slots, sizes.slots * (1 + sizes.pages_per_seq)
        rows = states[:, first:ends].reshape(len(states), sizes.slots, sizes.pages_per_seq)
        return states[:, :first], rows, states[:, ends:]

    def expand(self, states: States, move: Move) -> Expansion:
        """Take a move in every state."""
        applies, reasons = self._judge(states, move)
        after = states.copy()
        done = applies & (reasons == 0)
        if not self.illegal and done.any():
            after[done] = self._effect(states[done], move)
        return Expansion(applies, reasons, after)

    def keys(self, states: States) -> Keys:
        """A key for each state, equal exactly for equal lengths and rows, which fix the counts.

        With open pages, for canonical states: an entry names one of the pages met so far or the
        next one, and lengths say which entries name none. So more of them fit in 64 bits.
        """
        radices = self._radices
        described = states[:, : len(radices)]
        keys = np.zeros(len(states), np.uint64)
        for column, radix in enumerate(radices):
            digit = described[:, column].astype(np.uint64)
            if self.open_pages and column >= self.geometry.slots:
                digit[described[:, column] == NO_PAGE] = 0
            keys = keys * np.uint64(radix) + np.minimum(digit, np.uint64(radix - 1))
        return keys

    @property
    def _radices(self) -> list[int]:
        """How many values each length and each row entry can have."""
        sizes = self.geometry
        entries = sizes.slots * sizes.pages_per_seq
        named = [min(entry + 1, sizes.pages) for entry in range(entries)]
        several = named if self.open_pages else [sizes.pages + 1] * entries
        return [sizes.max_len + 2] * sizes.slots + several

    def canonical(self, states: States) -> States:
        """The same states up to renaming of slots and pages, each renamed to the least one.

        Its lengths ascend. For each order of the slots of which that is true, pages are renamed in
        the order of their first mention, and the rows decide.
        """
        ascending = np.argsort(self.parts(states)[0], axis=1, kind="stable")
        begun = self._in_order(states, ascending)
        best = self._renamed(begun, tuple(range(self.geometry.slots)))
        lengths = self.parts(begun)[0]
        for order in permutations(range(self.geometry.slots)):
            moved = [slot for slot, other in enumerate(order) if slot != other]
            held = lengths[:, moved]
            same = (lengths[:, order] == lengths).all(axis=1)
            chosen = np.flatnonzero(same & ((held != 0) & (held != UNUSED)).all(axis=1))
            if moved and len(chosen):
                candidate = self._renamed(begun[chosen], order)
                less = _first_is_less(candidate, best[chosen])
                best[chosen[less]] = candidate[less]
        return best

    def named(self, states: States, slots: Any, pages: Any) -> States:
        """Each state with other names. slots [N, slots], pages [N, pages]: the new ones."""
        changed = states.copy()
        lengths, rows, counts = self.parts(states)
        new_lengths, new_rows, new_counts = self.parts(changed)
        known = np.full((len(states), NO_PAGE + 1), NO_PAGE, np.uint8)
        known[:, : self.geometry.pages] = pages
        flat = rows.reshape(len(states), -1)
        renamed = np.take_along_axis(known, flat.astype(np.intp), axis=1).reshape(rows.shape)
        np.put_along_axis(new_lengths, slots, lengths, axis=1)
        np.put_along_axis(new_rows, slots[:, :, None], renamed, axis=1)
        np.put_along_axis(new_counts, pages, counts, axis=1)
        return changed

    def order(self, state: States) -> tuple[int, ...]:
        """An order of the slots by which one state becomes canonical: its slot i is order[i]."""
        wanted = self.canonical(state)
        orders = permutations(range(self.geometry.slots))
        return next(one for one in orders if (self._renamed(state, one) == wanted).all())

    def _in_order(self, states: States, order: Any) -> States:
        """Slot i of each state becomes the slot that order [N, slots] names there."""
        changed = states.copy()
        lengths, rows, _ = self.parts(states)
        new_lengths, new_rows, _ = self.parts(changed)
        new_lengths[:] = np.take_along_axis(lengths, order, axis=1)
        new_rows[:] = np.take_along_axis(rows, order[:, :, None], axis=1)
        return changed

    def _renamed(self, states: States, order: tuple[int, ...]) -> States:
        renamed = np.zeros_like(states)
        lengths, rows, counts = self.parts(states)
        new_lengths, new_rows, new_counts = self.parts(renamed)
        new_lengths[:] = lengths[:, order]
        names = np.full((len(states), self.geometry.pages), NO_PAGE, np.uint8)
        met = np.zeros(len(states), np.uint8)
        for slot, entry in product(range(self.geometry.slots), range(self.geometry.pages_per_seq)):
            page = rows[:, order[slot], entry]
            there = np.flatnonzero(page != NO_PAGE)
            named = page[there]
            new = there[names[there, named] == NO_PAGE]
            names[new, page[new]] = met[new]
            met[new] += 1
            new_rows[:, slot, entry] = NO_PAGE
            new_rows[there, slot, entry] = names[there, named]
        for name in range(self.geometry.pages):
            there = np.flatnonzero(names[:, name] != NO_PAGE)
            new_counts[there, names[there, name]] = counts[there, name]
        return renamed

    def _legal_moves(self) -> Iterator[Move]:
        slots, size = range(self.geometry.slots), self.geometry.page_size
        yield from (Move("reserve", slot) for slot in slots)
        yield from (Move("extend", slot, n) for slot, n in product(slots, range(1, size + 1)))
        yield from (Move("clone", *pair) for pair in permutations(slots, 2))
        yield from (Move("free", slot) for slot in slots)

    def _illegal_moves(self) -> Iterator[Move]:
        ids = range(-1, self.geometry.slots + 1)
        yield from (Move("reserve", slot) for slot in ids)
        yield from (Move("extend", slot, 1) for slot in ids)
        yield from (Move("clone", *pair) for pair in product(ids, ids))
        yield from (Move("free", slot) for slot in ids)
        for fault in BATCH_FAULTS:
            yield from (Move(fault, slot) for slot in range(self.geometry.slots))

    def _judge(self, states: States, move: Move) -> tuple[Flags, Masks]:
        """Whether a move is in the alphabet, and why it is refused."""
        lengths, _, counts = self.parts(states)
        if move.kind in BATCH_FAULTS:
            first = lengths[:, move.slot].astype(int) + BATCH_FAULTS[move.kind][0]
            faulty = used(lengths, move.slot) & (first >= 0)
            return faulty, np.full(len(states), bit(Reason.BATCH_POSITIONS))
        wrong = self._precondition(lengths, move)
        if self.illegal:
            return wrong != 0, wrong
        lacking = np.zeros(len(states), np.uint64)
        full = ~(counts == 0).any(axis=1)
        if move.kind == "extend":
            ends = lengths[:, move.slot].astype(int) + move.other
            long = ends > self.geometry.max_len
            lacking[long] = bit(Reason.TOO_LONG)
            lacking[~long & full & self._begins(ends - move.other, ends)] = bit(Reason.OUT_OF_PAGES)
        if move.kind == "clone":
            partial = lengths[:, move.slot] % self.geometry.page_size != 0
            lacking[full & partial] = bit(Reason.OUT_OF_PAGES)
        return wrong == 0, lacking

    def _precondition(self, lengths: States, move: Move) -> Masks:
        """Why a move is not in the alphabet; a slot out of range hides every other reason."""
        wanted = [(move.slot, move.kind != "reserve")]
        if move.kind == "clone":
            wanted.append((move.other, False))
        found = np.zeros(len(lengths), np.uint64)
        if any(not 0 <= slot < self.geometry.slots for slot, _ in wanted):
            return found | bit(Reason.SLOT_RANGE)
        for slot, in_use in wanted:
            reason = Reason.SLOT_UNUSED if in_use else Reason.SLOT_USED
            found[used(lengths, slot) != in_use] |= bit(reason)
        return found

    def _begins(self, start: Any, end: Any) -> Flags:
        """Whether growing from `start` to `end` positions, at most a page, begins a page."""
        size = self.geometry.page_size
        begun: Flags = -(-end // size) > -(-start // size)
        return begun

    def _effect(self, states: States, move: Move) -> States:
        after = states.copy()
        lengths, rows, counts = self.parts(after)
        lowest = np.argmax(counts == 0, axis=1)
        match move.kind:
            case "reserve":
                lengths[:, move.slot] = 0
            case "extend":
                start = lengths[:, move.slot].astype(int)
                new = np.flatnonzero(self._begins(start, start + move.other))
                entry = -(-start[new] // self.geometry.page_size)
                rows[new, move.slot, entry] = lowest[new]
                counts[new, lowest[new]] += 1
                lengths[:, move.slot] += np.uint8(move.other)
            case "clone":
                full = lengths[:, move.slot].astype(int) // self.geometry.page_size
                partial = np.flatnonzero(lengths[:, move.slot] % self.geometry.page_size)
                rows[:, move.other] = rows[:, move.slot]
                rows[partial, move.other, full[partial]] = lowest[partial]
                lengths[:, move.other] = lengths[:, move.slot]
                _count(counts, rows[:, move.other], 1)
            case "free":
                _count(counts, rows[:, move.slot], -1)
                rows[:, move.slot] = NO_PAGE
                lengths[:, move.slot] = UNUSED
        return after


def _first_is_less(one: States, other: States) -> Flags:
    """bool[N]: whether a state of `one` is before that of `other`, byte by byte."""
    differs = one != other
    at = np.argmax(differs, axis=1)[:, None]
    less = np.take_along_axis(one, at, axis=1) < np.take_along_axis(other, at, axis=1)
    return np.asarray(less[:, 0])


def used(lengths: States, slot: int) -> Flags:
    """bool[N]: whether a slot is in use."""
    inside: Flags = lengths[:, slot] != UNUSED
    return inside


def _count(counts: States, rows: States, change: int) -> None:
    """Add to the counts of the pages that rows [N, pages_per_seq] name."""
    for entry in range(rows.shape[1]):
        named = np.flatnonzero(rows[:, entry] != NO_PAGE)
        counts[named, rows[named, entry]] += np.uint8(change % 256)
