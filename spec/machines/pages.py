"""Rung pages: a pool of fixed-size pages, and a table row of pages for each sequence.

The edge to cache: reading through the table gives exactly the contiguous cache. The caller may
choose which free pages are taken; by default they are the lowest. When they are taken is the
capacity policy of the state. Source: docs/sources.md, "Page pool" and "Mapping".
"""

from collections.abc import Iterable
from typing import Any, Final, TypeGuard, TypeVar

from attrs import evolve

from spec import index, model, pool
from spec.attention import visible
from spec.cells import blank, copy_page, kill, store
from spec.machines.actions import (
    Action,
    Allocate,
    Append,
    Dispatch,
    Free,
    MixedRound,
    Name,
    Reserve,
    Sample,
    Write,
)
from spec.rung import (
    Check,
    Edge,
    Faults,
    Machine,
    Pages,
    Part,
    Rule,
    Rung,
    Stage,
    Stages,
    check,
    in_order,
)
from spec.state import Cached, State
from spec.table import Sequence, by_slot, destination, read
from spec.vocabulary import InvalidInput, Reason

T = TypeVar("T")


def used(state: State, slot: Name) -> Sequence:
    """The sequence in a slot that is in use."""
    sequence = state.sequences[slot] if isinstance(slot, int) else None
    if sequence is None:
        raise KeyError(slot)
    return sequence


def reserved_slot(state: State, slot: Name | None) -> int:
    """The slot that a reservation takes: the one named, or the lowest free one."""
    return slot if isinstance(slot, int) else state.unused_slots[0]


def with_sequence(state: State, slot: int, sequence: Sequence | None) -> State:
    """The state with this sequence in this slot; None empties the slot."""
    before, after = state.sequences[:slot], state.sequences[slot + 1 :]
    return state._replace(sequences=(*before, sequence, *after))


def with_entry(per_slot: tuple[T, ...], slot: int, entry: T) -> tuple[T, ...]:
    """A component that has one entry for each slot, with a new entry for this slot."""
    return (*per_slot[:slot], entry, *per_slot[slot + 1 :])


def taken_pages(state: State, wanted: int, pages: Pages | None) -> Pages:
    """The pages that an action takes: those given, or those that are next. Raises InvalidInput."""
    taken = pages or index.next_pages(state.indexed, state.in_use, wanted)
    named = {page for sequence in state.sequences if sequence for page in sequence.pages}
    named |= state.held
    free = all(page in range(state.geometry.pages) and page not in named for page in taken)
    if not free or not len(set(taken)) == len(taken) == wanted:
        raise InvalidInput(
            "pages",
            seen=taken,
            allowed=f"{wanted} different free pages",
            remedy="Name the pages in the order of taking, or leave them out.",
        )
    return taken


def take(state: State, taken: Pages) -> State:
    """The state in which one row entry names each of these pages. Idle ones leave the index."""
    return evicted(state, taken)._replace(counts=pool.hold(state.counts, taken))


def evicted(state: State, pages: Pages) -> State:
    """The state without these pages in the index; the cells of those that are then free die."""
    if not state.indexed:
        return state
    left = index.without(state.indexed, pages)
    gone = (page for page, entry in enumerate(state.indexed) if entry and left[page] is None)
    dead = tuple(page for page in gone if pool.is_free(state.counts, page))
    return state._replace(indexed=left, cells=kill(state.cells, dead))


def release_row(state: State, pages: Pages) -> State:
    """Release the pages of removed row entries: lower their counts.

    Of those that no row names any more, the ones in the index are idle; the others are free, and
    their cells die.
    """
    counts = pool.release(state.counts, pages)
    left = tuple(page for page in pages if pool.is_free(counts, page))
    dead = tuple(page for page in left if not index.has(state.indexed, page))
    return state._replace(
        counts=counts,
        cells=kill(state.cells, dead),
        indexed=index.released(state.indexed, left),
    )


def live_cells(state: State) -> object:
    """The part of a state that edges compare: sequences and their cells. Clauses judge counts."""
    return tuple(
        (sequence, tuple(state.cells[page] for page in sequence.pages) if sequence else ())
        for sequence in state.sequences
    )


def slots_of(action: Any) -> tuple[Name, ...]:
    """The slots that an action names, ascending."""
    if isinstance(action, MixedRound | Dispatch):
        return tuple(sorted({slot for slot, _ in action.chunks}))
    if not isinstance(action, Allocate | Write):
        return (action.slot,)
    return tuple(sorted({entry[0] for entry in action.batch if entry is not None}))


def in_range(name: str) -> Check[Any]:
    """The slot in a field must be in range; None stands for any unused slot."""

    def faults(_machine: Machine, state: State, action: object) -> Faults:
        slot = getattr(action, name)
        if slot is not None and not _is_slot(slot, state):
            yield slot, f"0 to {state.geometry.slots - 1}"

    return Check(Reason.SLOT_RANGE, f"`{name}` is not from 0 to `slots` - 1.", faults)


def in_use(name: str) -> Check[Any]:
    """The slot in a field must be in use."""

    def faults(_machine: Machine, state: State, action: object) -> Faults:
        slot = getattr(action, name)
        if state.sequences[slot] is None:
            yield slot, "a slot in use"

    return Check(Reason.SLOT_UNUSED, f"`{name}` is not in use.", faults)


def unused(name: str) -> Check[Any]:
    """A slot to be taken must be unused."""

    def faults(_machine: Machine, state: State, action: object) -> Faults:
        slot = getattr(action, name)
        if slot is not None and state.sequences[slot] is not None:
            yield slot, "an unused slot"

    return Check(Reason.SLOT_USED, f"`{name}` is in use.", faults)


def some_unused(name: str) -> Check[Any]:
    """If any slot may be taken, one must be unused."""

    def faults(_machine: Machine, state: State, action: object) -> Faults:
        if getattr(action, name) is None and not state.unused_slots:
            yield 0, "at least 1 free slot"

    return Check(Reason.NO_FREE_SLOT, f"`{name}` is None and every slot is in use.", faults)


_ROOM: Final = frozenset(
    {Reason.OUT_OF_PAGES, Reason.NO_FREE_SLOT, Reason.QUEUE_FULL, Reason.OUTPUTS_FULL}
)


def before_room(*checked: Check[T]) -> Stages[T]:
    """Checks, each of which comes before those of what is free now."""
    return tuple(Stage((one,), unless=frozenset(Reason) - _ROOM, first=True) for one in checked)


SLOT_IN_USE: Final = in_order(in_range("slot"), in_use("slot"))
"""The slot of an action must be in range, and then in use."""

NO_SEQUENCE: Final = frozenset({Reason.SLOT_RANGE, Reason.SLOT_UNUSED})
"""The reasons after which nothing can be asked of the sequence in a slot."""


def _is_slot(slot: Name | None, state: State) -> TypeGuard[int]:
    return isinstance(slot, int) and 0 <= slot < state.geometry.slots


def _initial(state: State) -> State:
    geometry = state.geometry
    return state._replace(
        sequences=(None,) * geometry.slots,
        cells=blank(geometry),
        counts=(0,) * geometry.pages,
    )


def _reserve(_machine: Machine, state: State, action: Reserve, _pages: Pages | None) -> State:
    return with_sequence(state, reserved_slot(state, action.slot), Sequence())


@check(Reason.TOO_LONG)
def _append_fits(_machine: Machine, state: State, action: Append) -> Faults:
    """The sequence would have more than `max_len` known tokens."""
    length = len(used(state, action.slot).tokens) + len(action.tokens)
    if length > state.geometry.max_len:
        yield length, f"at most {state.geometry.max_len} tokens"


def _append(_machine: Machine, state: State, action: Append, _pages: Pages | None) -> State:
    slot, sequence = reserved_slot(state, action.slot), used(state, action.slot)
    return with_sequence(state, slot, evolve(sequence, tokens=sequence.tokens + action.tokens))


@check(Reason.SLOT_EMPTY)
def _all_written(_machine: Machine, state: State, action: Sample) -> Faults:
    """The sequence has no token, or one that is not written."""
    sequence = used(state, action.slot)
    if not sequence.tokens or sequence.written != len(sequence.tokens):
        yield sequence.written, "every known token written"


@check(Reason.TOO_LONG)
def _sample_fits(_machine: Machine, state: State, action: Sample) -> Faults:
    """The sequence has `max_len` tokens."""
    length = len(used(state, action.slot).tokens)
    if length == state.geometry.max_len:
        yield length, f"below {state.geometry.max_len} tokens"


def _sample(_machine: Machine, state: State, action: Sample, _pages: Pages | None) -> State:
    slot, sequence = reserved_slot(state, action.slot), used(state, action.slot)
    window = state.geometry.window
    first = visible(sequence.written - 1, sequence.written, window).start
    tags = read(state.cells, sequence, first)
    token = model.attend(sequence.tokens[-1], tags, action.draw, first=first, window=window)
    return with_sequence(state, slot, evolve(sequence, tokens=(*sequence.tokens, token)))


def _free(_machine: Machine, state: State, action: Free, _pages: Pages | None) -> State:
    slot, pages = reserved_slot(state, action.slot), used(state, action.slot).pages
    return release_row(with_sequence(state, slot, None), pages)


def row_pages(state: State, allocated: int, reserved: int) -> int:
    """The pages of a row with this many cells allocated, and reserved, as the policy says."""
    return state.capacity.row_pages(state.geometry, allocated, reserved)


def pages_lacking(state: State, slot: int, allocated: int) -> int:
    """The pages that the row of a slot lacks for this many allocated cells, beside a copy."""
    sequence = used(state, slot)
    return max(0, row_pages(state, allocated, sequence.reserved) - len(sequence.row))


def pages_to_reserve(state: State, slot: int, reserved: int) -> int:
    """The pages that the row of a slot lacks for this many reserved cells."""
    sequence = used(state, slot)
    return row_pages(state, sequence.allocated, reserved) - len(sequence.row)


def with_reserved(state: State, slot: int, reserved: int, pages: Pages | None) -> State:
    """The state in which this many cells are reserved for a slot that had none reserved."""
    taken = taken_pages(state, pages_to_reserve(state, slot, reserved), pages)
    sequence = used(state, slot)
    state = take(state, taken)
    longer = evolve(sequence, row=sequence.row + taken, reserved=reserved)
    return with_sequence(state, slot, longer)


def copying(state: State, slots: Iterable[int]) -> tuple[int, ...]:
    """Of slots that append in one batch, those that copy the page that they append in.

    With lazy copies a page may be shared while it is partial. In the order of the slots, each
    copies it while its count is above 1, so that the last owner keeps the page.
    """
    counts, found = state.counts, list[int]()
    for slot in slots if state.capacity.copy == "lazy" else ():
        sequence = used(state, slot)
        index, offset = divmod(sequence.allocated, state.geometry.page_size)
        if offset and pool.is_shared(counts, sequence.row[index]):
            counts = pool.release(counts, (sequence.row[index],))
            found.append(slot)
    return tuple(found)


def _pages_wanted(_machine: Machine, state: State, action: Allocate) -> int:
    """The pages that rows lack, and one for each copy."""
    grouped = by_slot(action.batch)
    lacking = (pages_lacking(state, slot, at[-1] + 1) for slot, at in grouped.items())
    return sum(lacking) + len(copying(state, grouped))


@check(Reason.SLOT_RANGE)
def slots_in_range(
    _machine: Machine, state: State, action: Allocate | Write | MixedRound | Dispatch
) -> Faults:
    """A slot of the batch is not from 0 to `slots` - 1."""
    for slot in slots_of(action):
        if not _is_slot(slot, state):
            yield slot, f"0 to {state.geometry.slots - 1}"


@check(Reason.SLOT_UNUSED)
def slots_in_use(
    _machine: Machine, state: State, action: Allocate | Write | MixedRound | Dispatch
) -> Faults:
    """A slot of the batch is not in use."""
    for slot in slots_of(action):
        if isinstance(slot, int) and state.sequences[slot] is None:
            yield slot, "a slot in use"


@check(Reason.BATCH_POSITIONS)
def next_to_allocate(_machine: Machine, state: State, action: Allocate) -> Faults:
    """The positions of a slot, sorted, are not the next ones from `allocated` on, each once."""
    for slot, positions in by_slot(action.batch).items():
        yield from _not_from(slot, positions, used(state, slot).allocated)


@check(Reason.TOO_LONG)
def row_fits(_machine: Machine, state: State, action: Allocate) -> Faults:
    """A position is not below `max_len`."""
    last = max((entry[1] for entry in action.batch if entry is not None), default=-1)
    if last >= state.geometry.max_len:
        yield last + 1, f"at most {state.geometry.max_len} positions"


@check(Reason.OUT_OF_PAGES)
def _pages_free(machine: Machine, state: State, action: Allocate) -> Faults:
    """More pages are needed than are free: those that the rows lack for the new positions and for
    what is taken ahead, and one for each lazy copy.
    """
    wanted, free = machine.pages_wanted(state, action), pool.free_count(state.in_use)
    if wanted > free:
        yield wanted, f"at most {free} pages"


def _allocate(machine: Machine, state: State, action: Allocate, pages: Pages | None) -> State:
    """Slots ascending; a slot takes the page of its copy first."""
    taken = taken_pages(state, machine.pages_wanted(state, action), pages)
    grouped, left = by_slot(action.batch), iter(taken)
    copies = copying(state, grouped)
    state = take(state, taken)
    for slot, positions in grouped.items():
        if slot in copies:
            state = _copied(state, slot, next(left))
        sequence, allocated = used(state, slot), positions[-1] + 1
        new = tuple(next(left) for _ in range(pages_lacking(state, slot, allocated)))
        grown = evolve(sequence, row=sequence.row + new, allocated=allocated)
        state = with_sequence(state, slot, grown)
    return state


def _copied(state: State, slot: int, copy: int) -> State:
    """The state in which a slot has a copy of the page that it appends in."""
    sequence = used(state, slot)
    index = sequence.allocated // state.geometry.page_size
    page, row = sequence.row[index], with_entry(sequence.row, index, copy)
    state = with_sequence(state, slot, evolve(sequence, row=row))
    cells = copy_page(state.cells, page, copy)
    return state._replace(cells=cells, counts=pool.release(state.counts, (page,)))


@check(Reason.BATCH_POSITIONS)
def _next_to_write(_machine: Machine, state: State, action: Write) -> Faults:
    """The positions of a slot, sorted, are not the next ones from `written` on, each once."""
    for slot, positions in by_slot(action.batch).items():
        yield from _not_from(slot, positions, used(state, slot).written)


@check(Reason.BATCH_POSITIONS)
def _is_allocated(_machine: Machine, state: State, action: Write) -> Faults:
    """A position is not below `allocated`."""
    for slot, positions in by_slot(action.batch).items():
        allocated = used(state, slot).allocated
        if positions[-1] >= allocated:
            yield positions[-1], f"below {allocated}"


@check(Reason.BATCH_UNKNOWN)
def _is_known(machine: Machine, state: State, action: Write) -> Faults:
    """A position has no token, known or proposed."""
    for slot, positions in by_slot(action.batch).items():
        known = len(machine.known(state, slot))
        if positions[-1] >= known:
            yield positions[-1], f"below {known}"


def _write(machine: Machine, state: State, action: Write, _pages: Pages | None) -> State:
    size = state.geometry.page_size
    for slot, positions in by_slot(action.batch).items():
        sequence, tokens = used(state, slot), machine.known(state, slot)
        tags = (
            (destination(sequence.row, position, size), tokens[: position + 1])
            for position in positions
        )
        state = state._replace(cells=store(state.cells, size, tags))
        grown = evolve(sequence, written=sequence.written + len(positions))
        state = with_sequence(state, slot, grown)
    return state


def _not_from(slot: int, positions: list[int], start: int) -> Faults:
    wanted = list(range(start, start + len(positions)))
    if positions != wanted:
        yield (slot, positions), (slot, wanted)


def _contiguous(state: State) -> State:
    """Read every sequence through its row."""
    contiguous = tuple(
        None if sequence is None else Cached(sequence.tokens, read(state.cells, sequence))
        for sequence in state.sequences
    )
    return state._replace(contiguous=contiguous)


def _lower(
    _machine: Machine, state: State, action: Action, _pages: Pages | None
) -> tuple[Part, ...]:
    """Allocate lowers to nothing; every other action lowers to itself."""
    match action:
        case Allocate():
            return ()
        case Reserve(slot):
            return ((Reserve(reserved_slot(state, slot)), None),)
        case _:
            return ((action, None),)


RUNG = Rung(
    name="pages",
    owns=("sequences", "cells", "counts"),
    initial=_initial,
    rules={
        Reserve: Rule(
            stages=(*in_order(in_range("slot")), Stage((unused("slot"), some_unused("slot")))),
            effect=_reserve,
        ),
        Append: Rule(
            stages=(*SLOT_IN_USE, *in_order(_append_fits)),
            effect=_append,
            appends=lambda _machine, _state, action: {action.slot: action.tokens},
        ),
        Allocate: Rule(
            stages=in_order(slots_in_range, slots_in_use, next_to_allocate, row_fits, _pages_free),
            effect=_allocate,
            pages_wanted=_pages_wanted,
        ),
        Write: Rule(
            stages=(
                *in_order(slots_in_range, slots_in_use, _next_to_write),
                Stage((_is_allocated, _is_known)),
            ),
            effect=_write,
        ),
        Sample: Rule(stages=(*SLOT_IN_USE, *in_order(_all_written, _sample_fits)), effect=_sample),
        Free: Rule(stages=SLOT_IN_USE, effect=_free),
    },
    clauses=("CONS", "UAF", "RC", "ROW", "LEN", "CONTENT", "READ", "WX", "FRAME"),
    edges=(Edge(to="cache", abstract=_contiguous, lower=_lower),),
    meets={"naive": "independent", "cache": "independent"},
)
