"""The packed allocator is the rung sharing without contents.

Every transition of several geometries is taken twice: on packed states, and by the specification.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import permutations

import numpy as np
import pytest
from accelerators import Beside, every_transition
from attrs import evolve, frozen
from deep import deep_after
from explore_tools import Sizes, compact, every_state, plan, renamed, sizes
from spec_tools import span

from conformance.exploration.instances import legal
from conformance.exploration.packed_clauses import state_violations
from conformance.exploration.packed_states import (
    BATCH_FAULTS,
    NO_PAGE,
    UNUSED,
    Allocator,
    Flags,
    Masks,
    Move,
    States,
)
from spec import ladder, pool
from spec.machines.actions import Action, Allocate, Append, Clone, Free, Reserve, Write
from spec.state import State
from spec.vocabulary import InvalidInput, Reason, Refusal, default_limits

SMALL: Sizes = (3, 2, 2, 2)
NO_PARTIAL_PAGE: Sizes = (3, 2, 1, 3)
MORE_SLOTS_THAN_PAGES: Sizes = (2, 3, 2, 2)
SHORT_OF_ONE_ROW: Sizes = (1, 3, 2, 2)
WIDE_PAGES: Sizes = (2, 2, 3, 2)
GEOMETRIES = (SHORT_OF_ONE_ROW, NO_PARTIAL_PAGE, WIDE_PAGES, SMALL, MORE_SLOTS_THAN_PAGES)
INSTANCE = Allocator(sizes(SMALL))
FORBIDDEN = Allocator(sizes(SMALL), illegal=True)
SHARING = ladder.machine("sharing")
Steps = tuple[Action, ...]


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


def taken(state: State, actions: Steps) -> tuple[frozenset[Refusal], State]:
    """The refusals of the specification, and its successor."""
    now = state
    for action in actions:
        found = SHARING.refusals(now, action)
        if found:
            return found, state
        now = SHARING.climb(now, action)
    return frozenset(), now


@frozen
class Packed:
    """One compact state as an accelerator."""

    instance: Allocator
    state: States

    def actions(self, move: Move, state: State) -> Steps:
        """The actions of a move, in the state of the specification."""
        return steps(move, state)

    def applies(self, move: Move) -> bool:
        """Whether a move is in the alphabet of this state."""
        return bool(self.instance.expand(self.state, move).applies[0])

    def reasons(self, move: Move) -> frozenset[Reason]:
        """The reasons in the mask of the move."""
        mask = int(self.instance.expand(self.state, move).reasons[0])
        return frozenset(reason for reason in Reason if mask >> reason.value & 1)

    def after(self, move: Move) -> "Packed":
        """The successor."""
        return evolve(self, state=self.instance.expand(self.state, move).after)

    def results(self) -> None:
        """Packed states have no results."""

    def shown(self) -> Mapping[str, Mapping[int, object]]:
        """Lengths, rows and counts: whatever is used is allocated and written."""
        lengths, rows, counts = (part[0].tolist() for part in self.instance.parts(self.state))
        named = {
            slot: tuple(page for page in row if page != NO_PAGE) for slot, row in enumerate(rows)
        }
        assert [[*named[slot], *row[len(named[slot]) :]] for slot, row in enumerate(rows)] == rows
        used = {slot: length != UNUSED for slot, length in enumerate(lengths)}
        cells = {slot: length if used[slot] else 0 for slot, length in enumerate(lengths)}
        return {
            "used": used,
            "rows": named,
            "counts": dict(enumerate(counts)),
            "allocated": cells,
            "written": cells,
            "tokens": {slot: (0,) * length for slot, length in cells.items()},
        }


def beside(instance: Allocator) -> Beside[Move]:
    """The initial state in both forms."""
    geometry = instance.geometry
    initial = SHARING.initial(geometry, default_limits(geometry))
    return Beside(SHARING, initial, Packed(instance, instance.initial()))


def legal_moves(here: Beside[Move]) -> Iterator[Move]:
    """The alphabet: a move is in it exactly if it is done, or refused for want of room."""
    assert isinstance(here.form, Packed)
    for move in here.form.instance.moves:
        found, _ = taken(here.state, steps(move, here.state))
        assert here.form.applies(move) == legal(found), (here.state, move)
        if legal(found):
            yield move


@pytest.mark.parametrize("numbers", deep_after(2, [(one,) for one in GEOMETRIES]), ids=str)
def test_the_bytes_are_the_sharing_rung(numbers: Sizes) -> None:
    """Every move in every state has the reasons and the successor of the specification."""
    instance, illegal = Allocator(sizes(numbers)), Allocator(sizes(numbers), illegal=True)
    wrong = set[Reason]()

    def alphabet(here: Beside[Move]) -> Iterator[Move]:
        assert isinstance(here.form, Packed)
        yield from legal_moves(here)
        refused = evolve(here, form=Packed(illegal, here.form.state))
        for move in illegal.moves:
            assert isinstance(refused.form, Packed)
            found, _ = taken(here.state, steps(move, here.state))
            if move.kind not in BATCH_FAULTS:
                assert refused.form.applies(move) == (not legal(found)), (here.state, move)
            if refused.form.applies(move):
                assert refused.take(move) is None, (here.state, move)
                wrong.update(refused.form.reasons(move))

    states, transitions = every_transition(beside(instance), alphabet)

    assert states == len(every_state(plan(numbers)))
    assert transitions > len(instance.moves)
    slots = {Reason.SLOT_RANGE, Reason.SLOT_UNUSED, Reason.SLOT_USED}
    assert {*slots, Reason.BATCH_POSITIONS} == wrong


PLANTS = {
    "a refusal is missing": ("_judge", lambda *given: judged(*given, factor=0)),
    "another reason": ("_judge", lambda *given: judged(*given, factor=2)),
    "not in the alphabet": ("_judge", lambda *given: (~JUDGE(*given)[0], JUDGE(*given)[1])),
    "nothing is done": ("_effect", lambda _self, states, _move: states),
}
JUDGE: Callable[..., tuple[Flags, Masks]] = Allocator._judge


def judged(instance: Allocator, states: States, move: Move, *, factor: int) -> tuple[Flags, Masks]:
    """The guards, with other masks of reasons for clones."""
    applies, masks = JUDGE(instance, states, move)
    return applies, masks * np.uint64(factor if move.kind == "clone" else 1)


@pytest.mark.parametrize("plant", PLANTS)
def test_wrong_bytes_are_found(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in a guard or an effect does not pass the harness."""
    monkeypatch.setattr(Allocator, *PLANTS[plant])

    with pytest.raises(AssertionError):
        every_transition(beside(Allocator(sizes(MORE_SLOTS_THAN_PAGES))), legal_moves)


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
        if taken(state, actions)[0]:
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


@pytest.mark.deep
def test_keys_of_canonical_states_are_equal_exactly_for_equal_states() -> None:
    """With open pages, at sizes whose states have no key in 64 bits otherwise."""
    instance = Allocator(sizes((16, 4, 4, 4)), open_pages=True)
    states = instance.initial()
    rng = np.random.default_rng(0)
    for _ in range(400):  # a random walk from states that are kept
        move = instance.moves[rng.integers(len(instance.moves))]
        some = states[rng.integers(len(states), size=64)]
        states = np.unique(np.concatenate([states, instance.expand(some, move).after]), axis=0)
    canonical = np.unique(instance.canonical(states), axis=0)

    assert 500 < len(canonical) == len(np.unique(instance.keys(canonical))) < len(states)
    with pytest.raises(InvalidInput, match="a state in 64 bits"):
        Allocator(instance.geometry)


def least(instance: Allocator, state: States) -> bytes:
    """The least of a state's forms, by every order of slots and the first mention of pages."""
    orders = permutations(range(instance.geometry.slots))
    return min(bytes(instance._renamed(state[None], order)[0]) for order in orders)


@pytest.mark.parametrize("numbers", deep_after(1, [((3, 4, 1, 2),), ((4, 3, 2, 2),)]))
def test_a_canonical_state_is_the_least_of_all_orders_of_slots(numbers: Sizes) -> None:
    """Orders that are left out, of other lengths or of slots without pages, would not be less."""
    instance = Allocator(sizes(numbers))
    states = every_state(plan(numbers))[::7]

    canonical = instance.canonical(states)
    assert [least(instance, state) for state in states] == [bytes(one) for one in canonical]


def test_every_order_of_slots_is_tried() -> None:
    """A state with different slots has one canonical form, in whichever order they are given."""
    slots = ((3, (0, 1)), (2, (0,)), None)
    instance = Allocator(sizes((3, 3, 2, 2)))
    given = [
        compact(instance, (slots[a], slots[b], slots[c])) for a, b, c in permutations(range(3))
    ]

    assert 1 == len(np.unique(instance.canonical(np.concatenate(given)), axis=0))
