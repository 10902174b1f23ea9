"""Shrinking of a history with a last step that never returns from compiled code.

Such a step cannot be interrupted, so each shorter history is taken in a process of its own, which
ends itself when the step does not return.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from attrs import evolve

from conformance.files import histories
from conformance.files.histories import Recorded
from conformance.fuzzing import counterexamples
from conformance.fuzzing.shrinking import shrink_with
from conformance.history import History
from conformance.lockstep.run import Finding, replay
from conformance.lockstep.watchdog import Watchdog
from conformance.runtime import processes

STEP_SECONDS: Final = 12.0
"""How long a step may take, compilation included, before it counts as hanging."""
SHRINK_SECONDS: Final = 100.0
HANGS: Final = 1
PROCESS: Final = "conformance.seeded_bugs.scoring.hangs"


def shrunk(recorded: Recorded) -> Recorded | None:
    """The shortest history found that hangs; None if the given one, replayed, does not hang."""

    def again(history: History) -> Finding | None:
        return Finding(history, "PROG", "") if _hangs(evolve(recorded, history=history)) else None

    last = again(recorded.history[-1:]) or again(recorded.history)
    if last is None:
        return None
    best = shrink_with(again, last, seconds=SHRINK_SECONDS)
    return evolve(recorded, history=best.history)


def _hangs(recorded: Recorded) -> bool:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "history.jsonl"
        path.write_text(histories.dump(recorded), encoding="utf-8")
        status = processes.finish(processes.start(PROCESS, str(path)), seconds=None)
    return status == HANGS


def main(path: Path) -> int:
    """Replay one history: exit status HANGS if a step hangs, otherwise 0."""
    recorded = histories.load(path)
    with (
        counterexamples.planted(recorded.plant),
        Watchdog(lambda _history, _message: os._exit(HANGS)) as watchdog,
    ):
        make = counterexamples.maker(recorded)
        found = replay(make, recorded.history, seconds=STEP_SECONDS, watchdog=watchdog)
    return HANGS if found is not None and found.clause == "PROG" else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
