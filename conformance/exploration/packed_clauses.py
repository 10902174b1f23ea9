"""The clauses of the registry for packed states and moves, checked on many states at once.

Each check is written from the statement of its clause, not from the code of `packed_states`: it
counts references again, and reads off the rows whether a refusal is right.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from conformance.exploration.packed_states import (
    NO_PAGE,
    UNUSED,
    Allocator,
    Expansion,
    Flags,
    Move,
    States,
)

Ints = np.ndarray[Any, np.dtype[np.int64]]
Check = Callable[[Allocator, States], Flags]


def mentions(instance: Allocator, states: States) -> States:
    """u8[N, pages]: how many row entries name each page."""
    _, rows, _ = instance.parts(states)
    entries = np.ascontiguousarray(rows.reshape(len(states), -1).T)
    found = np.zeros((instance.geometry.pages, len(states)), np.uint8)
    for page in range(instance.geometry.pages):
        for entry in entries:
            found[page] += entry == page
    return found.T


def _covered(instance: Allocator, states: States) -> Ints:
    """i64[N, slots]: how many pages the length of each slot needs."""
    lengths, _, _ = instance.parts(states)
    wide = np.where(lengths == UNUSED, 0, lengths.astype(np.int64))
    needed: Ints = -(-wide // instance.geometry.page_size)
    return needed


def _cons(instance: Allocator, states: States) -> Flags:
    _, _, counts = instance.parts(states)
    live = mentions(instance, states) > 0
    return np.asarray(((counts == 0) != live).all(axis=1))


def _rc(instance: Allocator, states: States) -> Flags:
    _, _, counts = instance.parts(states)
    return np.asarray((counts == mentions(instance, states)).all(axis=1))


def _uaf(instance: Allocator, states: States) -> Flags:
    _, _, counts = instance.parts(states)
    return np.asarray(~((counts == 0) & (mentions(instance, states) > 0)).any(axis=1))


def _row(instance: Allocator, states: States) -> Flags:
    _, rows, _ = instance.parts(states)
    entry = np.arange(instance.geometry.pages_per_seq)
    valid = entry < _covered(instance, states)[:, :, None]
    shape = (valid == (rows < instance.geometry.pages)) & (valid | (rows == NO_PAGE))
    twice = np.zeros(len(states), np.bool_)
    for page in range(instance.geometry.pages):
        twice |= ((rows == page).sum(axis=2) > 1).any(axis=1)
    return np.asarray(shape.all(axis=(1, 2)) & ~twice)


def _len(instance: Allocator, states: States) -> Flags:
    lengths, _, _ = instance.parts(states)
    return np.asarray(((lengths == UNUSED) | (lengths <= instance.geometry.max_len)).all(axis=1))


def _share(instance: Allocator, states: States) -> Flags:
    lengths, rows, _ = instance.parts(states)
    ends = (np.arange(instance.geometry.pages_per_seq) + 1) * instance.geometry.page_size
    partial = (rows != NO_PAGE) & (ends > lengths[:, :, None])
    shared = mentions(instance, states) > 1
    wrong = np.zeros(len(states), np.bool_)
    for page in range(instance.geometry.pages):
        wrong |= shared[:, page] & (partial & (rows == page)).any(axis=(1, 2))
    return ~wrong


def _freed(instance: Allocator, states: States) -> Flags:
    """Freeing every slot in use, one after another, returns every page."""
    for slot in range(instance.geometry.slots):
        states = instance.expand(states, Move("free", slot)).after
    return np.asarray((states == instance.initial()).all(axis=1))


STATE_CHECKS: Final[dict[str, Check]] = {
    "CONS": _cons,
    "RC": _rc,
    "UAF": _uaf,
    "ROW": _row,
    "LEN": _len,
    "SHARE": _share,
    "FREED": _freed,
}
"""A check for each clause, which gives bool[N].

FREED: freeing every slot gives the initial state.
"""


MOVE_CHECKS: Final = ("ATOMIC", "sharing to pages", "FRAME", "WX", "RC")
"""The checks of `move_violations`.

RC is checked on the successor: a known state that is reached again, with other counts, is not
expanded again. So is ROW where pages are open: there a key does not say which entries name no page.
"""


def state_violations(instance: Allocator, states: States) -> Iterator[tuple[str, int]]:
    """The clauses that states violate: (clause, index of the first such state)."""
    for clause, check in STATE_CHECKS.items():
        holds = check(instance, states)
        if not holds.all():
            yield clause, int(np.argmin(holds))


def move_violations(
    instance: Allocator, states: States, move: Move, found: Expansion
) -> Iterator[tuple[str, int]]:
    """The clauses that a move violates: (clause, index of the first such state)."""
    done = found.applies & (found.reasons == 0)
    checks = {"ATOMIC": _refused_exactly(instance, states, move, found)}
    if done.any():  # a slot that is out of range has no row to look at
        checks["sharing to pages"] = _refines(instance, states, move, found.after) | ~done
        checks["FRAME"] = _frame(instance, states, move, found.after) | ~done
        checks["WX"] = _alone(instance, move, found.after) | ~done
        checks["RC"] = _rc(instance, found.after) | ~done
        if instance.open_pages:
            checks["ROW"] = _row(instance, found.after) | ~done
    for clause, holds in checks.items():
        wrong = found.applies & ~holds
        if wrong.any():
            yield clause, int(np.argmax(wrong))


def _refused_exactly(instance: Allocator, states: States, move: Move, found: Expansion) -> Flags:
    """Refused, and unchanged, if and only if no choice of pages makes a legal successor."""
    same = (found.after == states).all(axis=1)
    refused = found.reasons != 0
    return np.asarray((refused == ~_possible(instance, states, move)) & (same | ~refused))


def _possible(instance: Allocator, states: States, move: Move) -> Flags:
    """Whether some choice of pages that no row names makes a legal successor."""
    if instance.illegal:
        return np.zeros(len(states), np.bool_)
    lengths, _, _ = instance.parts(states)
    free = (mentions(instance, states) == 0).sum(axis=1)
    length = np.where(lengths == UNUSED, 0, lengths.astype(np.int64))
    size, most = instance.geometry.page_size, instance.geometry.max_len
    if move.kind == "extend":
        end = length[:, move.slot] + move.other
        wanted = -(-end // size) - _covered(instance, states)[:, move.slot]
        return np.asarray((end <= most) & (wanted <= free))
    if move.kind == "clone":
        return np.asarray((length[:, move.slot] % size != 0) <= free)
    return np.ones(len(states), np.bool_)


def _refines(instance: Allocator, states: States, move: Move, after: States) -> Flags:
    """The refinement equation of the edge to pages, where each sequence has a private copy.

    There a state without contents consists of lengths; a clone has the length of its parent.
    """
    lengths, expected = instance.parts(states)[0], instance.parts(states)[0].copy()
    match move.kind:
        case "reserve":
            expected[:, move.slot] = 0
        case "extend":
            expected[:, move.slot] = lengths[:, move.slot] + np.uint8(move.other)
        case "clone":
            expected[:, move.other] = lengths[:, move.slot]
        case "free":
            expected[:, move.slot] = UNUSED
    return np.asarray((instance.parts(after)[0] == expected).all(axis=1))


def _frame(instance: Allocator, states: States, move: Move, after: States) -> Flags:
    """The rows of the other slots are unchanged."""
    moved = move.other if move.kind == "clone" else move.slot
    others = [slot for slot in range(instance.geometry.slots) if slot != moved]
    before_rows, after_rows = instance.parts(states)[1], instance.parts(after)[1]
    return np.asarray((before_rows[:, others] == after_rows[:, others]).all(axis=(1, 2)))


def _alone(instance: Allocator, move: Move, after: States) -> Flags:
    """The pages that an extension writes have a count of 1."""
    if move.kind != "extend":
        return np.ones(len(after), np.bool_)
    lengths, rows, counts = instance.parts(after)
    size, index = instance.geometry.page_size, np.arange(len(after))
    ok = np.ones(len(after), np.bool_)
    for back in range(move.other):
        position = np.maximum(lengths[:, move.slot].astype(np.int64) - 1 - back, 0)
        entry = np.minimum(position // size, instance.geometry.pages_per_seq - 1)
        page = np.minimum(rows[index, move.slot, entry], instance.geometry.pages - 1)
        ok &= counts[index, page] == 1
    return ok
