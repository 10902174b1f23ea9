"""Shared helpers: print expected and seen, and exit with 1 if one pair differs."""

import sys

from spec.vocabulary import InvalidInput, Refused, default_limits


def go(machine, state, *actions):
    """Step through actions, without the edges."""
    for action in actions:
        state = machine.step(state, action)
    return state


def reasons(machine, state, action):
    """The reasons for which the specification refuses an action, by name."""
    return sorted({refusal.reason.name for refusal in machine.refusals(state, action)})


def engine_of(geometry, cleanup=None):
    """The adapter of our engine."""
    from conformance.engines.ours import make
    from spec.vocabulary import CleanupMode

    return make(geometry, default_limits(geometry), cleanup or CleanupMode.INCREMENTAL)


def answer(engine, action):
    """The names of the reasons with which the engine refuses an action; empty if it does it."""
    try:
        engine.apply(action)
    except Refused as refused:
        return sorted({reason.name for reason in refused.reasons})
    return []


def rejected(work):
    """Whether a call raises InvalidInput."""
    try:
        work()
    except InvalidInput:
        return True
    return False


def judge(*pairs):
    """pairs: (what, expected, seen)."""
    wrong = False
    for what, expected, seen in pairs:
        wrong |= expected != seen
        print(f"{'ok   ' if expected == seen else 'WRONG'} {what}: expected {expected}, seen {seen}")
    sys.exit(int(wrong))
