"""Noticing a step that never returns, even from inside compiled code.

An alarm interrupts Python, and the step becomes a finding that can be shrunk. Compiled code cannot
be interrupted: for that a thread watches, reports the history as it stands, and ends the process.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from types import FrameType
from typing import Final

from attrs import frozen

from conformance.history import Step
from spec.vocabulary import InvalidInput

STEP_SECONDS: Final = 15.0
"""How long one step may take."""
FIRST_SECONDS: Final = 40.0
"""How long a step of the warm-up may take: it compiles what it calls."""
LARGE_SECONDS: Final = 180.0
"""How long a step may take with a large pool: any of the first steps compiles, and slowly."""
GRACE_SECONDS: Final = 3.0
"""How much longer the thread waits than the alarm."""


@frozen(kw_only=True)
class Patience:
    """How many seconds a step may take. first: one of the warm-up, which may compile."""

    step: float = STEP_SECONDS
    first: float = FIRST_SECONDS

    def after_warm_up(self, *, here: bool, warm_up: float) -> float:
        """What a step of a shorter history may take: here everything is compiled by now.

        here: in this process. A hang ends another one, and the next compiles again. warm_up: what
        all steps of the warm-up took, that process included.
        """
        return self.step if here else self.step + min(warm_up, self.first)


def patience_of(seconds: float) -> Patience:
    """The patience of who gives a step so many seconds. A warm-up has FIRST_SECONDS at least:
    what compiles does not hang. Raises InvalidInput.
    """
    if not 0 < seconds < math.inf:
        raise InvalidInput(
            "the seconds of a step",
            seen=seconds,
            allowed="a finite number, more than 0",
            remedy="Change it.",
        )
    return Patience(step=seconds, first=max(FIRST_SECONDS, seconds))


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
