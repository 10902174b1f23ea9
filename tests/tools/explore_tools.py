"""Tools for the tests of exploration: plans, whole explorations, and a pool without workers."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from conformance.cli.graphs import Progress
from conformance.exploration.graph import Graph
from conformance.exploration.instances import Instance
from conformance.exploration.packed_search import Broken, Plan, explore
from conformance.exploration.packed_states import NO_PAGE, UNUSED, Allocator, Expansion, States
from conformance.exploration.search import Search, Wrong
from spec.state import State
from spec.vocabulary import Geometry

Sizes = tuple[int, int, int, int]
"""Pages, slots, page size, pages per sequence."""
Slots = tuple[tuple[int, tuple[int, ...]] | None, ...]
"""Length and row of each slot, None where it is unused."""


def sizes(numbers: Sizes) -> Geometry:
    """A geometry from four numbers."""
    pages, slots, page_size, pages_per_seq = numbers
    return Geometry(pages=pages, slots=slots, page_size=page_size, pages_per_seq=pages_per_seq)


def plan(numbers: Sizes, *, open_pages: bool = False, **rest: Any) -> Plan:
    """A plan for the allocator instance."""
    return Plan(instance=Allocator(sizes(numbers), open_pages=open_pages), **rest)


def silent(done: float, note: str) -> None:
    """Discard the update."""


def explored(chosen: Plan) -> tuple[Graph, Broken | None]:
    """A complete exploration, and the broken clause if there is one."""
    graph = Graph()
    return graph, explore(chosen, graph, update=silent)


def searched(chosen: Instance, *, most_states: int = 0) -> tuple[Search, Wrong | None]:
    """A whole search."""
    search = Search(chosen, Graph())
    return search, search.run(update=silent, most_states=most_states)


def after(chosen: Instance, *names: str) -> State:
    """The state after these moves, by name."""
    moves, state = {move.name: move for move in chosen.moves}, chosen.initial()
    for name in names:
        action = moves[name].action(state)
        assert action is not None
        state = chosen.machine.step(state, action)
    return state


@cache
def every_state(chosen: Plan) -> States:
    """All states of a plan, by number; explored once and shared, so not to be written to."""
    found: list[States] = []

    def visit(states: States, first: int, number: int, _: Expansion) -> None:
        assert first <= sum(map(len, found))
        if number == 0:
            found.append(states)

    assert explore(chosen, Graph(), visit=visit, update=silent) is None
    states = np.concatenate(found)
    states.setflags(write=False)
    return states


def compact(instance: Allocator, slots: Slots, counts: tuple[int, ...] | None = None) -> States:
    """One packed state from rows. counts: the counts; derived from the rows if not given."""
    width, pages = instance.geometry.pages_per_seq, instance.geometry.pages
    lengths = [UNUSED if slot is None else slot[0] for slot in slots]
    rows = [() if slot is None else slot[1] for slot in slots]
    padded = [page for row in rows for page in (*row, *(NO_PAGE,) * (width - len(row)))]
    counted = [sum(row.count(page) for row in rows) for page in range(pages)]
    return np.array([[*lengths, *padded, *(counted if counts is None else counts)]], np.uint8)


def renamed(instance: Allocator, states: States, seed: int) -> States:
    """Each state with its pages and slots renamed at random, one by one."""
    rng = np.random.default_rng(seed)
    geometry, changed = instance.geometry, states.copy()
    lengths, rows, counts = instance.parts(states)
    new_lengths, new_rows, new_counts = instance.parts(changed)
    for at in range(len(states)):
        order, names = rng.permutation(geometry.slots), rng.permutation(geometry.pages)
        known = np.append(names, [NO_PAGE] * (256 - geometry.pages))
        new_lengths[at], new_rows[at] = lengths[at, order], known[rows[at, order]]
        new_counts[at, names] = counts[at]
    return changed


class NoWorkers:
    """A process pool that works in this process, so that patches are effective in it."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> "NoWorkers":
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, work: Callable[[Any], Any], pieces: Iterable[Any]) -> Iterator[Any]:
        """Like the builtin."""
        return map(work, pieces)


def work_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make searches work in this process."""
    monkeypatch.setattr("conformance.exploration.search.ProcessPoolExecutor", NoWorkers)


def save_after(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Make runs save their checkpoint so often; below 0 after every level."""
    monkeypatch.setattr(Progress.save, "__kwdefaults__", {"every": seconds})
