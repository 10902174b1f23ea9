"""Breadth-first search of an instance with the specification itself.

Worker processes expand the states in pieces: a worker takes every move of its states, checks every
clause, and climbs the ladder on every transition. States are numbered in breadth-first order, which
does not depend on the workers.
"""

import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final

import numpy as np
from attrs import evolve, frozen

from conformance.exploration import progress, renaming
from conformance.exploration.graph import Graph, names
from conformance.exploration.instances import Instance, kind_of, legal
from spec import clauses, pool, view
from spec.cells import blank
from spec.machines import actions as act
from spec.machines.actions import Action
from spec.rung import LadderBroken, Machine
from spec.state import State
from spec.vocabulary import CleanupMode, Reason, Refusal

PIECE: Final = 32
"""The number of states in one piece of work."""
WORKERS: Final = 2


@frozen
class Step:
    """A move in a state. mask: the reasons of a refusal, one bit each; 0 is done, and `after` is
    the successor. legal: whether the move belongs to the alphabet there.
    """

    move: int
    mask: int
    legal: bool
    after: State | None


@frozen
class Wrong:
    """A clause that the specification itself violates.

    state: the number of the state. move: the number of the move; None if the state violates it.
    """

    clause: str
    message: str
    state: int
    move: int | None


@frozen
class Expanded:
    """All moves of one state, and its first violation: (clause, message, move)."""

    steps: tuple[Step, ...]
    wrong: tuple[str, str, int | None] | None


Visit = Callable[[int, State, Step, int], None]
"""Called with the number of a state, the state, the step, and the number of the successor."""


class Search:
    """A search of an instance. states: the states found so far, by number."""

    def __init__(self, chosen: Instance, graph: Graph) -> None:
        self.instance, self.graph = chosen, graph
        self.states = _rebuilt(chosen, graph)
        self._numbers = dict[Hashable, int]()
        for number, state in enumerate(self.states):
            self._register(number, state)

    def run(
        self,
        *,
        update: Callable[[float, str], None],
        visit: Visit | None = None,
        level_done: Callable[[], None] = lambda: None,
        most_states: int = 0,
    ) -> Wrong | None:
        """Continue until no state is new or the bound is reached; the first violation, or None."""
        started = time.perf_counter()
        with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as workers:
            while not self.graph.complete and not 0 < most_states <= self.graph.states:
                first = sum(self.graph.levels[:-1])
                parents, moves = list[int](), list[int]()
                for number, found in enumerate(self._expand(workers, first), first):
                    if found.wrong is not None:
                        clause, message, move = found.wrong
                        return Wrong(clause, message, number, move)
                    for step in found.steps:
                        after = self._meet(number, step, parents, moves)
                        if visit is not None:
                            visit(number, self.states[number], step, after)
                    seconds = time.perf_counter() - started
                    update(
                        len(self.states), f"{self.graph.transitions} transitions, {seconds:.0f} s"
                    )
                self.graph.add_level(np.array(parents, np.int32), np.array(moves, np.int32))
                level_done()
        return None

    def _expand(self, workers: ProcessPoolExecutor, first: int) -> Iterator[Expanded]:
        frontier = self.states[first:]
        pieces = [
            (self.instance, frontier[at : at + PIECE]) for at in range(0, len(frontier), PIECE)
        ]
        for piece in workers.map(expand, pieces):
            yield from piece

    def _key(self, state: State) -> Hashable:
        if self.instance.open_names:
            return renaming.open_key(self.instance.machine, state)
        return renaming.key(self.instance.machine, state) if self.instance.open_pages else state

    def _register(self, number: int, state: State) -> None:
        """Let a state be found by the keys of all states that it stands for."""
        found = [self._key(state)]
        if self.instance.open_names:
            found += renaming.orbit(self.instance.machine, state)
        for key in found:
            self._numbers.setdefault(key, number)

    def _meet(self, number: int, step: Step, parents: list[int], moves: list[int]) -> int:
        """Count a step and return the number of its successor."""
        move = self.instance.moves[step.move]
        if step.legal:
            self.graph.transitions += 1
        else:
            self.graph.illegal += 1
        self.graph.outcomes[f"{kind_of(move)}: {names(step.mask)}"] += 1
        if step.after is None:
            return number
        known = self._numbers.get(self._key(step.after), len(self.states))
        if known == len(self.states):
            self._register(known, step.after)
            self.states.append(step.after)
            parents.append(number)
            moves.append(step.move)
        return known


def asks_progress(chosen: Instance) -> bool:
    """Whether PROG is asked in each state: whether requests can be preempted."""
    return "preemption" in chosen.machine.names


def expand(piece: tuple[Instance, list[State]]) -> list[Expanded]:
    """All moves of some states; runs in a worker."""
    chosen, states = piece
    return [_expand_one(chosen, state) for state in states]


def _expand_one(chosen: Instance, state: State) -> Expanded:
    steps: list[Step] = []
    seen = view.of(chosen.machine, state)
    for clause, message in clauses.violations(seen):
        return Expanded((), (clause, message, None))
    if not _all_returned(chosen.machine, state):
        return Expanded((), ("CONS", "freeing everything leaves pages in use", None))
    if asks_progress(chosen):
        stalled = progress.violation(chosen.machine, state)
        if stalled is not None:
            return Expanded((), ("PROG", stalled, None))
    for number, move in enumerate(chosen.moves):
        action = move.action(state)
        if action is None:
            continue
        found = chosen.machine.refusals(state, action)
        after = None if found else chosen.machine.effect(state, action)
        mask = sum(1 << reason.value for reason in {refusal.reason for refusal in found})
        steps.append(Step(number, mask, legal(found), after))
        wrong = _refusal_wrong(chosen.machine, state, action, found) if found else None
        if after is not None:
            wrong = _transition_wrong(chosen, state, seen, action, after)
        if wrong is not None:
            return Expanded(tuple(steps), (*wrong, number))
    return Expanded(tuple(steps), None)


def _transition_wrong(
    chosen: Instance, state: State, seen: view.View, action: Action, after: State
) -> tuple[str, str] | None:
    """The violation of a step that is done: a clause, an edge of the ladder, or a wrong reset."""
    for clause, message in clauses.step_violations(seen, view.of(chosen.machine, after)):
        return clause, message
    if isinstance(action, act.Reset) and after._replace(flights=()) != chosen.initial():
        return "RESET", "a reset does not give the initial state"
    try:
        chosen.machine.climb(state, action)
    except LadderBroken as broken:
        return "ladder", str(broken)
    return None


def _refusal_wrong(
    machine: Machine, state: State, action: Action, found: frozenset[Refusal]
) -> tuple[str, str] | None:
    """Check that an action refused for lack of pages needs more of them.

    In a larger pool it must be done, and take a page that this pool does not have.
    """
    if {refusal.reason for refusal in found} != {Reason.OUT_OF_PAGES}:
        return None
    roomy = _roomy(state)
    if machine.refusals(roomy, action):
        return "ATOMIC", "refused for lack of pages, and in a larger pool as well"
    after = machine.effect(roomy, action)
    taken = max((page for one in after.sequences if one for page in one.pages), default=-1)
    if taken < state.geometry.pages:
        return "ATOMIC", f"refused for lack of pages, yet takes no page above {taken}"
    return None


def _roomy(state: State) -> State:
    """The same state in a larger pool, with one more page for each entry of every row.

    Finished sequences are not cleaned up there, so that the pages taken stay visible.
    """
    sizes = state.geometry
    more = evolve(sizes, pages=sizes.slots * sizes.pages_per_seq)
    larger = evolve(sizes, pages=sizes.pages + more.pages)
    return state._replace(
        geometry=larger,
        cells=state.cells + blank(more),
        counts=state.counts + (0,) * more.pages,
        indexed=state.indexed and state.indexed + (None,) * more.pages,
        cleanup=CleanupMode.NONE,
    )


def _all_returned(machine: Machine, state: State) -> bool:
    for slot, sequence in enumerate(state.sequences):
        if sequence is not None:
            state = machine.effect(state, act.Free(slot))
    counts = state.counts
    return pool.free_pages(counts) == tuple(range(state.geometry.pages))


def _rebuilt(chosen: Instance, graph: Graph) -> list[State]:
    """The states that a graph numbers, by taking its moves again."""
    states, moves = [chosen.initial()], chosen.moves
    for parents, taken in zip(graph.parents, graph.moves, strict=True):
        for parent, move in zip(parents.tolist(), taken.tolist(), strict=True):
            action = moves[move].action(states[parent])
            assert action is not None
            states.append(chosen.machine.effect(states[parent], action))
    return states


def told(chosen: Instance, graph: Graph, wrong: Wrong) -> str:
    """A shortest history that ends in this violation, as text."""
    numbers = (*graph.history(wrong.state), *(() if wrong.move is None else (wrong.move,)))
    return ", ".join(str(chosen.moves[number]) for number in numbers)
