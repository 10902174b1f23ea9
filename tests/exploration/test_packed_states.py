"""The packed allocator is the rung sharing without contents.

Every transition of several geometries is taken twice: on packed states, and by the specification.
"""

from collections.abc import Iterator
from itertools import permutations

import numpy as np
import pytest
from explore_tools import Sizes, compact, every_state, plan, renamed, sizes
from spec_tools import span

from conformance.exploration.instances import legal
from conformance.exploration.packed_clauses import state_violations
from conformance.exploration.packed_states import (
    BATCH_FAULTS,
    NO_PAGE,
    UNUSED,
    Allocator,
    Move,
    States,
)
from spec import ladder, pool
from spec.cells import POISON
from spec.machines.actions import Action, Allocate, Append, Clone, Free, Reserve, Write
from spec.state import State
from spec.table import Sequence
from spec.vocabulary import InvalidInput, Reason, Refusal, default_limits

SMALL: Sizes = (3, 2, 2, 2)
NO_PARTIAL_PAGE: Sizes = (3, 2, 1, 3)
MORE_SLOTS_THAN_PAGES: Sizes = (2, 3, 2, 2)
SHORT_OF_ONE_ROW: Sizes = (1, 3, 2, 2)
WIDE_PAGES: Sizes = (2, 2, 3, 2)
GEOMETRIES = (SMALL, NO_PARTIAL_PAGE, MORE_SLOTS_THAN_PAGES, SHORT_OF_ONE_ROW, WIDE_PAGES)
INSTANCE = Allocator(sizes(SMALL))
FORBIDDEN = Allocator(sizes(SMALL), illegal=True)
SHARING = ladder.machine("sharing")
Steps = tuple[Action, ...]


def decoded(instance: Allocator, state: States) -> State:
    """The state of the specification for one packed state."""
    geometry = instance.geometry
    lengths, rows, counts = (part[0].tolist() for part in instance.parts(state))
    sequences = list[Sequence | None]()
    cells = [[POISON] * geometry.page_size for _ in range(geometry.pages)]
    for length, row in zip(lengths, rows, strict=True):
        if length == UNUSED:
            assert {NO_PAGE} == {*row}
            sequences.append(None)
            continue
        named = tuple(page for page in row if page != NO_PAGE)
        sequences.append(Sequence(named, (0,) * length, length, length))
        for position in range(length):
            index, offset = divmod(position, geometry.page_size)
            cells[named[index]][offset] = (0,) * (position + 1)
    return SHARING.initial(geometry, default_limits(geometry))._replace(
        sequences=tuple(sequences),
        cells=tuple(map(tuple, cells)),
        counts=tuple(counts),
    )


def encoded(instance: Allocator, state: State) -> States:
    """The packed state for a state of the specification."""
    slots = tuple((one.written, one.row) if one else None for one in state.sequences)
    return compact(instance, slots, state.counts)


def steps(move: Move, state: State) -> Steps:
    """A move as actions of the specification."""
    inside = 0 <= move.slot < state.geometry.slots
    sequence = state.sequences[move.slot] if inside else None
    length = sequence.written if sequence else 0
    batch = span(move.slot, length, length + move.other)
    match move.kind:
        case "reserve":
            return (Reserve(move.slot),)
        case "extend":
            return Append(move.slot, (0,) * move.other), Allocate(batch), Write(batch)
        case "clone":
            return (Clone(move.slot, move.other),)
        case "free":
            return (Free(move.slot),)
    return (Allocate(tuple((move.slot, length + by) for by in BATCH_FAULTS[move.kind])),)


def taken(state: State, actions: Steps, *, climb: bool) -> tuple[frozenset[Refusal], State]:
    """The reasons and the successor by the specification. climb: check the ladder at each step."""
    now = state
    for action in actions:
        found = SHARING.refusals(now, action)
        if found:
            return found, state
        after = SHARING.step(now, action)
        assert not climb or after == SHARING.climb(now, action)
        now = after
    return frozenset(), now


def reasons(mask: int) -> set[Reason]:
    """The reasons in a mask."""
    return {reason for reason in Reason if mask >> reason.value & 1}


def transitions(
    instance: Allocator, states: States
) -> Iterator[tuple[State, Move, bool, set[Reason], States]]:
    """Each move on each state: whether it is in the alphabet, why refused, and the successor."""
    known = [decoded(instance, state) for state in states[:, None]]
    for move in instance.moves:
        found = instance.expand(states, move)
        for at, state in enumerate(known):
            why = reasons(int(found.reasons[at]))
            yield state, move, bool(found.applies[at]), why, found.after[at : at + 1]


@pytest.mark.parametrize("numbers", GEOMETRIES, ids=str)
def test_the_bytes_are_the_sharing_rung(numbers: Sizes) -> None:
    """Every legal move has the reasons and the successor, cells and all, of the specification."""
    instance, tried = Allocator(sizes(numbers)), 0
    for state, move, applies, why, after in transitions(instance, every_state(plan(numbers))):
        found, right = taken(state, steps(move, state), climb=numbers == SMALL)
        assert applies == legal(found), (state, move)
        if applies:
            tried += 1
            assert why == {refusal.reason for refusal in found}, (state, move)
            assert decoded(instance, after) == right, (state, move)
    assert tried > len(instance.moves)


@pytest.mark.parametrize("numbers", GEOMETRIES, ids=str)
def test_what_a_caller_must_not_ask_is_refused_as_there(numbers: Sizes) -> None:
    """Every illegal move is refused for the reasons of the specification."""
    instance, tried = Allocator(sizes(numbers), illegal=True), set[Reason]()
    for state, move, applies, why, _ in transitions(instance, every_state(plan(numbers))):
        found, _ = taken(state, steps(move, state), climb=False)
        if move.kind not in BATCH_FAULTS:
            assert applies == (not legal(found)), (state, move)
        if applies:
            tried |= why
            assert why == {refusal.reason for refusal in found} != set(), (state, move)
    slots = {Reason.SLOT_RANGE, Reason.SLOT_UNUSED, Reason.SLOT_USED}
    assert {*slots, Reason.BATCH_POSITIONS} == tried


def test_the_alphabets_are_what_they_say() -> None:
    """Legal moves name slots that exist; the illegal ones go one past either end."""
    names = [str(move) for move in INSTANCE.moves]
    wrong = [str(move) for move in FORBIDDEN.moves]

    assert names == (
        "reserve(0) reserve(1) extend(0, 1) extend(0, 2) extend(1, 1) extend(1, 2) "
        "clone(0, 1) clone(1, 0) free(0) free(1)"
    ).replace(") ", ")|").split("|")
    assert {"reserve(-1)", "extend(2, 1)", "clone(0, 0)", "clone(2, -1)", "free(2)"} < {*wrong}
    assert {"gap(0)", "twice(1)", "rewrite(0)"} < {*wrong}
    assert len({*wrong}) == len(wrong) == 4 + 4 + 16 + 4 + 6


@pytest.mark.parametrize("numbers", [(255, 1, 1, 1), (1, 1, 255, 1), (9, 4, 9, 9)], ids=str)
def test_a_geometry_that_bytes_cannot_hold_is_refused(numbers: Sizes) -> None:
    """Pages and lengths must be below 255, and a state must fit 64 bits."""
    with pytest.raises(InvalidInput, match="Explore a smaller geometry"):
        Allocator(sizes(numbers))


def test_a_canonical_state_does_not_depend_on_names() -> None:
    """Renaming pages and permuting slots, even twice, leaves the canonical state the same."""
    instance = Allocator(sizes((4, 3, 2, 2)))
    states = every_state(plan((4, 3, 2, 2)))
    canonical = instance.canonical(states)

    assert (canonical == instance.canonical(canonical)).all()
    assert (canonical == instance.canonical(renamed(instance, states, seed=1))).all()
    assert [] == list(state_violations(instance, canonical))


def test_canonical_states_are_those_of_the_open_exploration() -> None:
    """The canonical states are as many as the states found with an open choice of pages."""
    instance = Allocator(sizes((4, 3, 2, 2)))
    of_all = instance.canonical(every_state(plan((4, 3, 2, 2))))
    met = every_state(plan((4, 3, 2, 2), open_pages=True))

    assert 96 == len(met)
    assert np.array_equal(np.unique(of_all, axis=0), np.unique(met, axis=0))


def with_any_page(instance: Allocator, state: State) -> Iterator[State]:
    """All successors of a state of the specification, whichever free page is taken."""
    for move in instance.moves:
        actions = steps(move, state)
        if taken(state, actions, climb=False)[0]:
            continue
        free = pool.free_pages(state.counts)
        for page in free or (0,):
            now = state
            for action in actions:
                wanted = SHARING.pages_wanted(now, action)
                now = SHARING.step(now, action, (page,) if wanted else None)
            yield now


def test_an_open_choice_of_pages_is_any_choice() -> None:
    """The specification with any free page reaches exactly the open states, up to renaming."""
    waiting = [SHARING.initial(INSTANCE.geometry, default_limits(INSTANCE.geometry))]
    seen = {*waiting}
    for state in waiting:
        new = {*with_any_page(INSTANCE, state)} - seen
        seen |= new
        waiting += new
    states = np.concatenate([encoded(INSTANCE, state) for state in waiting])

    met = every_state(plan(SMALL, open_pages=True))
    assert len(met) < len(every_state(plan(SMALL))) < len(waiting)
    assert np.array_equal(np.unique(INSTANCE.canonical(states), axis=0), np.unique(met, axis=0))


def test_the_order_of_slots_makes_a_state_canonical() -> None:
    """Slot i of the canonical state is as long as the slot that its order names."""
    instance = Allocator(sizes(MORE_SLOTS_THAN_PAGES))
    for at in every_state(plan(MORE_SLOTS_THAN_PAGES))[::5, None]:
        lengths, _, _ = instance.parts(at)
        assert (lengths[:, instance.order(at)] == instance.parts(instance.canonical(at))[0]).all()


def test_keys_are_equal_exactly_for_equal_states() -> None:
    """As many keys as states, however lengths and row entries are combined."""
    rng = np.random.default_rng(3)
    geometry = INSTANCE.geometry
    lengths = rng.integers(0, geometry.max_len + 2, (50_000, geometry.slots))
    entries = rng.integers(0, geometry.pages + 1, (50_000, geometry.slots * 2))
    lengths[lengths > geometry.max_len], entries[entries == geometry.pages] = UNUSED, NO_PAGE
    described = np.concatenate([lengths, entries], axis=1).astype(np.uint8)
    counts = rng.integers(0, 5, (50_000, geometry.pages)).astype(np.uint8)
    keys = INSTANCE.keys(np.concatenate([described, counts], axis=1))
    different, number = np.unique(described, axis=0, return_inverse=True)

    assert len(different) == len(np.unique(keys)) < len(keys)
    first = np.zeros(len(different), np.uint64)
    first[number.ravel()] = keys
    assert (first[number.ravel()] == keys).all()


def test_every_order_of_slots_is_tried() -> None:
    """A state with different slots has one canonical form, in whichever order they are given."""
    slots = ((3, (0, 1)), (2, (0,)), None)
    instance = Allocator(sizes((3, 3, 2, 2)))
    given = [
        compact(instance, (slots[a], slots[b], slots[c])) for a, b, c in permutations(range(3))
    ]

    assert 1 == len(np.unique(instance.canonical(np.concatenate(given)), axis=0))
