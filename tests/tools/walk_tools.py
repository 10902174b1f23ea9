"""Random walks of the specification through the alphabets of several rungs at once."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from conformance.exploration.instances import Instance, instance, kind_of
from conformance.rungs.record import Move
from spec.machines.actions import Action
from spec.state import State
from spec.vocabulary import CleanupMode, Geometry

WALKED: Final = ("lifecycle", "rollback", "scheduling")
"""The rungs whose alphabets are joined: contents, drafts, queue and outputs."""
RARE: Final = (
    *("reset", "free", "free_finished", "purge", "reserve"),
    *("pack", "round", "generate", "take_outputs", "truncate"),
)
"""Moves that are often possible, and lead back or nowhere; they are tried one time in ten."""


def walked(sizes: Geometry) -> Instance:
    """The instance that is walked: its machine has the actions of every alphabet."""
    return instance("rollback", sizes, CleanupMode.NONE)


def walk(sizes: Geometry, seed: int, steps: int) -> Iterator[tuple[State, Action, State]]:
    """A random walk: the state, an action that can be done, and the next state, for each step.

    A kind of move is drawn first, since some kinds have many more moves than others.
    """
    chosen, rng = walked(sizes), np.random.default_rng(seed)
    kinds = dict[str, list[Move]]()
    for name in WALKED:
        for move in instance(name, sizes).moves:
            kinds.setdefault(kind_of(move), []).append(move)
    state, machine = chosen.initial(), chosen.machine
    for _ in range(steps):
        kind = ""
        action = None
        while action is None or machine.refusals(state, action):
            kind = list(kinds)[rng.integers(len(kinds))]
            if kind in RARE and rng.random() < 0.9:
                continue
            action = kinds[kind][rng.integers(len(kinds[kind]))].action(state)
        after = machine.step(state, action)
        yield state, action, after
        state = after
