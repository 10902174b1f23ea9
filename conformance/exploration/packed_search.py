"""Breadth-first search of the packed states of the allocator instance.

A move is taken in many states of a level at once. New states are found by sorting, so that memory
and time grow with the number of states. A `Visit` is called with each batch of transitions.
"""

import time
from collections.abc import Callable
from typing import Final

import numpy as np
from attrs import evolve, frozen

from conformance.exploration.graph import Graph, Ints, names
from conformance.exploration.packed_clauses import move_violations, state_violations
from conformance.exploration.packed_states import Allocator, Expansion, Keys, Move, States

CHUNK: Final = 1 << 16
"""The number of states in which a move is taken at once."""

Visit = Callable[[States, int, int, Expansion], None]
"""Called with the states of a batch, the first one's number, the move's number, the expansion."""


@frozen
class Broken:
    """A clause that the specification itself violates, and a shortest history that shows it."""

    clause: str
    history: tuple[str, ...]


@frozen(kw_only=True)
class Plan:
    """The parameters of a search.

    illegal: also try the illegal alphabet; every move of it must be refused. most_states: stop
    after the level that reaches this many; 0 for no bound. chunk: in so many states at once.
    """

    instance: Allocator
    illegal: bool = False
    most_states: int = 0
    chunk: int = CHUNK

    @property
    def open_pages(self) -> bool:
        """Whether states are taken up to renaming of pages and slots."""
        return self.instance.open_pages

    @property
    def moves(self) -> tuple[tuple[Allocator, Move], ...]:
        """Every move with its alphabet; the index of a move is its number."""
        wrong = evolve(self.instance, illegal=True)
        asked = (self.instance, wrong) if self.illegal else (self.instance,)
        return tuple((alphabet, move) for alphabet in asked for move in alphabet.moves)


def explore(
    plan: Plan,
    graph: Graph,
    *,
    visit: Visit | None = None,
    update: Callable[[float, str], None],
    level_done: Callable[[], None] = lambda: None,
) -> Broken | None:
    """Continue the search of `graph` until no state is new or the bound is reached.

    Returns the first violation by the specification itself; None if there is none.
    """
    frontier, known, first = rebuild(plan, graph)
    started = time.perf_counter()
    while len(frontier) and not (plan.most_states and graph.states >= plan.most_states):
        found = _Level(plan, known)
        for start in range(0, len(frontier), plan.chunk):
            chunk = frontier[start : start + plan.chunk]
            for clause, at in state_violations(plan.instance, chunk):
                return broken(plan, graph, clause, first + start + at)
            for number, (asked, move) in enumerate(plan.moves):
                expansion = asked.expand(chunk, move)
                for clause, at in move_violations(asked, chunk, move, expansion):
                    return broken(plan, graph, clause, first + start + at, move)
                _count(graph, move, expansion, illegal=asked.illegal)
                if visit is not None:
                    visit(chunk, first + start, number, expansion)
                if not asked.illegal:
                    found.meet(expansion, number, first + start)
            seconds = time.perf_counter() - started
            update(graph.states, f"{graph.transitions} transitions, {seconds:.0f} s")
        first += len(frontier)
        frontier, known, parents, moves = found.close()
        graph.add_level(parents, moves)
        level_done()
    return None


def rebuild(plan: Plan, graph: Graph) -> tuple[States, Keys, int]:
    """The frontier, the sorted keys of every known state, the number of the frontier's first."""
    states = plan.instance.initial()
    keys, first, number = [plan.instance.keys(states)], 0, 1
    for parents, moves in zip(graph.parents, graph.moves, strict=True):
        after = np.zeros((len(parents), states.shape[1]), np.uint8)
        for index, move in enumerate(plan.instance.moves):
            chosen = np.flatnonzero(moves == index)
            after[chosen] = plan.instance.expand(states[parents[chosen] - first], move).after
        states = plan.instance.canonical(after) if plan.open_pages else after
        keys.append(plan.instance.keys(states))
        first, number = number, number + len(states)
    left = states if graph.expanded <= graph.depth else states[:0]
    return left, np.sort(np.concatenate(keys)), first


def broken(plan: Plan, graph: Graph, clause: str, state: int, move: Move | None = None) -> Broken:
    """A violation with a shortest history to the state, and the move that shows it."""
    return Broken(clause, history_of(plan, graph, state, move))


def history_of(plan: Plan, graph: Graph, state: int, move: Move | None = None) -> tuple[str, ...]:
    """A shortest history to a state, and one further move, as text."""
    taken = moves_to(plan, graph, state)
    return tuple(map(str, (*taken, move) if move else taken))


def moves_to(plan: Plan, graph: Graph, state: int) -> list[Move]:
    """The moves of a shortest history to a state, up to renaming of its pages."""
    taken = [plan.instance.moves[number] for number in graph.history(state)]
    return _in_one_run(plan.instance, taken) if plan.open_pages else taken


def _in_one_run(instance: Allocator, moves: list[Move]) -> list[Move]:
    """The moves of one run, with the slot names of its last canonical state.

    Each of the given moves names the slots of another canonical state.
    """
    state, taken = instance.initial(), list[Move]()
    for move in moves:
        taken.append(named(move, instance.order(state)))
        state = instance.expand(state, taken[-1]).after
    order = instance.order(state)
    last = tuple(order.index(slot) for slot in range(len(order)))
    return [named(move, last) for move in taken]


def named(move: Move, names: tuple[int, ...]) -> Move:
    """The move with its slots renamed; one that is out of range stays."""
    new = dict(enumerate(names))
    other = new.get(move.other, move.other) if move.kind == "clone" else move.other
    return Move(move.kind, new.get(move.slot, move.slot), other)


class _Level:
    """The states that one level's moves reach for the first time."""

    def __init__(self, plan: Plan, known: Keys) -> None:
        self._plan, self._known = plan, known
        self._keys: list[Keys] = []
        self._states: list[States] = []
        self._parents: list[Ints] = []
        self._moves: list[Ints] = []

    def meet(self, expansion: Expansion, move: int, first: int) -> None:
        """Keep the states that a move reaches and that are not known."""
        done = np.flatnonzero(expansion.applies & (expansion.reasons == 0))
        instance = self._plan.instance
        reached = expansion.after[done]
        if self._plan.open_pages:
            reached = instance.canonical(reached)
        keys, index = np.unique(instance.keys(reached), return_index=True)
        place = np.minimum(np.searchsorted(self._known, keys), len(self._known) - 1)
        new = self._known[place] != keys
        self._keys.append(keys[new])
        self._states.append(reached[index[new]])
        self._parents.append((first + done[index[new]]).astype(np.int32))
        self._moves.append(np.full(int(new.sum()), move, np.int32))

    def close(self) -> tuple[States, Keys, Ints, Ints]:
        """The new states, all known keys, and the parent and the move of each new state."""
        keys, index = np.unique(np.concatenate(self._keys), return_index=True)
        known = np.concatenate([self._known, keys])
        known.sort(kind="stable")
        parents = np.concatenate(self._parents)[index]
        return (
            np.concatenate(self._states)[index],
            known,
            parents,
            np.concatenate(self._moves)[index],
        )


def _count(graph: Graph, move: Move, expansion: Expansion, *, illegal: bool) -> None:
    tried = int(expansion.applies.sum())
    graph.illegal += tried if illegal else 0
    graph.transitions += 0 if illegal else tried
    masks, times = np.unique(expansion.reasons[expansion.applies], return_counts=True)
    for mask, number in zip(masks.tolist(), times.tolist(), strict=True):
        graph.outcomes[f"{move.kind}: {names(mask)}"] += number
