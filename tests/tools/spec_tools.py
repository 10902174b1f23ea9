"""Tools for tests of the specification: machines in one call, and steps with every check."""

from typing import Any

from attrs import evolve

from spec import clauses, ladder, view
from spec.cells import Cells
from spec.machines import actions as act
from spec.machines.actions import Action, Free
from spec.rung import Machine
from spec.state import State
from spec.table import Entry, Sequence
from spec.vocabulary import CleanupMode, Geometry, Limits, Params, default_limits

ONE = Params(max_new=1)
"""A request for one token."""
MACHINE = ladder.machine("scheduling", "window")
SERVING = ladder.machine("admission", "window")
INDEXING = ladder.machine("preemption", "window", "prefix")
FLYING = ladder.machine("preemption", "window", "prefix", "flights")


def geometry(
    *, pages: int, page_size: int, slots: int, pages_per_seq: int, window: int | None = None
) -> Geometry:
    """A geometry in one call."""
    return Geometry(
        pages=pages, page_size=page_size, slots=slots, pages_per_seq=pages_per_seq, window=window
    )


def limits(sizes: Geometry, **changed: int) -> Limits:
    """The default limits, with some of them changed."""
    standard = default_limits(sizes)
    names = ("queue", "prefill_tokens", "prefill_seqs", "round_tokens", "rounds", "stops")
    kept = {name: getattr(standard, name) for name in (*names, "stop_len", "outputs")}
    return Limits(**{**kept, **changed})


def machine(sizes: Geometry, cleanup: CleanupMode = CleanupMode.NONE, **changed: int) -> State:
    """A new scheduling machine."""
    return MACHINE.initial(sizes, limits(sizes, **changed), cleanup)


def planted(machine: Machine, kind: type, **changed: Any) -> Machine:
    """The machine with another rule for one action."""
    rungs = tuple(
        evolve(rung, rules={**rung.rules, kind: evolve(rung.rules[kind], **changed)})
        if kind in rung.rules
        else rung
        for rung in machine.rungs
    )
    return Machine(rungs, machine.registry)


def grown(slot: int, length: int, *, request: int | None = None) -> tuple[Action, ...]:
    """A prompt of this length, written into a new slot. request: by default the slot."""
    batch = tuple((slot, position) for position in range(length))
    prompt = tuple(range(1, length + 1))
    return (
        act.Reserve(slot),
        act.Assign(slot, prompt, ONE, slot if request is None else request),
        act.Allocate(batch),
        act.Write(batch),
    )


def climb(state: State, *actions: Action) -> State:
    """Take actions, and check every edge of the ladder and every clause at each step."""
    return climb_in(MACHINE, state, *actions)


def climb_in(machine: Machine, state: State, *actions: Action) -> State:
    """The same in another machine."""
    for action in actions:
        after = machine.climb(state, action)
        judge(state, after, machine)
        state = after
    return state


def judge(before: State, after: State, machine: Machine = MACHINE) -> None:
    """Assert that every clause with a predicate holds for a step of the specification."""
    seen = view.of(machine, after)
    wrong = [*clauses.violations(seen), *clauses.step_violations(view.of(machine, before), seen)]
    assert not wrong, wrong
    judge_below(machine, after)


def judge_below(machine: Machine, state: State) -> None:
    """Assert that every state clause holds of the state that each lower machine with pages has."""
    for edge in machine.rungs[-1].edges:
        lower = machine.target(edge)
        if "pages" in lower.names:
            seen = lower.project(edge.abstract(state))
            wrong = [*clauses.violations(view.of(lower, seen))]
            assert not wrong, (lower.names, wrong)
            judge_below(lower, seen)


def span(slot: int, start: int, stop: int) -> tuple[Entry, ...]:
    """The positions from `start` to `stop - 1` of a slot."""
    return tuple((slot, position) for position in range(start, stop))


def counts(state: State) -> tuple[int, ...]:
    """The reference counts."""
    return state.counts


def cells(state: State) -> Cells:
    """The pool."""
    return state.cells


def sequence(state: State, slot: int) -> Sequence:
    """The sequence in a used slot."""
    found = state.sequences[slot]
    assert found is not None
    return found


def rows(state: State) -> tuple[tuple[int, ...] | None, ...]:
    """The row of each slot, None where it is unused."""
    return tuple(None if found is None else found.row for found in state.sequences)


def everything_freed(state: State) -> State:
    """Free every used slot, lowest first."""
    for slot, found in enumerate(state.sequences):
        if found is not None:
            state = MACHINE.step(state, Free(slot))
    return state
