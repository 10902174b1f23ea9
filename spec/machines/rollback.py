"""Rung rollback: cells are written before their tokens are final, and may be cut off again.

`committed` counts the leading cells whose tokens are final. A write of known tokens commits their
cells. Cells of proposed tokens are committed by Commit, which makes the tokens known, or cut off by
Truncate. Only committed cells are shared, so that a truncation never meets a shared page.

In the lower machine there are only committed cells: a cell that is cut off was never there. Source:
docs/sources.md, "Committed cells".
"""

from attrs import evolve

from spec.cells import POISON, kill
from spec.machines.actions import (
    Action,
    Allocate,
    Append,
    Clone,
    Commit,
    Free,
    Propose,
    Reserve,
    Sample,
    Truncate,
    Write,
)
from spec.machines.pages import (
    SLOT_IN_USE,
    live_cells,
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
    Stage,
    check,
    in_order,
)
from spec.state import State
from spec.table import by_slot
from spec.vocabulary import Reason
from spec.vocabulary.errors import SLOT_REASONS


@check(Reason.TOO_LONG)
def _proposals_fit(machine: Machine, state: State, action: Propose) -> Faults:
    """The sequence would have more than `max_len` tokens, known and proposed."""
    length = len(machine.known(state, action.slot)) + len(action.tokens)
    if length > state.geometry.max_len:
        yield length, f"at most {state.geometry.max_len} tokens"


def _propose(_machine: Machine, state: State, action: Propose, _pages: Pages | None) -> State:
    proposed = state.proposed[action.slot] + action.tokens
    return state._replace(proposed=with_entry(state.proposed, action.slot, proposed))


@check(Reason.COMMITTED)
def _past_committed(_machine: Machine, state: State, action: Commit) -> Faults:
    """`length` is not above `committed`."""
    committed = state.committed[action.slot]
    if action.length <= committed:
        yield action.length, f"above {committed}"


@check(Reason.UNWRITTEN)
def _within_written(_machine: Machine, state: State, action: Commit) -> Faults:
    """`length` is above `written`."""
    written = used(state, action.slot).written
    if action.length > written:
        yield action.length, f"at most {written} written"


def _commit(_machine: Machine, state: State, action: Commit, _pages: Pages | None) -> State:
    slot, sequence = action.slot, used(state, action.slot)
    accepted = _accepted(state, action)
    rest = state.proposed[slot][len(accepted) :]
    state = state._replace(
        committed=with_entry(state.committed, slot, action.length),
        proposed=with_entry(state.proposed, slot, rest),
    )
    return with_sequence(state, slot, evolve(sequence, tokens=sequence.tokens + accepted))


def _accepted(state: State, action: Commit) -> tuple[int, ...]:
    """The proposed tokens that a commit makes known."""
    return state.proposed[action.slot][: action.length - len(used(state, action.slot).tokens)]


@check(Reason.COMMITTED)
def _keeps_committed(_machine: Machine, state: State, action: Truncate) -> Faults:
    """`length` is below `committed`."""
    committed = state.committed[action.slot]
    if action.length < committed:
        yield action.length, f"at least {committed}"


@check(Reason.TOO_LONG)
def _within_allocated(_machine: Machine, state: State, action: Truncate) -> Faults:
    """`length` is above `allocated`."""
    allocated = used(state, action.slot).allocated
    if action.length > allocated:
        yield action.length, f"at most {allocated} allocated"


def _truncate(_machine: Machine, state: State, action: Truncate, _pages: Pages | None) -> State:
    slot, length = action.slot, action.length
    proposed = state.proposed[slot][: max(0, length - len(used(state, slot).tokens))]
    return cut(state, slot, length)._replace(proposed=with_entry(state.proposed, slot, proposed))


def cut(state: State, slot: int, length: int) -> State:
    """The state without the cells of a slot from `length` on.

    The row then has the pages of a row of this length: what the policy takes ahead of it is kept,
    and what is reserved.
    """
    sequence, size = used(state, slot), state.geometry.page_size
    filled = state.geometry.pages_for(length)
    kept = _width(state, slot, length)
    cells = list(kill(state.cells, sequence.row[filled:kept]))
    if length % size:
        page = sequence.row[filled - 1]
        live = cells[page][: length % size]
        cells[page] = live + (POISON,) * (size - len(live))
    shorter = evolve(
        sequence,
        row=sequence.row[:kept],
        allocated=length,
        written=min(sequence.written, length),
    )
    state = with_sequence(state._replace(cells=tuple(cells)), slot, shorter)
    return release_row(state, sequence.row[kept:])


def _write_commits(_machine: Machine, _before: State, action: Write, after: State) -> State:
    """A written cell of a known token is committed at once."""
    committed = after.committed
    for slot in by_slot(action.batch):
        sequence = used(after, slot)
        committed = with_entry(committed, slot, min(sequence.written, len(sequence.tokens)))
    return after._replace(committed=committed)


def _clone_copies(_machine: Machine, before: State, action: Clone, after: State) -> State:
    child = reserved_slot(before, action.child)
    committed = with_entry(after.committed, child, before.committed[action.parent])
    return after._replace(committed=committed)


def _free_forgets(_machine: Machine, before: State, action: Free, after: State) -> State:
    slot = reserved_slot(before, action.slot)
    return after._replace(
        committed=with_entry(after.committed, slot, 0),
        proposed=with_entry(after.proposed, slot, ()),
    )


@check(Reason.PROPOSED)
def _nothing_proposed(_machine: Machine, state: State, action: Append | Sample) -> Faults:
    """The slot has proposed tokens, which no known token can follow."""
    yield from _proposals(state, reserved_slot(state, action.slot))


@check(Reason.PROPOSED)
def _parent_committed(_machine: Machine, state: State, action: Clone) -> Faults:
    """The parent has proposed tokens; only committed cells are shared or copied."""
    yield from _proposals(state, action.parent)


def _proposals(state: State, slot: int) -> Faults:
    if state.proposed[slot]:
        yield len(state.proposed[slot]), "0 proposed tokens"


def _committed_cells(state: State) -> State:
    """The state without the cells that are not committed, and without proposed tokens."""
    for slot, sequence in enumerate(state.sequences):
        if sequence is not None:
            state = cut(state, slot, state.committed[slot])
    return state


def _lower(machine: Machine, state: State, action: Action, pages: Pages | None) -> tuple[Part, ...]:
    """Committed tokens are appended, allocated and written; other actions are kept or dropped."""
    match action:
        case Propose() | Truncate() | Allocate():
            return ()
        case Commit(slot, length):
            accepted = _accepted(state, action)
            grow = ((Append(slot, accepted), None),) if accepted else ()
            return (*grow, *_committing(state, {slot: length}))
        case Write(batch):
            lengths = {
                slot: min(positions[-1] + 1, len(used(state, slot).tokens))
                for slot, positions in by_slot(batch).items()
            }
            return _committing(state, lengths)
        case Clone():
            wanted = machine.pages_wanted(state, action)
            return ((action, taken_pages(state, wanted, pages)),)
        case Reserve(slot):
            return ((Reserve(reserved_slot(state, slot)), None),)
        case _:
            return ((action, None),)


def _committing(state: State, lengths: dict[int, int]) -> tuple[Part, ...]:
    """Allocate and write the cells up to these lengths, in the pages that the rows have."""
    batch = tuple(
        (slot, position)
        for slot, length in lengths.items()
        for position in range(state.committed[slot], length)
    )
    taken = tuple(
        page
        for slot, length in lengths.items()
        for page in used(state, slot).row[
            _width(state, slot, state.committed[slot]) : _width(state, slot, length)
        ]
    )
    return ((Allocate(batch), taken), (Write(batch), None)) if batch else ()


def _width(state: State, slot: int, allocated: int) -> int:
    return row_pages(state, allocated, used(state, slot).reserved)


def _compared(state: State) -> object:
    """Sequences and their cells. With lazy copies a partial page is compared by its cells alone.

    Its copy is taken by an allocation, which lowers to nothing, so its number may be another one.
    """
    if state.capacity.copy == "eager":
        return live_cells(state)
    size = state.geometry.page_size
    full = tuple(
        sequence and evolve(sequence, row=sequence.row[: sequence.written // size])
        for sequence in state.sequences
    )
    return live_cells(state._replace(sequences=full)), tuple(
        tuple(state.cells[page] for page in sequence.pages) if sequence else ()
        for sequence in state.sequences
    )


def _initial(state: State) -> State:
    slots = state.geometry.slots
    return state._replace(committed=(0,) * slots, proposed=((),) * slots)


RUNG = Rung(
    name="rollback",
    requires=("sharing",),
    owns=("committed", "proposed"),
    initial=_initial,
    rules={
        Propose: Rule(stages=(*SLOT_IN_USE, *in_order(_proposals_fit)), effect=_propose),
        Commit: Rule(
            stages=(*SLOT_IN_USE, *in_order(_past_committed, _within_written)),
            effect=_commit,
            appends=lambda _machine, state, action: {action.slot: _accepted(state, action)},
        ),
        Truncate: Rule(
            stages=(*SLOT_IN_USE, *in_order(_keeps_committed, _within_allocated)), effect=_truncate
        ),
    },
    guards={
        Append: (Stage((_nothing_proposed,), unless=SLOT_REASONS),),
        Sample: (Stage((_nothing_proposed,), unless=SLOT_REASONS),),
        Clone: (Stage((_parent_committed,), unless=SLOT_REASONS),),
    },
    follows={Write: _write_commits, Clone: _clone_copies, Free: _free_forgets},
    known=lambda state, slot: state.proposed[slot],
    clauses=("RB",),
    edges=(Edge(abstract=_committed_cells, lower=_lower, compared=_compared),),
    meets={
        "naive": "independent",
        "cache": "independent",
        "pages": Meet("LEN", "truncate inside a page"),
        "sharing": Meet("RB", "truncate a slot that shares pages"),
    },
)
