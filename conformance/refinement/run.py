"""Exploration and refinement in one pass: each transition found is checked on the engine."""

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import numpy as np
from attrs import asdict, define, field

from conformance.exploration.graph import Graph
from conformance.exploration.instances import PACKED, Instance, instance
from conformance.exploration.packed_search import (
    Plan,
    explore,
    history_of,
    moves_to,
    named,
)
from conformance.exploration.packed_states import NO_PAGE, Allocator, Expansion, Move, States
from conformance.exploration.search import Search, told
from conformance.lockstep.watchdog import Watchdog
from conformance.refinement import allocator, cells, contents, names
from conformance.refinement.vmapped import Checker, Takes, Tally
from spec.vocabulary import CleanupMode, Geometry

ALLOCATOR_BATCH: Final = 1 << 14
RENAMED_CHUNK: Final = 1 << 12
"""The number of states that are renamed at once."""
Update = Callable[[float, str], None]


Small = tuple[str, Geometry, CleanupMode]

SMALL: Final[tuple[Small, ...]] = tuple(
    (
        name,
        Geometry(pages=pages, slots=slots, page_size=page_size, pages_per_seq=width, window=window),
        cleanup,
    )
    for name, (pages, slots, page_size, width, window), cleanup in (
        ("sharing", (3, 2, 2, 2, None), CleanupMode.INCREMENTAL),
        ("sharing", (3, 3, 1, 2, None), CleanupMode.INCREMENTAL),
        ("lifecycle", (2, 2, 2, 1, None), CleanupMode.INCREMENTAL),
        ("lifecycle", (2, 2, 1, 2, None), CleanupMode.INCREMENTAL),
        ("scheduling", (1, 1, 4, 1, None), CleanupMode.INCREMENTAL),
        ("scheduling", (1, 2, 4, 1, None), CleanupMode.INCREMENTAL),
        ("scheduling", (2, 2, 3, 1, None), CleanupMode.NONE),
        ("rollback", (2, 1, 2, 3, None), CleanupMode.INCREMENTAL),
        ("rollback", (1, 2, 4, 1, None), CleanupMode.NONE),
        ("window", (3, 1, 2, 3, 2), CleanupMode.INCREMENTAL),
        ("chunks", (2, 1, 2, 2, None), CleanupMode.NONE),
        ("preemption", (2, 2, 1, 2, None), CleanupMode.NONE),
        ("flights", (2, 1, 2, 2, None), CleanupMode.NONE),
        ("prefix", (2, 2, 1, 2, None), CleanupMode.INCREMENTAL),
    )
)
"""Rungs and geometries that take seconds, and together reach the states that bugs need."""


def _nothing(*_: object) -> None:
    """Do nothing."""


@define
class Refinement:
    """The results of a run: the explored graph, the counts of checks, and the first mismatch.

    names: the counts of the checks that the engine does not look at names. broken: the violation by
    the specification itself, if there is one. history: the moves up to and including the first
    mismatch, as text. names_history: those up to the first step that looks at names.
    """

    graph: Graph = field(factory=Graph)
    tally: Tally = field(factory=Tally)
    names: Tally = field(factory=Tally)
    broken: str | None = None
    history: tuple[str, ...] = ()
    names_history: tuple[str, ...] = ()
    looped_per_second: float = 0.0

    @property
    def extra(self) -> dict[str, Any]:
        """The data that a checkpoint keeps besides the graph."""
        return {"tally": asdict(self.tally), "names": asdict(self.names)}


def allocator_checker(
    plan: Plan, run: Refinement, *, sample: int, seed: int, watchdog: Watchdog | None = None
) -> Checker:
    """The checker of the transitions of the allocator instance."""
    return Checker(
        allocator.kinds(allocator.setup_of(plan.instance.geometry)),
        size=ALLOCATOR_BATCH,
        sample=sample,
        seed=seed,
        tally=run.tally,
        watchdog=watchdog,
    )


def blind_checker(
    plan: Plan, run: Refinement, *, seed: int, watchdog: Watchdog | None = None
) -> Checker:
    """The checker that the allocator instance does not look at names."""
    return Checker(
        allocator.blind_kinds(allocator.setup_of(plan.instance.geometry)),
        size=ALLOCATOR_BATCH,
        sample=0,
        seed=seed,
        tally=run.names,
        watchdog=watchdog,
    )


def cells_checker(
    chosen: Instance, run: Refinement, *, sample: int, seed: int, watchdog: Watchdog | None = None
) -> Checker:
    """The checker of transitions with contents.

    It is compiled without optimisation, since most of the time is spent elsewhere.
    """
    return Checker(
        contents.kinds(contents.setup_of(chosen)),
        size=cells.BATCH,
        sample=sample,
        seed=seed,
        tally=run.tally,
        optimise=False,
        watchdog=watchdog,
    )


def blind_cells_checker(
    chosen: Instance, run: Refinement, *, seed: int, watchdog: Watchdog | None = None
) -> Checker:
    """The checker that an instance with contents does not look at names."""
    return Checker(
        contents.blind_kinds(contents.setup_of(chosen)),
        size=cells.BATCH,
        sample=0,
        seed=seed,
        tally=run.names,
        optimise=False,
        watchdog=watchdog,
    )


def refine_small(small: Small, run: Refinement, taker: Takes | None) -> None:
    """Explore one of SMALL, both alphabets; `taker`, or a checker, gets the transitions."""
    name, geometry, cleanup = small
    if name == PACKED:
        plan = Plan(instance=Allocator(geometry), illegal=True)
        refine_allocator(plan, run, taker or allocator_checker(plan, run, sample=0, seed=0))
    else:
        chosen = instance(name, geometry, cleanup)
        checker = taker or cells_checker(chosen, run, sample=0, seed=0)
        refine_cells(chosen, run, checker, illegal=True)


def refine_allocator(
    plan: Plan,
    run: Refinement,
    checker: Takes,
    *,
    update: Update = _nothing,
    level_done: Callable[[], None] = _nothing,
) -> None:
    """Explore the allocator instance, and hand every transition to the checker."""

    def visit(states: States, first: int, number: int, found: Expansion) -> None:
        asked, move = plan.moves[number]
        entry = allocator.ENTRIES[move.kind]
        checker.add(entry, allocator.transitions(asked, states, first, move, number, found))

    try:
        broken = explore(plan, run.graph, visit=visit, update=update, level_done=level_done)
        checker.finish()
    finally:  # a mismatch that was found before an interruption has its history too
        if run.tally.first is not None:
            state, move = run.tally.first
            run.history = history_of(plan, run.graph, state, plan.moves[move][1])
    if broken is not None:
        run.broken = f"{broken.clause} after {', '.join(broken.history)}"


def refine_renamed(
    plan: Plan,
    run: Refinement,
    checker: Takes,
    blind: Takes,
    *,
    seed: int,
    update: Update = _nothing,
    level_done: Callable[[], None] = _nothing,
) -> None:
    """Explore the allocator instance up to renaming, and hand on the steps of renamed states.

    checker: gets every legal action in each renaming of a state, and the illegal ones in the first.
    blind: gets every action with the names of that one.
    """
    visit = _Renamed(plan, checker, blind, seed).visit
    try:
        broken = explore(plan, run.graph, visit=visit, update=update, level_done=level_done)
        checker.finish()
        blind.finish()
    finally:
        turns = names.renamings(plan.instance.geometry)
        if run.tally.first is not None:
            at, number = run.tally.first
            move = plan.moves[number][1]
            run.history = _named_history(plan, run.graph, seed, divmod(at, turns), move)
        if run.names.first is not None:
            at, number = run.names.first
            slots = next(names.drawn(seed, at, 1, plan.instance.geometry)).slots[0]
            move = named(plan.moves[number][1], tuple(slots.tolist()))
            run.names_history = _named_history(plan, run.graph, seed, (at, 0), move)
    if broken is not None:
        run.broken = f"{broken.clause} after {', '.join(broken.history)}"


class _Renamed:
    """The states of a piece of the search under each of their renamings, one after another."""

    def __init__(self, plan: Plan, checker: Takes, blind: Takes, seed: int) -> None:
        self._plan, self._seed = plan, seed
        self._checker, self._blind = checker, blind
        self._states = plan.instance.initial()
        self._numbers: Any = np.zeros(1, int)
        self._first = next(names.drawn(seed, 0, 1, plan.instance.geometry))

    def visit(self, states: States, first: int, number: int, found: Expansion) -> None:
        """Hand on a move of these states, and of the same states renamed."""
        if number == 0:
            self._meet(states, first)
        asked, move = self._plan.moves[number]
        entry = allocator.ENTRIES[move.kind]
        own = allocator.transitions(asked, states, first, move, number, found)
        self._blind.add(entry, allocator.with_names(own, self._first, own.state - first))
        chosen = slice(len(states) if asked.illegal else None)
        others, numbers = self._states[chosen], self._numbers[chosen]
        stepped = asked.expand(others, move)
        made = allocator.transitions(asked, others, 0, move, number, stepped)
        self._checker.add(entry, made._replace(state=numbers[made.state]))

    def _meet(self, states: States, first: int) -> None:
        """Rename the states of the next piece."""
        instance = self._plan.instance
        drawn = [*names.drawn(self._seed, first, len(states), instance.geometry)]
        self._first = drawn[0]
        self._states = np.concatenate(
            [instance.named(states, one.slots, one.pages) for one in drawn]
        )
        numbers = (first + np.arange(len(states))) * len(drawn)
        self._numbers = np.concatenate([numbers + turn for turn in range(len(drawn))])


def _named_history(
    plan: Plan, graph: Graph, seed: int, at: tuple[int, int], move: Move
) -> tuple[str, ...]:
    """A shortest history to a state in one of its renamings, its rows there, and a move.

    The history gives the state up to the names of pages; it is injected with the rows.
    """
    instance, (state, turn) = plan.instance, at
    one = next(islice(names.drawn(seed, state, 1, instance.geometry), turn, None))
    taken, reached = moves_to(plan, graph, state), instance.initial()
    for each in taken:
        reached = instance.expand(reached, each).after
    injected = instance.named(instance.canonical(reached), one.slots, one.pages)
    rows = [row[row != NO_PAGE].tolist() for row in instance.parts(injected)[1][0]]
    slots = tuple(one.slots[0].tolist())
    return (*(str(named(each, slots)) for each in taken), f"rows {rows}", str(move))


def refine_cells(
    chosen: Instance,
    run: Refinement,
    checker: Takes,
    *,
    illegal: bool,
    blind: Takes | None = None,
    seed: int = 0,
    update: Update = _nothing,
    level_done: Callable[[], None] = _nothing,
    most_states: int = 0,
) -> None:
    """Explore an instance with contents, and hand every transition to the checker.

    blind: for an instance with open names; the steps are then those of renamed states, see
    `cells.OtherNames`, with names drawn from the seed.
    """
    search = Search(chosen, run.graph)
    most = 0 if blind is None else cells.MOST_ENCODED
    own = cells.OwnNames(chosen, checker, run.tally, illegal=illegal, most=most)
    visitor = own if blind is None else cells.OtherNames(own, blind, run.names, seed)
    try:
        wrong = search.run(
            update=update,
            visit=visitor.visit,
            level_done=cells.before(visitor.flush, level_done),
            most_states=most_states,
        )
        visitor.flush()
        for one in (checker, blind):
            if one is not None:
                one.finish()
    finally:  # a mismatch that was found before an interruption has its history too
        _tell_histories(chosen, run, seed, renamed=blind is not None)
    if wrong is not None:
        run.broken = f"{wrong.clause}: {wrong.message} after {told(chosen, run.graph, wrong)}"


def _tell_histories(chosen: Instance, run: Refinement, seed: int, *, renamed: bool) -> None:
    """Set the histories of the first mismatches."""
    turns = names.renamings(chosen.geometry) if renamed else 1
    if run.tally.first is not None:
        (state, turn), move = divmod(run.tally.first[0], turns), run.tally.first[1]
        run.history = _told(chosen, run.graph, state, move, turn if renamed else None, seed)
    if run.names.first is not None:
        run.names_history = _told(chosen, run.graph, *run.names.first, 0, seed)


def _told(
    chosen: Instance, graph: Graph, state: int, move: int, turn: int | None, seed: int
) -> tuple[str, ...]:
    """A shortest history to a state, and a move. turn: the renaming, which stands before it."""
    numbers = (*graph.history(state), move)
    told = tuple(str(chosen.moves[number]) for number in numbers)
    if turn is None:
        return told
    one = next(islice(cells.namings(seed, state, chosen), turn, None))
    tokens = f", tokens {list(one.tokens)}" if turn else ""
    return (
        *told[:-1],
        f"new names of slots {list(one.slots)}, pages {list(one.pages)}{tokens}",
        told[-1],
    )
