"""Rung sharing: clones hold full pages together; a partial last page is copied.

The capacity policy says when: by the clone, or lazily, by the first sequence that appends in the
page. A clone takes pages ahead, and those that are reserved, for itself. Seen from pages, each
sequence has one private copy of everything, and takes nothing ahead: no sequence can observe that
another one shares its pages, nor the policy. Source: docs/sources.md, "Clones", "Shared blocks" and
"Count invariants".
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
    row_pages,
    some_unused,
    take,
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
from spec.vocabulary import INVALID, Capacity, Reason


@check(Reason.UNWRITTEN)
def _parent_settled(_machine: Machine, state: State, action: Clone) -> Faults:
    """The parent has allocated cells that are not written."""
    parent = used(state, action.parent)
    if not parent.settled:
        yield parent.written, f"{parent.allocated} written"


@check(Reason.OUT_OF_PAGES)
def _pages_free(machine: Machine, state: State, action: Clone) -> Faults:
    """The child needs more pages than are free: what its row does not share with the parent's."""
    wanted, free = machine.pages_wanted(state, action), pool.free_count(state.in_use)
    if wanted > free:
        yield wanted, f"at most {free} pages"


def _pages_wanted(_machine: Machine, state: State, action: Clone) -> int:
    """What the child's row has beside the pages that it shares."""
    parent = used(state, action.parent)
    wanted = row_pages(state, parent.written, parent.reserved)
    return wanted - _shared(state, action.parent)


def _shared(state: State, parent: int) -> int:
    return state.capacity.shared_pages(state.geometry, used(state, parent).written)


def _clone(machine: Machine, state: State, action: Clone, pages: Pages | None) -> State:
    taken = taken_pages(state, machine.pages_wanted(state, action), pages)
    sequence = used(state, action.parent)
    child, shared = reserved_slot(state, action.child), _shared(state, action.parent)
    state = take(state, taken)
    cells = state.cells
    for source, copy in zip(_written_pages(state, sequence)[shared:], taken, strict=False):
        cells = copy_page(cells, source, copy)
    copied = evolve(sequence, row=sequence.row[:shared] + taken)
    counts = pool.hold(state.counts, evolve(copied, row=sequence.row[:shared]).pages)
    return with_sequence(state._replace(cells=cells, counts=counts), child, copied)


def _written_pages(state: State, sequence: Sequence) -> Pages:
    """The pages of a row with written cells."""
    return sequence.row[: state.geometry.pages_for(sequence.written)]


def private(state: State) -> State:
    """Give each sequence a private copy: page i of slot s becomes page `s * pages_per_seq + i`.

    A row covers what is allocated and no more, less what is released. A ring stays one.
    """
    geometry = state.geometry
    width = geometry.pages_per_seq
    own = evolve(geometry, pages=geometry.slots * width)
    sequences = tuple(
        sequence and evolve(sequence, row=_private_left(state, slot, sequence))
        for slot, sequence in enumerate(state.sequences)
    )
    cells, copies = list(blank(own)), list[int]()
    for slot, sequence in enumerate(sequences):
        for copy in sequence.pages if sequence else ():
            cells[copy] = state.cells[used(state, slot).row[copy - slot * width]]
            copies.append(copy)
    counts = pool.hold((0,) * own.pages, copies)
    return state._replace(
        geometry=own,
        capacity=Capacity(ring=state.capacity.ring),
        sequences=sequences,
        cells=tuple(cells),
        counts=counts,
    )


def _private_left(state: State, slot: int, sequence: Sequence) -> Pages:
    """The private row of a slot, INVALID where a page is released."""
    row = zip(_private_row(state, slot, sequence), sequence.row, strict=False)
    return tuple(INVALID if page == INVALID else own for own, page in row)


def lower(
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
    return tuple(range(first, first + state.geometry.pages_for(sequence.allocated)))


RUNG = Rung(
    name="sharing",
    requires=("pages",),
    rules={
        Clone: Rule(
            stages=(
                Stage((in_range("parent"), in_range("child"))),
                Stage((in_use("parent"), unused("child"), some_unused("child"))),
                *in_order(_parent_settled, _pages_free),
            ),
            effect=_clone,
            pages_wanted=_pages_wanted,
        )
    },
    clauses=("SHARE",),
    edges=(Edge(abstract=private, lower=lower, compared=live_cells),),
    meets={
        "naive": "independent",
        "cache": "independent",
        "pages": Meet("SHARE", "clone inside a page"),
    },
)
