"""A search ends at its bound, however states are counted and in whatever pieces they are taken."""

from collections.abc import Callable, Iterator
from itertools import accumulate

import numpy as np
import pytest
from deep import deep_after
from explore_tools import explored, plan, silent, sizes, work_alone

from conformance.exploration import packed_search
from conformance.exploration.graph import Graph
from conformance.exploration.instances import instance
from conformance.exploration.packed_states import States
from conformance.exploration.search import Search

SIZES = (2, 2, 2, 1)


def packed(most_states: int, *, open_pages: bool = False) -> Graph:
    """The graph of packed states at this bound."""
    graph, _ = explored(plan(SIZES, most_states=most_states, open_pages=open_pages))
    return graph


def renamed(most_states: int) -> Graph:
    """The same up to renaming."""
    return packed(most_states, open_pages=True)


def whole(most_states: int) -> Graph:
    """The graph of states with contents at this bound."""
    graph = Graph()
    chosen = instance("lifecycle", sizes((1, 1, 2, 1)))
    Search(chosen, graph).run(update=silent, most_states=most_states)
    return graph


@pytest.mark.parametrize("explore", [packed, renamed, whole])
def test_a_search_ends_with_the_level_that_reaches_its_bound(
    explore: Callable[[int], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bound of every number of states ends the search with the first level that has so many."""
    work_alone(monkeypatch)
    levels = explore(0).levels
    totals = [*accumulate(levels)]

    for bound in range(1, totals[-1] + 1):
        reached = next(depth for depth, total in enumerate(totals) if total >= bound)
        assert levels[: reached + 1] == explore(bound).levels


def led_to(history: tuple[str, ...]) -> States:
    """The packed state after these moves."""
    chosen = plan(SIZES).instance
    moves, state = {str(move): move for move in chosen.moves}, chosen.initial()
    for name in history:
        state = chosen.expand(state, moves[name]).after
    return state


@pytest.mark.parametrize("chunk", deep_after(1, [1, 3, packed_search.CHUNK]))
def test_a_violation_has_the_history_of_its_state(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever in a level it is, a history of the state is told, and the move that shows it."""
    monkeypatch.setattr(packed_search, "CHUNK", chunk)
    places = list[tuple[States, int]]()
    graph = Graph()
    packed_search.explore(
        plan(SIZES),
        graph,
        visit=lambda states, first, number, _: places.extend(
            (state, first + at) for at, state in enumerate(states) if number == 0
        ),
        update=silent,
    )

    def found(states: States) -> Iterator[tuple[str, int]]:
        at = np.flatnonzero((states == wanted).all(axis=1))
        yield from (("RC", int(index)) for index in at)

    for wanted, number in places:
        with monkeypatch.context() as planted:
            planted.setattr(packed_search, "state_violations", lambda _, states: found(states))
            _, of_state = explored(plan(SIZES))
        with monkeypatch.context() as planted:
            planted.setattr(
                packed_search, "move_violations", lambda _, states, _move, _found: found(states)
            )
            _, of_move = explored(plan(SIZES))
        depth = len(graph.history(number))

        assert of_state is not None
        assert of_move is not None
        assert (depth, wanted.tolist()) == (
            len(of_state.history),
            led_to(of_state.history)[0].tolist(),
        )
        assert (wanted.tolist(), str(plan(SIZES).moves[0][1])) == (
            led_to(of_move.history[:-1])[0].tolist(),
            of_move.history[-1],
        )


@pytest.mark.parametrize("chunk", [1, 7])
def test_the_graph_does_not_depend_on_the_pieces(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels and outcomes of packed states are the same, however many are taken at once."""
    at_once, _ = explored(plan((3, 2, 2, 2)))

    monkeypatch.setattr(packed_search, "CHUNK", chunk)
    in_pieces, _ = explored(plan((3, 2, 2, 2)))

    assert (at_once.levels, at_once.outcomes) == (in_pieces.levels, in_pieces.outcomes)
