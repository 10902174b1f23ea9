"""Rung 3: clones hold full pages together by reference count; a partial last page is copied.

Seen from pages, each sequence has one private copy of everything: nobody can tell that they share.
Source: seed 000, section 6; seed 004, section 8; seed 001, "Clone/Refcount Invariants".
"""

from collections.abc import Iterator

from attrs import evolve, frozen

from spec import pool
from spec.cells import blank, copy_page, kill
from spec.machines import pages
from spec.machines.actions import Allocate, Append, Clone, Free, Reserve, Write
from spec.machines.pages import Pages, range_refusals, unused_refusals, used_refusals
from spec.pool import Counts
from spec.table import Sequence, Sequences, by_slot
from spec.vocabulary import Geometry, Reason, Refusal, refused

Action = pages.Action | Clone
Step = tuple[pages.Action, Pages | None]


@frozen
class State:
    """The table, the pool, and how many row entries name each page."""

    pages: pages.State
    counts: Counts

    @property
    def geometry(self) -> Geometry:
        """The sizes."""
        return self.pages.geometry

    @property
    def sequences(self) -> Sequences:
        """`sequences[slot]`; None is an unused slot."""
        return self.pages.sequences


def initial(geometry: Geometry) -> State:
    """No sequence, every page free."""
    return State(pages.initial(geometry), (0,) * geometry.pages)


def refusals(state: State, action: Action) -> frozenset[Refusal]:
    """Why the action cannot be done; empty exactly if it can."""
    if isinstance(action, Clone):
        return frozenset(_clone_refusals(state, action))
    return pages.refusals(state.pages, action)


def step(state: State, action: Action, choice: Pages | None = None) -> State:
    """Apply an action, or raise Refused. `choice`: the pages to take, slots ascending."""
    found = refusals(state, action)
    if found:
        raise refused(found)
    return effect(state, action, choice)


def effect(state: State, action: Action, choice: Pages | None = None) -> State:
    """What an action does whose guards have passed: those of a rung include those below it."""
    match action:
        case Clone(parent):
            child = pages.reserved_slot(state.pages, action.child)
            return _clone(state, parent, child, _taken(state, action, choice))
        case Free(int(slot)):
            return _free(state, slot)
        case Allocate():
            taken = _taken(state, action, choice)
            after = pages.effect(state.pages, action, taken)
            return State(after, pool.hold(state.counts, taken))
        case _:
            return evolve(state, pages=pages.effect(state.pages, action))


def pages_wanted(state: State, action: Action) -> int:
    """How many free pages an action takes."""
    match action:
        case Allocate(batch):
            return pages.pages_wanted(state.pages, by_slot(batch))
        case Clone(parent):
            return int(pages.used(state.pages, parent).written % state.geometry.page_size != 0)
        case _:
            return 0


def abstract(state: State) -> pages.State:
    """Give each sequence a private copy: page i of slot s becomes page `s * pages_per_seq + i`."""
    geometry = state.geometry
    width = geometry.pages_per_seq
    private = evolve(geometry, pages=geometry.slots * width)
    sequences = tuple(
        None if sequence is None else evolve(sequence, row=_private_row(state, slot, sequence))
        for slot, sequence in enumerate(state.sequences)
    )
    copies = [
        (slot * width + index, page)
        for slot, sequence in enumerate(state.sequences)
        if sequence is not None
        for index, page in enumerate(sequence.row)
    ]
    cells = list(blank(private))
    for copy, page in copies:
        cells[copy] = state.pages.cells[page]
    return pages.State(private, sequences, tuple(cells))


def lower(state: State, action: Action) -> tuple[Step, ...]:
    """A clone is a second sequence that allocates and writes the same history for itself."""
    match action:
        case Clone(parent):
            child = pages.reserved_slot(state.pages, action.child)
            sequence = pages.used(state.pages, parent)
            batch = tuple((child, position) for position in range(sequence.written))
            row = _private_row(state, child, sequence)
            return (
                (Reserve(child), None),
                (Append(child, sequence.tokens), None),
                (Allocate(batch), row),
                (Write(batch), None),
            )
        case Allocate(batch):
            size, width = state.geometry.page_size, state.geometry.pages_per_seq
            taken = tuple(
                slot * width + position // size
                for slot, positions in by_slot(batch).items()
                for position in positions
                if position % size == 0
            )
            return ((action, taken),)
        case Reserve():
            return ((Reserve(pages.reserved_slot(state.pages, action.slot)), None),)
        case _:
            return ((action, None),)


def _taken(state: State, action: Allocate | Clone, choice: Pages | None) -> Pages:
    wanted = pages_wanted(state, action)
    pages.check_choice(state.pages, wanted, choice)
    return choice or pool.lowest_free(state.counts, wanted)


def _clone(state: State, parent: int, child: int, taken: Pages) -> State:
    sequence = pages.used(state.pages, parent)
    shared = sequence.row[: sequence.written // state.geometry.page_size]
    copied = evolve(sequence, row=shared + taken)
    after = pages.with_sequence(state.pages, child, copied)
    for source, copy in zip(sequence.row[len(shared) :], taken, strict=True):
        after = evolve(after, cells=copy_page(after.cells, source, copy))
    return State(after, pool.hold(state.counts, shared + taken))


def _free(state: State, slot: int) -> State:
    row = pages.used(state.pages, slot).row
    counts = pool.release(state.counts, row)
    dead = tuple(page for page in row if counts[page] == 0)
    after = pages.with_sequence(state.pages, slot, None)
    return State(evolve(after, cells=kill(after.cells, dead)), counts)


def _private_row(state: State, slot: int, sequence: Sequence) -> Pages:
    first = slot * state.geometry.pages_per_seq
    return tuple(range(first, first + len(sequence.row)))


def _clone_refusals(state: State, action: Clone) -> Iterator[Refusal]:
    problems = [*range_refusals(state.pages, action.parent)]
    if action.child is not None:
        problems += range_refusals(state.pages, action.child)
    problems = problems or [
        *unused_refusals(state.pages, action.parent),
        *used_refusals(state.pages, action.child),
    ]
    yield from problems
    if problems:
        return
    parent = pages.used(state.pages, action.parent)
    if not parent.settled:
        yield Refusal(Reason.UNWRITTEN, parent.written, f"{parent.allocated} written")
    elif pages_wanted(state, action) and 0 not in state.counts:
        yield Refusal(Reason.OUT_OF_PAGES, 1, "at most 0 pages")
