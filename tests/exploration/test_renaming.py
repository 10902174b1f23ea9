"""States up to renaming: nothing is lost by taking one of them for all."""

from collections import Counter
from collections.abc import Hashable
from itertools import permutations
from random import Random
from typing import Any, Final

import pytest
from attrs import evolve
from deep import deep_after
from explore_tools import silent, work_alone

from conformance.exploration import renaming
from conformance.exploration.graph import Graph
from conformance.exploration.instances import EXPLORED, SYMMETRIC, Instance, instance
from conformance.exploration.renaming import Naming
from conformance.exploration.search import Search
from spec.machines import actions as act
from spec.state import Flight, State
from spec.vocabulary import INVALID, Geometry, Params

SIZES = {"page_size": 2, "slots": 2}


def reached(chosen: Instance) -> list[State]:
    """Every state that the moves reach; up to renaming of pages if the instance says so."""
    machine, states = chosen.machine, [chosen.initial()]

    def key(state: State) -> Hashable:
        return renaming.key(machine, state) if chosen.open_pages else state

    known = {key(states[0])}
    for state in states:  # grows as it is walked
        for move in chosen.moves:
            action = move.action(state)
            if action is None or machine.refusals(state, action):
                continue
            after = machine.effect(state, action)
            if key(after) not in known:
                known.add(key(after))
                states.append(after)
    return states


def steps(chosen: Instance, state: State) -> list[Hashable]:
    """For each move why it is refused, or the key of its successor."""
    machine, found = chosen.machine, list[Hashable]()
    for move in chosen.moves:
        action = move.action(state)
        refused = action is not None and machine.refusals(state, action)
        if action is None or refused:
            found.append(refused and frozenset(refusal.reason for refusal in refused))
        else:
            found.append(renaming.key(machine, machine.effect(state, action)))
    return found


@pytest.mark.parametrize(
    ("rung", "sizes", "left_out", "all_states", "states"),
    [
        ("lifecycle", {"pages": 3, "pages_per_seq": 1}, (), 376, 196),
        pytest.param(
            "scheduling",
            {"pages": 3, "pages_per_seq": 2},
            ("enqueue", "allocate", "write"),
            3_943,
            2_336,
            marks=pytest.mark.deep,
        ),
    ],
)
def test_states_that_differ_in_page_names_take_the_same_steps(
    rung: str, sizes: dict[str, int], left_out: tuple[str, ...], all_states: int, states: int
) -> None:
    """The graph up to renaming has each state of the whole graph, with the same steps from it."""
    geometry = Geometry(**SIZES, **sizes)
    whole = instance(rung, geometry, stop_len=2, left_out=left_out)
    smaller = instance(rung, geometry, stop_len=2, left_out=left_out, open_pages=True)
    machine = whole.machine
    kept = {renaming.key(machine, state): state for state in reached(smaller)}
    every = reached(whole)
    wanted = {key: steps(smaller, state) for key, state in kept.items()}

    assert (all_states, states) == (len(every), len(kept))
    assert kept.keys() == {renaming.key(machine, state) for state in every}
    assert all(wanted[renaming.key(machine, state)] == steps(whole, state) for state in every)


FEW: Final = 250
"""So many states are renamed in every way."""


def renamed(state: State, names: tuple[int, ...]) -> State:
    """The state with other names for its pages. names: the new one of each page."""
    order = [names.index(page) for page in range(len(names))]
    return state._replace(
        flights=tuple(
            evolve(
                flight,
                parts=tuple(
                    evolve(part, pages=tuple(names[page] for page in part.pages))
                    for part in flight.parts
                ),
            )
            for flight in state.flights
        ),
        sequences=tuple(
            one
            and evolve(one, row=tuple(page if page == INVALID else names[page] for page in one.row))
            for one in state.sequences
        ),
        cells=tuple(state.cells[page] for page in order),
        counts=tuple(state.counts[page] for page in order),
        indexed=tuple(state.indexed[page] for page in order) if state.indexed else (),
    )


@pytest.mark.parametrize("rung", deep_after(3, reversed(EXPLORED)))
def test_two_states_have_one_key_if_some_renaming_of_pages_makes_them_one(rung: str) -> None:
    """Keys tell the same states apart as every renaming of their pages does, one after another."""
    window = 1 if rung == "window" else None
    chosen = instance(rung, Geometry(**SIZES, pages=3, pages_per_seq=2, window=window))
    machine, states = chosen.machine, dict.fromkeys([chosen.initial()])
    for state in (queue := [*states]):
        for move in chosen.moves:
            action = move.action(state)
            if action is not None and not machine.refusals(state, action) and len(states) < FEW:
                after = machine.effect(state, action)
                if after not in states:
                    states[after] = None
                    queue.append(after)
    every = [renamed(state, names) for state in states for names in permutations(range(3))]

    keys = [renaming.key(machine, state) for state in every]
    orbits = [
        frozenset(renamed(state, names) for names in permutations(range(3))) for state in every
    ]

    assert len(set(orbits)) == len(set(keys)) == len(set(zip(keys, orbits, strict=True)))
    assert len(set(orbits)) < len(set(every))
    named = {"sequences", "cells", "counts", "indexed", "flights"}
    others = [name for name in machine.components if name not in named]
    for name in others:
        another: Any = {name: (getattr(chosen.initial(), name), "another")}
        state = chosen.initial()._replace(**another)
        assert renaming.key(machine, chosen.initial()) != renaming.key(machine, state)
    dispatched = chosen.initial()._replace(flights=(Flight(()),))
    assert renaming.key(machine, chosen.initial()) != renaming.key(machine, dispatched)


Orbit = frozenset[Hashable]


def orbit(chosen: Instance, state: State) -> Orbit:
    """The keys of a state under all names of slots: those of all that differ in names alone."""
    return frozenset(renaming.orbit(chosen.machine, state))


def outcomes(chosen: Instance, state: State) -> Counter[Hashable]:
    """How often a move has an outcome: the reasons of a refusal, or the successor's orbit."""
    machine, found = chosen.machine, Counter[Hashable]()
    for move in chosen.moves:
        action = move.action(state)
        if action is not None:
            refused = machine.refusals(state, action)
            reasons = frozenset(refusal.reason for refusal in refused)
            found[reasons or orbit(chosen, machine.effect(state, action))] += 1
    return found


@pytest.mark.parametrize(
    ("rung", "sizes", "all_states", "states"),
    [
        ("lifecycle", (3, 2, 2, 1), 376, 60),
        ("lifecycle", (3, 3, 1, 1), 86, 10),
        pytest.param("prefix", (2, 2, 1, 3), 387, 112, marks=pytest.mark.deep),
        pytest.param("prefix", (3, 2, 1, 3), 3_165, 302, marks=pytest.mark.deep),
        pytest.param("prefix", (3, 3, 1, 2), 10_251, 404, marks=pytest.mark.deep),
    ],
)
def test_states_that_differ_in_names_alone_take_the_same_steps(
    rung: str,
    sizes: tuple[int, int, int, int],
    all_states: int,
    states: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search up to renaming of pages, slots and tokens has each orbit once, with its steps."""
    work_alone(monkeypatch)
    pages, slots, page_size, width = sizes
    geometry = Geometry(pages=pages, slots=slots, page_size=page_size, pages_per_seq=width)
    whole, smaller = (instance(rung, geometry, open_pages=open_) for open_ in (False, True))
    search = Search(smaller, Graph())
    assert search.run(update=silent) is None

    kept = {orbit(smaller, state): outcomes(smaller, state) for state in search.states}
    every = reached(whole)
    assert (all_states, states) == (len(every), len(search.states))
    assert states == len(kept)
    assert kept.keys() == {orbit(whole, state) for state in every}
    assert all(kept[orbit(whole, state)] == outcomes(whole, state) for state in every)


@pytest.mark.parametrize("rung", SYMMETRIC)
def test_a_renamed_action_has_the_renamed_outcome(rung: str) -> None:
    """In a renamed state it has the same reasons, or a successor that differs in names alone."""
    chosen = instance(rung, Geometry(slots=2, pages=2, page_size=1, pages_per_seq=2))
    machine, rng, done = chosen.machine, Random(0), 0
    for state in rng.sample(reached(chosen), 40):
        naming = Naming(*(tuple(rng.sample(range(most), most)) for most in (2, 2, 8)))
        other = renaming.renamed(state, naming)
        assert orbit(chosen, other) == orbit(chosen, state)
        for move in chosen.moves:
            action = move.action(state)
            if action is None:
                continue
            again = renaming.renamed_action(action, naming)
            refusals, told = machine.refusals(state, action), machine.refusals(other, again)
            assert {one.reason for one in refusals} == {one.reason for one in told}
            if not refusals:
                done += 1
                after = machine.effect(other, again)
                assert orbit(chosen, after) == orbit(chosen, machine.effect(state, action))
    assert done > 100


def test_names_that_an_action_does_not_have_stay() -> None:
    """Ids that are out of range, padding, positions and requests have no other names."""
    naming = Naming((1, 0), (0,), (0, 2, 1))

    def changed(action: Any) -> Any:
        return renaming.renamed_action(action, naming)

    assert act.Allocate(((1, 0), None, (2, 1))) == changed(act.Allocate(((0, 0), None, (2, 1))))
    assert act.Clone(1, None, 2) == changed(act.Clone(0, None, 2))
    params = Params(max_new=1)
    assert act.Assign(0, (2, 1, 9), params, 1, 0) == changed(act.Assign(1, (1, 2, 9), params, 1, 1))
    assert act.Evict((2,), 1) == changed(act.Evict((1,), 1))
    assert act.Hit(0, 1) == changed(act.Hit(1, 1))
    assert act.Reset() == changed(act.Reset())
