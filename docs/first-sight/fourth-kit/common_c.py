"""Helpers of the scripts: drive a machine of the specification or our engine, and report."""

import sys

from spec import ladder
from spec.vocabulary import CleanupMode, Limits, Refused, default_limits


def start(machine, geometry, *, limits=None, cleanup=CleanupMode.INCREMENTAL, **capacity):
    """The initial state of a machine."""
    limits = limits or default_limits(geometry)
    return machine.initial(geometry, limits, cleanup, **capacity)


def go(machine, state, *actions):
    """Take actions that must be done."""
    for action in actions:
        state = machine.step(state, action)
    return state


def why(machine, state, action):
    """The names of the reasons for which an action is refused, sorted."""
    return sorted({refusal.reason.name for refusal in machine.refusals(state, action)})


def engine(geometry, *, limits=None, cleanup=CleanupMode.INCREMENTAL):
    """Our engine behind its adapter."""
    from conformance.engines.ours import make

    return make(geometry, limits or default_limits(geometry), cleanup)


def apply(made, action):
    """The result of an action of an engine, or the names of the reasons of its refusal."""
    try:
        return made.apply(action)
    except Refused as error:
        return sorted(reason.name for reason in error.reasons)


def report(*checks):
    """Print (what, expected, seen) and exit with status 1 if one differs."""
    wrong = 0
    for what, expected, seen in checks:
        wrong += expected != seen
        print(f"{'WRONG' if expected != seen else 'right'}: {what}: expected {expected}, seen {seen}")
    sys.exit(1 if wrong else 0)


__all__ = ("Limits", "apply", "engine", "go", "ladder", "report", "start", "why")
