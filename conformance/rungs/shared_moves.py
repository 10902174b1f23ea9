"""Moves that several alphabets share: batches of the next cells, clones, releases and resets."""

from collections.abc import Callable, Iterator
from itertools import combinations, permutations, product

from conformance.protocol import Action
from conformance.rungs.record import Move
from spec.machines import actions as act
from spec.state import State
from spec.table import Sequence
from spec.vocabulary import Geometry, Params, ResetMode


def fixed(action: Action, name: str) -> Move:
    """The same action in every state."""
    return Move(name, lambda _state: action)


def allocating(name: str, *places: tuple[int, int]) -> Move:
    """Allocate cells. places: (slot, offset from the first position that is not allocated)."""
    return Move(name, lambda state: act.Allocate(_batch(state, places, write=False)))


def writing(name: str, *places: tuple[int, int]) -> Move:
    """Write cells. places: (slot, offset from the first position that is not written)."""
    return Move(name, lambda state: act.Write(_batch(state, places, write=True)))


def past_committed(kind: type[act.Commit] | type[act.Truncate], slot: int, more: int) -> Move:
    """Commit or truncate at this many cells past the committed length."""

    def action(state: State) -> Action:
        committed = state.committed[slot] if slot < len(state.committed) else 0
        return kind(slot, max(0, committed + more))

    return Move(f"{kind.__name__.lower()}({slot}, {more:+})", action)


def _batch(
    state: State, places: tuple[tuple[int, int], ...], *, write: bool
) -> tuple[tuple[int, int], ...]:
    """The positions at these offsets; for an unused slot they count from 0."""

    def start(slot: int) -> int:
        sequence = state.sequences[slot] or Sequence()
        return sequence.written if write else sequence.allocated

    return tuple((slot, start(slot) + offset) for slot, offset in places)


def batches(slots: range, page_size: int) -> Iterator[Move]:
    """The next cells of one slot or of two, and batches with illegal positions."""
    for slot, count in product(slots, range(1, page_size + 1)):
        places = tuple((slot, offset) for offset in range(count))
        yield allocating(f"allocate({slot}, {count})", *places)
        yield writing(f"write({slot}, {count})", *places)
    for low, high in combinations(slots, 2):
        yield allocating(f"allocate({high} and {low})", (high, 0), (low, 0))
    for slot in slots:
        yield allocating(f"gap({slot})", (slot, 1))
        yield allocating(f"twice({slot})", (slot, 0), (slot, 0))
        yield allocating(f"rewrite({slot})", (slot, -1))


def never_legal(geometry: Geometry) -> Iterator[Move]:
    """Batches with a slot past the last one, with a fault in what is written, and too wide ones."""
    slots = range(geometry.slots)
    wide = tuple((0, position) for position in range(geometry.max_len + 2 * geometry.slots + 1))
    for kind in (act.Allocate, act.Write):
        name = kind.__name__.lower()
        yield fixed(kind(((geometry.slots, 0),)), f"{name}(none)")
        yield fixed(kind(wide), f"{name}(wide)")
    for slot in slots:
        yield writing(f"write_gap({slot})", (slot, 1))
        yield writing(f"write_twice({slot})", (slot, 0), (slot, 0))
        yield writing(f"rewrite_written({slot})", (slot, -1))


def clone_to_any(parent: int) -> Move:
    """A clone of this parent to any free slot. Its choice is the number of the lowest free one."""

    def action(state: State) -> act.Clone:
        free = state.unused_slots
        return act.Clone(parent, None, free[0] if free else parent)

    return Move(f"clone({parent})", action)


def slots_of(
    geometry: Geometry, free: Callable[[int], int], taken: Callable[[int], int]
) -> Iterator[Move]:
    """Releases, clones and resets; a slot past the last one is never legal.

    free: from the child's slot to its choice. taken: from the parent's slot to a choice that may be
    taken already.
    """
    ids = range(geometry.slots + 1)
    for slot in ids:
        yield fixed(act.Free(slot), f"free({slot})")
    for parent, child in product(ids, ids):
        yield fixed(act.Clone(parent, child, free(child)), f"clone({parent}, {child})")
    for parent, child in permutations(range(geometry.slots), 2):
        again = act.Clone(parent, child, taken(parent))
        yield fixed(again, f"clone_again({parent}, {child})")
    for mode in ResetMode:
        yield fixed(act.Reset(mode), f"reset({mode.value})")


def assign_another(slot: int, choice: int) -> Move:
    """Assign another prompt to a slot that has one, under a choice that is not taken."""

    def action(state: State) -> act.Assign | None:
        there = state.details[slot] is not None
        return act.Assign(slot, (1,), Params(max_new=1), 1, choice) if there else None

    return Move(f"assign_another({slot})", action)


def assign_again(slot: int, other: int) -> Move:
    """Assign the choice of another slot to this slot; only where that slot has a prompt."""

    def action(state: State) -> act.Assign | None:
        there = state.details[other] is not None
        return act.Assign(slot, (1,), Params(max_new=1), 1, other) if there else None

    return Move(f"assign_again({slot}, {other})", action)
