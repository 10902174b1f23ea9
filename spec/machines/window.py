"""Rung window: pages that no query can see any more return while their sequence goes on.

With an attention window of w positions a query sees its own and the w - 1 before it. The next query
of a sequence is at `committed` at the earliest, also after a truncation. So no query to come sees a
cell before `committed - w + 1`, and Release gives back the pages that lie before it whole.
`first_page` counts the pages of a slot that are released; their row entries are INVALID. Where the
capacity policy has a ring, an allocation that needs more pages than its row may name first releases
those at the front. It is refused if a query to come can see one of them.

Seen from below, the full history is kept and read through the window: what was released is in pages
of its own there, and the part that a query can still see is compared. Source: docs/sources.md,
"Windows".
"""

from itertools import chain

from attrs import evolve

from spec.attention import visible
from spec.cells import blank
from spec.machines.actions import (
    Action,
    Allocate,
    Clone,
    Free,
    Hit,
    Prefill,
    Release,
    Sample,
    Submit,
)
from spec.machines.pages import (
    SLOT_IN_USE,
    before_room,
    release_row,
    reserved_slot,
    row_pages,
    taken_pages,
    used,
    with_entry,
    with_sequence,
)
from spec.rung import (
    Edge,
    Faults,
    Machine,
    Meet,
    Pages,
    Part,
    Rule,
    Rung,
    check,
    in_order,
)
from spec.state import State
from spec.table import Sequence, by_slot, readable
from spec.vocabulary import INVALID, Reason


def first_visible(state: State, slot: int) -> int:
    """The first cell of a slot that a query to come can see; 0 without a window."""
    committed = state.committed[slot]
    return visible(committed, committed + 1, state.geometry.window).start


@check(Reason.WINDOW)
def _out_of_sight(_machine: Machine, state: State, action: Release) -> Faults:
    """`before` is above 0, and above `committed - window + 1` or there is no window."""
    most = first_visible(state, action.slot)
    if action.before > most:
        yield action.before, f"at most {most}"


def _release(_machine: Machine, state: State, action: Release, _pages: Pages | None) -> State:
    return _released(state, action.slot, action.before // state.geometry.page_size)


def _released(state: State, slot: int, pages: int) -> State:
    """The state in which so many of the first pages of a slot are released, or more were before."""
    sequence, first = used(state, slot), max(state.first_page[slot], pages)
    released = sequence.row[state.first_page[slot] : first]
    row = (INVALID,) * first + sequence.row[first:]
    state = with_sequence(state, slot, evolve(sequence, row=row))
    state = state._replace(first_page=with_entry(state.first_page, slot, first))
    return release_row(state, released)


def cells_in_ring(state: State, seen: int) -> int:
    """The most cells that a row can have if its pages from entry `seen` on are to stay."""
    geometry, capacity = state.geometry, state.capacity
    pages = seen + capacity.ring
    if not capacity.ring or pages >= geometry.pages_per_seq:
        return geometry.max_len
    return pages * geometry.page_size


def most_cells(state: State, slot: int) -> int:
    """The most cells that a slot can have now: beside what a query to come can see, in a ring."""
    if not state.capacity.ring:
        return state.geometry.max_len
    return cells_in_ring(state, first_seen(state, slot))


def _give_way(_machine: Machine, state: State, action: Allocate) -> State:
    """Release the pages for which a ring has no entry beside those that it needs."""
    for slot, positions in by_slot(action.batch).items() if state.capacity.ring else ():
        sequence = state.sequences[slot] if 0 <= slot < state.geometry.slots else None
        if sequence is not None:
            wanted = row_pages(state, positions[-1] + 1, 0)
            leaving = min(state.capacity.ring_start(wanted), first_seen(state, slot))
            state = _released(state, slot, leaving)
    return state


def first_seen(state: State, slot: int) -> int:
    """The first page of a slot that a query to come can see."""
    return first_visible(state, slot) // state.geometry.page_size


@check(Reason.TOO_LONG)
def _ring_has_room(_machine: Machine, state: State, action: Allocate) -> Faults:
    """A ring has no room for the positions beside what a query to come can see."""
    for slot, positions in by_slot(action.batch).items() if state.capacity.ring else ():
        most = most_cells(state, slot)
        if positions[-1] >= most:
            yield positions[-1] + 1, f"at most {most} positions"


@check(Reason.TOO_LONG)
def _ring_holds_hit(_machine: Machine, state: State, action: Hit) -> Faults:
    """A ring has no room for `length` cells."""
    yield from _past_ring(state, action.length)


@check(Reason.TOO_LONG)
def _ring_holds_prompts(_machine: Machine, state: State, action: Prefill) -> Faults:
    """A ring has no room for a prompt at once; chunks read it."""
    for request in action.requests:
        yield from _past_ring(state, len(request.prompt))


@check(Reason.TOO_LONG)
def _ring_holds_prompt(_machine: Machine, state: State, action: Submit) -> Faults:
    """A ring has no room for the prompt at once."""
    yield from _past_ring(state, len(action.request.prompt))


def _past_ring(state: State, cells: int) -> Faults:
    most = cells_in_ring(state, 0)
    if cells > most:
        yield cells, f"at most {most} cells at once in a ring of {state.capacity.ring} pages"


@check(Reason.SLOT_EMPTY)
def _last_query_reads(_machine: Machine, state: State, action: Sample) -> Faults:
    """A page that the last query reads is released."""
    sequence, geometry = used(state, action.slot), state.geometry
    if not readable(sequence, sequence.written - 1, geometry.page_size, geometry.window):
        yield action.slot, "a last query whose pages are there"


def _clone_copies(_machine: Machine, before: State, action: Clone, after: State) -> State:
    child = reserved_slot(before, action.child)
    first_page = with_entry(after.first_page, child, before.first_page[action.parent])
    return after._replace(first_page=first_page)


def _free_forgets(_machine: Machine, before: State, action: Free, after: State) -> State:
    slot = reserved_slot(before, action.slot)
    return after._replace(first_page=with_entry(after.first_page, slot, 0))


def _full_history(state: State) -> State:
    """The state with what was released: entry i of slot s is page `pages + s * pages_per_seq + i`.

    The released cells hold what was written there, which their tokens say.
    """
    geometry, width = state.geometry, state.geometry.pages_per_seq
    more = evolve(geometry, pages=geometry.slots * width)
    cells, counts = list(state.cells + blank(more)), list(state.counts + (0,) * more.pages)
    for slot, sequence in enumerate(state.sequences):
        if sequence is None:
            continue
        row = list(sequence.row)
        for index, page in enumerate(row):
            if page == INVALID:
                row[index] = geometry.pages + slot * width + index
                cells[row[index]] = _history(sequence, index, geometry.page_size)
                counts[row[index]] = 1
        state = with_sequence(state, slot, evolve(sequence, row=tuple(row)))
    whole = evolve(geometry, pages=geometry.pages + more.pages)
    return state._replace(
        geometry=whole,
        capacity=evolve(state.capacity, ring=0),
        cells=tuple(cells),
        counts=tuple(counts),
    )


def _history(sequence: Sequence, index: int, size: int) -> tuple[tuple[int, ...], ...]:
    """The tags of a whole page of a sequence."""
    return tuple(sequence.tokens[: index * size + offset + 1] for offset in range(size))


def _seen(state: State) -> object:
    """What a query to come can see of each slot: the cells, and in which pages they are.

    It does not use `first_visible`, so that the edge sees a mistake there.
    """
    size, window = state.geometry.page_size, state.geometry.window
    found: list[object] = []
    for slot, sequence in enumerate(state.sequences):
        if sequence is None:
            found.append(None)
            continue
        query = state.committed[slot]
        index, offset = divmod(visible(query, query + 1, window).start, size)
        row = sequence.row[index:]
        cells = tuple(chain.from_iterable(state.cells[page] for page in row))[offset:]
        found.append((evolve(sequence, row=row), cells))
    return found, state.committed, state.proposed


def _lower(machine: Machine, state: State, action: Action, pages: Pages | None) -> tuple[Part, ...]:
    """A release is invisible, also that of a ring; everything else is itself, in the same pages."""
    match action:
        case Release():
            return ()
        case Allocate() | Clone():
            wanted = machine.pages_wanted(state, action)
            return ((action, taken_pages(state, wanted, pages)),)
        case _:
            return ((action, pages),)


RUNG = Rung(
    name="window",
    requires=("rollback",),
    owns=("first_page",),
    initial=lambda state: state._replace(first_page=(0,) * state.geometry.slots),
    rules={Release: Rule(stages=(*SLOT_IN_USE, *in_order(_out_of_sight)), effect=_release)},
    guards={
        Sample: in_order(_last_query_reads),
        Allocate: before_room(_ring_has_room),
        Hit: before_room(_ring_holds_hit),
        Prefill: before_room(_ring_holds_prompts),
        Submit: before_room(_ring_holds_prompt),
    },
    prepares={Allocate: _give_way},
    follows={Clone: _clone_copies, Free: _free_forgets},
    clauses=("WIN",),
    edges=(Edge(abstract=_full_history, lower=_lower, compared=_seen),),
    meets={
        "naive": "independent",
        "cache": "independent",
        "pages": Meet("ROW", "allocate after a release"),
        "sharing": Meet("RC", "release a page that is shared"),
        "rollback": Meet("WIN", "truncate after a release"),
    },
)
