"""Rung sharing: clones hold full pages together; a partial last page is copied.

Seen from pages, each sequence has one private copy of everything: no sequence can observe that
another one shares its pages. Source: docs/sources.md, "Clones", "Shared blocks" and "Count
invariants".
"""

from attrs import evolve

from spec import pool
from spec.cells import blank, copy_page
from spec.machines.actions import Action, Allocate, Append, Clone, Reserve, Write
from spec.machines.pages import (
    in_range,
    in_use,
    live_cells,
    reserved_slot,
    some_unused,
    taken_pages,
    unused,
    used,
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
    Stage,
    check,
    in_order,
)
from spec.state import State
from spec.table import Sequence, by_slot
from spec.vocabulary import Reason


@check(Reason.UNWRITTEN)
def _parent_settled(_machine: Machine, state: State, action: Clone) -> Faults:
    """The parent has allocated cells that are not written."""
    parent = used(state, action.parent)
    if not parent.settled:
        yield parent.written, f"{parent.allocated} written"


@check(Reason.OUT_OF_PAGES)
def _page_free(machine: Machine, state: State, action: Clone) -> Faults:
    """The parent's last page is partial, and no page is free for its copy."""
    free = pool.free_count(state.counts)
    if machine.pages_wanted(state, action) > free:
        yield 1, f"at most {free} pages"


def _pages_wanted(_machine: Machine, state: State, action: Clone) -> int:
    """One page if the parent's last page is partial."""
    return int(used(state, action.parent).written % state.geometry.page_size != 0)


def _clone(machine: Machine, state: State, action: Clone, pages: Pages | None) -> State:
    taken = taken_pages(state, machine.pages_wanted(state, action), pages)
    sequence = used(state, action.parent)
    shared = sequence.row[: sequence.written // state.geometry.page_size]
    child = reserved_slot(state, action.child)
    cells = state.cells
    for source, copy in zip(sequence.row[len(shared) :], taken, strict=True):
        cells = copy_page(cells, source, copy)
    copied = evolve(sequence, row=shared + taken)
    state = with_sequence(state, child, copied)
    return state._replace(cells=cells, counts=pool.hold(state.counts, copied.pages))


def _private(state: State) -> State:
    """Give each sequence a private copy: page i of slot s becomes page `s * pages_per_seq + i`."""
    geometry = state.geometry
    width = geometry.pages_per_seq
    private = evolve(geometry, pages=geometry.slots * width)
    sequences = tuple(
        None if sequence is None else evolve(sequence, row=_private_row(state, slot, sequence))
        for slot, sequence in enumerate(state.sequences)
    )
    cells, copies = list(blank(private)), list[int]()
    for slot, sequence in enumerate(state.sequences):
        for index, page in enumerate(sequence.row if sequence else ()):
            cells[slot * width + index] = state.cells[page]
            copies.append(slot * width + index)
    counts = pool.hold((0,) * private.pages, copies)
    return state._replace(geometry=private, sequences=sequences, cells=tuple(cells), counts=counts)


def _lower(
    _machine: Machine, state: State, action: Action, _pages: Pages | None
) -> tuple[Part, ...]:
    """A clone is a second sequence that allocates and writes the same history for itself."""
    match action:
        case Clone(parent):
            child, sequence = reserved_slot(state, action.child), used(state, parent)
            batch = tuple((child, position) for position in range(sequence.written))
            return (
                (Reserve(child), None),
                (Append(child, sequence.tokens), None),
                (Allocate(batch), _private_row(state, child, sequence)),
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
            return ((Reserve(reserved_slot(state, action.slot)), None),)
        case _:
            return ((action, None),)


def _private_row(state: State, slot: int, sequence: Sequence) -> Pages:
    first = slot * state.geometry.pages_per_seq
    return tuple(range(first, first + len(sequence.row)))


RUNG = Rung(
    name="sharing",
    requires=("pages",),
    rules={
        Clone: Rule(
            stages=(
                Stage((in_range("parent"), in_range("child"))),
                Stage((in_use("parent"), unused("child"), some_unused("child"))),
                *in_order(_parent_settled, _page_free),
            ),
            effect=_clone,
            pages_wanted=_pages_wanted,
        )
    },
    clauses=("SHARE",),
    edges=(Edge(abstract=_private, lower=_lower, compared=live_cells),),
    meets={
        "naive": "independent",
        "cache": "independent",
        "pages": Meet("SHARE", "clone inside a page"),
    },
)
