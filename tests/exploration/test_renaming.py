"""States up to renaming of pages: nothing is lost by taking one of them for all."""

from collections.abc import Hashable
from itertools import permutations
from typing import Any, Final

import pytest
from attrs import evolve

from conformance.exploration import renaming
from conformance.exploration.instances import EXPLORED, Instance, instance
from spec.state import State
from spec.vocabulary import INVALID, Geometry

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
        sequences=tuple(
            one
            and evolve(one, row=tuple(page if page == INVALID else names[page] for page in one.row))
            for one in state.sequences
        ),
        cells=tuple(state.cells[page] for page in order),
        counts=tuple(state.counts[page] for page in order),
    )


@pytest.mark.parametrize("rung", [*EXPLORED])
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
    others = [name for name in machine.components if name not in {"sequences", "cells", "counts"}]
    for name in others:
        another: Any = {name: (getattr(chosen.initial(), name), "another")}
        state = chosen.initial()._replace(**another)
        assert renaming.key(machine, chosen.initial()) != renaming.key(machine, state)
