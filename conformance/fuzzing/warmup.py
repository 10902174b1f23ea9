"""One short history that calls every entry point of an engine, at any geometry.

It compiles what is jitted before time is measured, and is itself checked in lockstep.
"""

from conformance.history import History
from conformance.protocol import Action
from conformance.rungs.registry import WARMUP


def warmup(actions: frozenset[type]) -> History:
    """The history without the actions that an engine does not offer."""
    return tuple(step for step in WARMUP if not isinstance(step, Action) or type(step) in actions)
