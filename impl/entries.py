"""The entry points: each is compiled once per setup, and an engine calls no other step.

Source: docs/sources.md, "Prefill and decode" and "Cleanup modes".
"""

from typing import Final

from impl.steps.ahead import begin, launch
from impl.steps.allocation import allocate
from impl.steps.flights import deliver, dispatch, retire
from impl.steps.outputs import take_outputs
from impl.steps.preemption import preempt, replay
from impl.steps.prefill import prefill_requests
from impl.steps.prefix import drop, evict, hit, merge, publish, share
from impl.steps.queueing import enqueue, pack, purge
from impl.steps.reset import reset_logical, reset_physical
from impl.steps.rollback import commit, propose, truncate
from impl.steps.round import generate, mixed_round, run_round
from impl.steps.sequences import assign, clone, free, free_finished, reserve
from impl.steps.statistics import stats
from impl.steps.window import release
from impl.steps.writing import write

__all__ = (
    "allocate",
    "assign",
    "begin",
    "clone",
    "commit",
    "deliver",
    "dispatch",
    "drop",
    "enqueue",
    "evict",
    "free",
    "free_finished",
    "generate",
    "hit",
    "launch",
    "merge",
    "mixed_round",
    "pack",
    "preempt",
    "prefill_requests",
    "propose",
    "publish",
    "purge",
    "release",
    "replay",
    "reserve",
    "reset_logical",
    "reset_physical",
    "retire",
    "run_round",
    "share",
    "stats",
    "take_outputs",
    "truncate",
    "write",
)

AHEAD: Final = ("begin", "launch")
"""The entry points that do two actions in one call: see `impl.ahead`."""

ALL: Final = tuple(name for name in __all__ if name != "stats")
"""Every entry point that takes and returns a state; `stats` only reads one."""

NAMES: Final = tuple(name for name in ALL if name not in AHEAD)
"""Those that do one action."""
