"""The exploration of rung sharing: its counts, its two page policies, and planted bugs."""

from collections.abc import Callable

import numpy as np
import pytest
from explore_tools import compact, every_state, explored, plan, silent

from conformance.exploration import packed_states
from conformance.exploration.cross_check import PINNED, Pinned
from conformance.exploration.graph import Graph
from conformance.exploration.packed_clauses import move_violations
from conformance.exploration.packed_search import Broken, Plan, explore, history_of
from conformance.exploration.packed_states import NO_PAGE, Allocator, Expansion, Move, States
from spec.vocabulary import Reason

LARGEST = max(PINNED, key=lambda pinned: pinned.states)
OTHERS = [pinned for pinned in PINNED if pinned is not LARGEST]
Effect = Callable[[Allocator, States, Move], States]


def name(pinned: Pinned) -> str:
    """The sizes as a short name."""
    sizes = pinned.geometry
    return f"{sizes.pages}-{sizes.slots}-{sizes.page_size}-{sizes.pages_per_seq}"


def words(history: str) -> tuple[str, ...]:
    """The moves of a history as text."""
    return tuple(move.replace(",", ", ") for move in history.split())


def refused(graph: Graph) -> int:
    """How many actions were refused."""
    return sum(times for name, times in graph.outcomes.items() if not name.endswith(": done"))


@pytest.mark.parametrize("pinned", OTHERS, ids=name)
def test_the_counts_are_those_of_spin(pinned: Pinned) -> None:
    """The search finds the states and transitions of the cross-check, and every clause holds."""
    graph, broken = explored(Plan(instance=Allocator(pinned.geometry)))

    assert (None, True) == (broken, graph.complete)
    assert (pinned.states, pinned.transitions) == (graph.states, graph.transitions)
    assert (graph.transitions, 0) == (sum(graph.outcomes.values()), graph.illegal)


@pytest.mark.deep
def test_the_counts_of_the_largest_are_those_of_spin() -> None:
    """The largest geometry has the counts of SPIN, all refusals among the transitions."""
    graph, broken = explored(Plan(instance=Allocator(LARGEST.geometry)))

    assert (None, True) == (broken, graph.complete)
    assert (513_716, 4_621_560) == (graph.states, graph.transitions)
    assert (513_716, 4_621_560) == (LARGEST.states, LARGEST.transitions)
    assert (1_459_152, 21) == (refused(graph), graph.depth)


@pytest.mark.parametrize(
    ("numbers", "states", "transitions", "depth"),
    [
        ((4, 3, 2, 2), 96, 848, 7),
        ((6, 3, 2, 3), 328, 2_932, 9),
        ((8, 3, 4, 4), 4_574, 67_886, 11),
        pytest.param((16, 3, 4, 4), 5_474, 81_386, 15, marks=pytest.mark.deep),
        pytest.param((16, 4, 4, 4), 87_993, 1_753_320, 20, marks=pytest.mark.deep),
    ],
    ids=str,
)
def test_the_counts_up_to_renaming(
    numbers: tuple[int, int, int, int], states: int, transitions: int, depth: int
) -> None:
    """With an open choice of pages there are few states up to renaming."""
    graph, broken = explored(plan(numbers, open_pages=True))

    assert (None, True) == (broken, graph.complete)
    assert (states, transitions, depth) == (graph.states, graph.transitions, graph.depth)


def test_everything_illegal_is_refused() -> None:
    """Illegal moves are tried in every state, are refused, and leave the legal counts alone."""
    legal, _ = explored(plan((4, 3, 2, 2)))
    both, broken = explored(plan((4, 3, 2, 2), illegal=True))

    assert broken is None
    assert (6_780, 60_816, 282_324) == (both.states, both.transitions, both.illegal)
    assert both.illegal == refused(both) - refused(legal)
    assert legal.levels == both.levels


def test_a_bounded_exploration_is_not_complete() -> None:
    """It ends with the level that reaches the bound, and the graph is not complete."""
    graph, broken = explored(plan((4, 3, 2, 2), most_states=100))

    assert broken is None
    assert not graph.complete
    assert sum(graph.levels[:-1]) < 100 <= graph.states < 6_780
    assert graph.expanded == graph.depth


def test_what_is_visited_is_what_is_counted() -> None:
    """A visitor gets every state in the order of the numbers, and every transition."""
    chosen, seen, first_of = plan((5, 2, 3, 2), illegal=True), [0, 0], [0]

    def visit(states: States, first: int, number: int, found: Expansion) -> None:
        seen[chosen.moves[number][0].illegal] += int(found.applies.sum())
        if number == 0:
            assert first == first_of[0]
            first_of[0] += len(states)

    graph = Graph()
    assert explore(chosen, graph, visit=visit, update=silent) is None
    assert [graph.transitions, graph.illegal] == seen
    assert graph.states == first_of[0]


@pytest.mark.parametrize("open_pages", [False, True])
def test_a_history_leads_to_its_state(*, open_pages: bool) -> None:
    """The moves of a history lead from the initial state to its state, with the same slot names."""
    chosen = plan((4, 3, 2, 2), open_pages=open_pages, most_states=3_000)
    instance, states = chosen.instance, every_state(chosen)
    graph, _ = explored(chosen)
    moves = {str(move): move for move in instance.moves}
    depths = np.repeat(range(graph.depth + 1), graph.levels)
    for number in range(0, len(states), 5 if open_pages else 29):
        history, state = history_of(chosen, graph, number), instance.initial()
        for word in history:
            found = instance.expand(state, moves[word])
            assert (found.applies[0], found.reasons[0]) == (True, 0)
            state = found.after
        assert len(history) == depths[number]
        wanted = states[number : number + 1]
        if open_pages:
            assert (instance.parts(state)[0] == instance.parts(wanted)[0]).all()
            state = instance.canonical(state)
        assert (state == wanted).all()


right = Allocator._effect


def clone_without_counts(instance: Allocator, states: States, move: Move) -> States:
    """The pages of a clone are not counted again."""
    after = right(instance, states, move)
    if move.kind == "clone":
        instance.parts(after)[2][:] = instance.parts(states)[2]
    return after


def clone_shares_all(instance: Allocator, states: States, move: Move) -> States:
    """A clone shares the partial page, too, and counts it."""
    if move.kind != "clone":
        return right(instance, states, move)
    after = states.copy()
    lengths, rows, counts = instance.parts(after)
    lengths[:, move.other], rows[:, move.other] = lengths[:, move.slot], rows[:, move.slot]
    packed_states._count(counts, rows[:, move.other], 1)
    return after


def free_keeps_the_row(instance: Allocator, states: States, move: Move) -> States:
    """Counts fall, and the row stays."""
    after = right(instance, states, move)
    if move.kind == "free":
        instance.parts(after)[1][:, move.slot] = instance.parts(states)[1][:, move.slot]
    return after


def free_keeps_a_count(instance: Allocator, states: States, move: Move) -> States:
    """The row is gone, and nothing is counted down."""
    after = right(instance, states, move)
    if move.kind == "free":
        instance.parts(after)[2][:] = instance.parts(states)[2]
    return after


def extend_takes_a_live_page(instance: Allocator, states: States, move: Move) -> States:
    """Page 0 is taken, even if a slot holds it."""
    if move.kind != "extend":
        return right(instance, states, move)
    after = right(instance, states, move)
    lengths, rows, counts = instance.parts(after)
    entry = (lengths[:, move.slot].astype(int) - 1) // instance.geometry.page_size
    index = np.arange(len(after))
    grown = (rows != instance.parts(states)[1]).any(axis=(1, 2))
    counts[index[grown], rows[index, move.slot, entry][grown]] -= 1
    rows[index[grown], move.slot, entry[grown]] = 0
    counts[grown, 0] += 1
    return after


def extend_forgets_a_token(instance: Allocator, states: States, move: Move) -> States:
    """Of two tokens one is appended."""
    after = right(instance, states, move)
    if move.kind == "extend" and move.other == 2:
        instance.parts(after)[0][:, move.slot] -= 1
    return after


def reserve_moves_a_neighbour(instance: Allocator, states: States, move: Move) -> States:
    """A reservation swaps two pages of another slot."""
    after = right(instance, states, move)
    if move.kind == "reserve":
        _, rows, _ = instance.parts(after)
        full = (rows[:, 1 - move.slot] != NO_PAGE).all(axis=1)
        rows[full, 1 - move.slot] = rows[full, 1 - move.slot, ::-1]
    return after


PLANTED: tuple[tuple[Effect, str, str], ...] = (
    (clone_without_counts, "RC", "reserve(0) extend(0,1) clone(0,1)"),
    (clone_shares_all, "SHARE", "reserve(0) extend(0,1) clone(0,1)"),
    (free_keeps_the_row, "FREED", "reserve(0) extend(0,1)"),
    (free_keeps_a_count, "FREED", "reserve(0) extend(0,1)"),
    (extend_takes_a_live_page, "WX", "reserve(0) extend(0,2) extend(0,1)"),
    (extend_forgets_a_token, "sharing to pages", "reserve(0) extend(0,2)"),
    (reserve_moves_a_neighbour, "FRAME", "reserve(1) extend(1,2) extend(1,1) reserve(0)"),
)


@pytest.mark.parametrize(
    ("bug", "clause", "history"), PLANTED, ids=[row[0].__name__ for row in PLANTED]
)
def test_a_planted_bug_is_found_by_a_shortest_history(
    bug: Effect, clause: str, history: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug gives its clause, and a history of the least length."""
    monkeypatch.setattr(Allocator, "_effect", bug)

    graph, broken = explored(plan((3, 2, 2, 2)))

    assert Broken(clause, words(history)) == broken
    assert not graph.complete


@pytest.mark.parametrize("open_pages", [False, True])
def test_a_successor_without_an_entry_is_found_where_its_key_hides_it(*, open_pages: bool) -> None:
    """Lengths stand for the missing entries in a key with open pages, so ROW is checked first."""
    chosen = plan((3, 2, 2, 2), open_pages=open_pages)
    instance, free = chosen.instance, Move("free", 1)
    states = compact(instance, ((3, (0, 1)), (2, (2,))))
    found = instance.expand(states, free)
    rows, counts = instance.parts(found.after)[1:]
    rows[0, 0, 0], counts[0, 0] = NO_PAGE, 0

    told = [clause for clause, _ in move_violations(instance, states, free, found)]
    right = instance.expand(states, free).after
    assert ["FRAME", "ROW"][: 1 + open_pages] == told
    assert open_pages != (instance.keys(found.after) != instance.keys(right))[0]


def test_a_planted_bug_is_found_up_to_renaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """The history is one run, whose slots have the names of the state that it ends in."""
    monkeypatch.setattr(Allocator, "_effect", reserve_moves_a_neighbour)

    _, broken = explored(plan((3, 2, 2, 2), open_pages=True))

    history = ("reserve(0)", "extend(0, 2)", "extend(0, 1)", "reserve(1)")
    assert Broken("FRAME", history) == broken


@pytest.mark.parametrize("reason", ["TOO_LONG", "OUT_OF_PAGES"])
def test_a_wrong_guard_is_found(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal too many is ATOMIC, with the first state in which a successor exists."""
    judge = Allocator._judge

    def refuse(
        instance: Allocator, states: States, move: Move
    ) -> tuple[packed_states.Flags, packed_states.Masks]:
        applies, found = judge(instance, states, move)
        if move.kind == "clone":
            found[instance.parts(states)[0][:, move.slot] == 3] |= packed_states.bit(Reason[reason])
        return applies, found

    monkeypatch.setattr(Allocator, "_judge", refuse)
    _, broken = explored(plan((3, 2, 2, 2)))

    history = ("reserve(0)", "extend(0, 2)", "extend(0, 1)", "clone(0, 1)")
    assert Broken("ATOMIC", history) == broken


def test_a_bug_with_a_known_successor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong counts are found in a known successor, though counts are no part of a state's key."""

    def miscount(instance: Allocator, states: States, move: Move) -> States:
        after = right(instance, states, move)
        if move.kind == "clone" and move.other == 0:
            instance.parts(after)[2][:, -1] += instance.parts(states)[0][:, 1] == 0
        return after

    monkeypatch.setattr(Allocator, "_effect", miscount)
    _, broken = explored(plan((3, 2, 2, 2)))

    assert Broken("RC", ("reserve(1)", "clone(1, 0)")) == broken
