"""Noticing a step that never returns, even from inside compiled code.

An alarm interrupts Python, and the step becomes a finding that can be shrunk. Compiled code cannot
be interrupted: for that a thread watches, reports the history as it stands, and ends the process.
"""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from types import FrameType
from typing import Final

from conformance.steps import Step

STEP_SECONDS: Final = 15.0
"""How long one step may take."""
FIRST_SECONDS: Final = 40.0
"""How long a step of the warm-up may take: it compiles what it calls."""
GRACE_SECONDS: Final = 3.0
"""How much longer the thread waits than the alarm."""


class Hung(Exception):
    """A step took longer than it may."""


def set_alarm(seconds: float) -> None:
    """Raise Hung in the main thread when this time is up; 0 calls it off."""
    if threading.current_thread() is threading.main_thread():  # no alarm can be raised elsewhere
        _listen()
        signal.setitimer(signal.ITIMER_REAL, seconds)


@cache  # asking who listens costs more than a small step
def _listen() -> None:
    signal.signal(signal.SIGALRM, _ring)


def _ring(_number: int, _frame: FrameType | None) -> None:
    raise Hung("a step took longer than it may")


class Watchdog:
    """A thread that calls `on_hang` with the history if a step that began does not end in time."""

    def __init__(self, on_hang: Callable[[tuple[Step, ...], str], None]) -> None:
        self._on_hang = on_hang
        self._history: Sequence[Step] = ()
        self._began = 0.0
        self._due: float | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def begin(self, history: Sequence[Step], seconds: float) -> None:
        """A step, the last of this history, begins and may take this long."""
        self._history, self._began = history, time.monotonic()
        self._due = self._began + seconds + GRACE_SECONDS

    @property
    def waited(self) -> float:
        """Seconds since the last step began."""
        return time.monotonic() - self._began

    def end(self) -> None:
        """The step has ended."""
        self._due = None

    def _watch(self) -> None:
        while not self._closed.wait(0.5):
            due = self._due
            if due is not None and time.monotonic() > due:
                self._on_hang(tuple(self._history), "a step does not return from compiled code")
                return
