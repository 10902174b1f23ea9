"""Rung 2: a pool of fixed-size pages and a table row per sequence.

Seen from cache: reading through the table gives exactly the contiguous cache. Which free page is
taken is the caller's choice; without one it is the lowest. Source: seed 000, sections 2 and 5.
"""

from collections.abc import Iterator
from typing import TypeGuard

from attrs import evolve, frozen

from spec import model
from spec.cells import Cells, blank, kill, store
from spec.machines import cache
from spec.machines.actions import Allocate, Append, Free, Name, Reserve, Sample, Write
from spec.table import Sequence, Sequences, by_slot, destination, read
from spec.vocabulary import Geometry, InvalidInput, Reason, Refusal, refused
from spec.vocabulary.rules import a

Action = Reserve | Append | Allocate | Write | Sample | Free
Pages = tuple[int, ...]


@frozen
class State:
    """The table and the pool."""

    geometry: Geometry
    sequences: Sequences
    cells: Cells


def initial(geometry: Geometry) -> State:
    """No sequence, every cell dead."""
    a(Geometry).require("geometry", geometry)
    return State(geometry, (None,) * geometry.slots, blank(geometry))


def refusals(state: State, action: Action) -> frozenset[Refusal]:
    """Why the action cannot be done; empty exactly if it can."""
    match action:
        case Reserve(slot):
            return frozenset(used_refusals(state, slot))
        case Allocate(batch):
            return frozenset(_batch_refusals(state, by_slot(batch), allocate=True))
        case Write(batch):
            return frozenset(_batch_refusals(state, by_slot(batch), allocate=False))
        case Append(slot, tokens):
            return frozenset(_append_refusals(state, slot, len(tokens)))
        case Sample(slot):
            return frozenset(_sample_refusals(state, slot))
        case Free(slot):
            return frozenset(unused_refusals(state, slot))


def step(state: State, action: Action, choice: Pages | None = None) -> State:
    """Apply an action, or raise Refused. `choice`: the pages to take, slots ascending."""
    found = refusals(state, action)
    if found:
        raise refused(found)
    return effect(state, action, choice)


def effect(state: State, action: Action, choice: Pages | None = None) -> State:
    """What an action does whose guards have passed: those of a rung include those below it."""
    match action:
        case Reserve(slot):
            return with_sequence(state, reserved_slot(state, slot), Sequence())
        case Append(int(slot), tokens):
            sequence = used(state, slot)
            return with_sequence(state, slot, evolve(sequence, tokens=sequence.tokens + tokens))
        case Allocate(batch):
            wanted = pages_wanted(state, by_slot(batch))
            check_choice(state, wanted, choice)
            return _allocate(state, by_slot(batch), choice or free_pages(state)[:wanted])
        case Write(batch):
            return _write(state, by_slot(batch))
        case Sample(int(slot), draw):
            sequence = used(state, slot)
            tags = read(state.cells, sequence)
            token = model.attend(sequence.tokens[-1], tags, draw)
            return with_sequence(state, slot, evolve(sequence, tokens=(*sequence.tokens, token)))
        case Free(int(slot)):
            row = used(state, slot).row
            return evolve(with_sequence(state, slot, None), cells=kill(state.cells, row))
    raise TypeError(action)


def abstract(state: State) -> cache.State:
    """Read every sequence through its row."""
    return cache.State(
        tuple(
            None if sequence is None else cache.Cached(sequence.tokens, read(state.cells, sequence))
            for sequence in state.sequences
        )
    )


def lower(state: State, action: Action) -> tuple[cache.Action, ...]:
    """Allocation is invisible from below; everything else is itself."""
    match action:
        case Allocate():
            return ()
        case Reserve(slot):
            return (Reserve(reserved_slot(state, slot)),)
        case _:
            return (action,)


def used(state: State, slot: int) -> Sequence:
    """The sequence in a slot that is in use."""
    sequence = state.sequences[slot]
    if sequence is None:
        raise KeyError(slot)
    return sequence


def reserved_slot(state: State, slot: Name | None) -> int:
    """The slot that a reservation takes: the one named, or the lowest free one."""
    return slot if isinstance(slot, int) else state.sequences.index(None)


def with_sequence(state: State, slot: int, sequence: Sequence | None) -> State:
    """The state with another sequence in this slot."""
    before, after = state.sequences[:slot], state.sequences[slot + 1 :]
    return evolve(state, sequences=(*before, sequence, *after))


def free_pages(state: State) -> Pages:
    """Pages that no row names, lowest first."""
    named = _named(state)
    return tuple(page for page in range(state.geometry.pages) if page not in named)


def check_choice(state: State, wanted: int, choice: Pages | None) -> None:
    """Raise InvalidInput unless a choice, if there is one, is of as many free pages as wanted."""
    if not choice:
        return
    named, pages = _named(state), range(state.geometry.pages)
    free = all(page in pages and page not in named for page in choice)
    if not free or not len(set(choice)) == len(choice) == wanted:
        raise InvalidInput(
            "choice",
            seen=choice,
            allowed=f"{wanted} different free pages",
            remedy="Name the pages in the order of taking, or leave the choice out.",
        )


def _named(state: State) -> frozenset[int]:
    return frozenset(page for sequence in state.sequences if sequence for page in sequence.row)


def pages_wanted(state: State, grouped: dict[int, list[int]]) -> int:
    """How many pages an allocation takes: one for each position that begins a page."""
    size = state.geometry.page_size
    return sum(position % size == 0 for positions in grouped.values() for position in positions)


def _allocate(state: State, grouped: dict[int, list[int]], choice: Pages) -> State:
    taken = iter(choice)
    for slot, positions in grouped.items():
        sequence = used(state, slot)
        new = sum(position % state.geometry.page_size == 0 for position in positions)
        row = sequence.row + tuple(next(taken) for _ in range(new))
        grown = evolve(sequence, row=row, allocated=sequence.allocated + len(positions))
        state = with_sequence(state, slot, grown)
    return state


def _write(state: State, grouped: dict[int, list[int]]) -> State:
    size = state.geometry.page_size
    for slot, positions in grouped.items():
        sequence = used(state, slot)
        tags = (
            (destination(sequence.row, position, size), sequence.tokens[: position + 1])
            for position in positions
        )
        state = evolve(state, cells=store(state.cells, size, tags))
        grown = evolve(sequence, written=sequence.written + len(positions))
        state = with_sequence(state, slot, grown)
    return state


def range_refusals(state: State, slot: Name | None) -> Iterator[Refusal]:
    """A slot id must be a slot."""
    if not _is_slot(slot, state):
        yield Refusal(Reason.SLOT_RANGE, slot, f"0 to {state.geometry.slots - 1}")


def unused_refusals(state: State, slot: Name | None) -> Iterator[Refusal]:
    """A slot id must be a slot in use."""
    yield from range_refusals(state, slot)
    if _is_slot(slot, state) and state.sequences[slot] is None:
        yield Refusal(Reason.SLOT_UNUSED, slot, "a slot in use")


def used_refusals(state: State, slot: Name | None) -> Iterator[Refusal]:
    """A slot to be taken must be free; None asks for any."""
    if slot is None:
        if None not in state.sequences:
            yield Refusal(Reason.NO_FREE_SLOT, 0, "at least 1 free slot")
        return
    yield from range_refusals(state, slot)
    if _is_slot(slot, state) and state.sequences[slot] is not None:
        yield Refusal(Reason.SLOT_USED, slot, "an unused slot")


def _is_slot(slot: Name | None, state: State) -> TypeGuard[int]:
    return isinstance(slot, int) and 0 <= slot < state.geometry.slots


def _append_refusals(state: State, slot: Name, more: int) -> Iterator[Refusal]:
    problems = tuple(unused_refusals(state, slot))
    yield from problems
    if not problems and isinstance(slot, int):
        length = len(used(state, slot).tokens) + more
        if length > state.geometry.max_len:
            yield Refusal(Reason.TOO_LONG, length, f"at most {state.geometry.max_len} tokens")


def _sample_refusals(state: State, slot: Name) -> Iterator[Refusal]:
    problems = tuple(unused_refusals(state, slot))
    yield from problems
    if not problems and isinstance(slot, int):
        sequence = used(state, slot)
        if not sequence.tokens or sequence.written != len(sequence.tokens):
            yield Refusal(Reason.SLOT_EMPTY, sequence.written, "every known token written")
        elif len(sequence.tokens) == state.geometry.max_len:
            yield Refusal(
                Reason.TOO_LONG, len(sequence.tokens), f"below {state.geometry.max_len} tokens"
            )


def _batch_refusals(
    state: State, grouped: dict[int, list[int]], *, allocate: bool
) -> Iterator[Refusal]:
    """Guards in stages: a later stage is asked only if the earlier ones found nothing."""
    problems = [refusal for slot in grouped for refusal in range_refusals(state, slot)] or [
        refusal for slot in grouped for refusal in unused_refusals(state, slot)
    ]
    problems = problems or list(_position_refusals(state, grouped, allocate=allocate))
    if allocate:
        problems = problems or list(_room_refusals(state, grouped))
    else:
        problems = problems or list(_known_refusals(state, grouped))
    yield from problems


def _position_refusals(
    state: State, grouped: dict[int, list[int]], *, allocate: bool
) -> Iterator[Refusal]:
    for slot, positions in grouped.items():
        sequence = used(state, slot)
        start = sequence.allocated if allocate else sequence.written
        wanted = list(range(start, start + len(positions)))
        if positions != wanted:
            yield Refusal(Reason.BATCH_POSITIONS, (slot, positions), (slot, wanted))


def _room_refusals(state: State, grouped: dict[int, list[int]]) -> Iterator[Refusal]:
    last = max((positions[-1] for positions in grouped.values()), default=-1)
    if last >= state.geometry.max_len:
        yield Refusal(Reason.TOO_LONG, last + 1, f"at most {state.geometry.max_len} positions")
        return
    wanted, free = pages_wanted(state, grouped), len(free_pages(state))
    if wanted > free:
        yield Refusal(Reason.OUT_OF_PAGES, wanted, f"at most {free} pages")


def _known_refusals(state: State, grouped: dict[int, list[int]]) -> Iterator[Refusal]:
    for slot, positions in grouped.items():
        sequence = used(state, slot)
        if positions[-1] >= sequence.allocated:
            yield Refusal(Reason.BATCH_POSITIONS, positions[-1], f"below {sequence.allocated}")
        if positions[-1] >= len(sequence.tokens):
            yield Refusal(Reason.BATCH_UNKNOWN, positions[-1], f"below {len(sequence.tokens)}")
