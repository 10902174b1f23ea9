"""The registry of rung records, in the order of the ladder, and tables derived from them."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from conformance.history import History, Step
from conformance.protocol import Action, Result
from conformance.rungs import (
    admission,
    chunks,
    flights,
    lifecycle,
    pages,
    preemption,
    prefix,
    rollback,
    scheduling,
    sharing,
    window,
)
from conformance.rungs.record import ActionKit, DrawRule, RungKit
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import Reason

KITS: Final[tuple[RungKit, ...]] = (
    pages.KIT,
    sharing.KIT,
    rollback.KIT,
    window.KIT,
    prefix.KIT,
    lifecycle.KIT,
    scheduling.KIT,
    chunks.KIT,
    preemption.KIT,
    admission.KIT,
    flights.KIT,
)
ACTIONS: Final[Mapping[type, ActionKit[Any]]] = {
    kind: kit for rung in KITS for kind, kit in rung.actions.items()
}
"""The record of each action, by class."""
CORNERS: Final[Mapping[str, tuple[str, ...]]] = {
    name: needs for rung in KITS for name, needs in rung.corners.items()
}
"""The corner states. An engine must offer one action of each group to reach the state."""
DRIVEN_BY: Final[Mapping[str, tuple[type, ...]]] = {
    clause: drivers for rung in KITS for clause, drivers in rung.driven.items()
}
"""The clauses that apply only to an engine that offers one of these actions."""
WARMUP: Final[History] = tuple(step for rung in KITS for step in rung.warmup)
LEVELS: Final[tuple[RungKit, ...]] = tuple(rung for rung in KITS if rung.needs)
"""The rungs that have a level of the fuzzer, which is a state machine of its own."""


@cache
def rules(level: str, names: tuple[str, ...]) -> Mapping[str, DrawRule]:
    """The rules that these rungs contribute to a level, by name."""
    return {
        name: rule
        for rung in KITS
        if rung.rung in names
        for name, rule in rung.rules.get(level, {}).items()
        if rung.replaced.get(name) not in names
    }


def corners(before: State, action: Action, after: State) -> Iterator[str]:
    """The corner states that an action has reached, given the states before and after it."""
    for rung in KITS:
        yield from rung.always(before, action, after)
    yield from ACTIONS[type(action)].corners(before, action, after)


def refused_corners(state: State, action: Action, reasons: frozenset[Reason]) -> Iterator[str]:
    """The corner states that an action has reached that was refused for these reasons."""
    for rung in KITS:
        yield from rung.refused(state, action, reasons)


def simpler_steps(step: Step) -> Iterator[Step]:
    """Smaller forms of a step; none if it has none."""
    kit = ACTIONS.get(type(step))
    if kit is not None:
        yield from kit.simpler(step)


def legal_results(
    machine: Machine, before: State, action: Action, after: State
) -> tuple[Result, ...]:
    """The results that an action which is done may return; empty if it has none.

    after: with the pages that the engine took, since a plan names them.
    """
    return ACTIONS[type(action)].results(machine, before, action, after)


def clause_of(step: object, clause: str) -> str:
    """The clause that a difference after a step violates: `clause`, unless the step names one."""
    kit = ACTIONS.get(type(step))
    return (kit and kit.state_clause) or clause
