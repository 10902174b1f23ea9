"""One short history that calls every entry point of an engine, at any geometry.

It compiles the jitted functions before time is measured, and is itself checked in lockstep.
"""

from conformance.history import History
from conformance.protocol import Action
from conformance.rungs.registry import KITS
from spec import ladder


def warmup(actions: frozenset[type]) -> History:
    """The warm-ups of the rungs of an engine that offers these actions, without other actions."""
    names = ladder.machine_for(actions).names
    steps = (step for kit in KITS if kit.rung in names for step in kit.warmup)
    return tuple(step for step in steps if not isinstance(step, Action) or type(step) in actions)
