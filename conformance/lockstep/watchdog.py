"""The watchdog: detects a step that never returns, even one inside compiled code.

An alarm interrupts Python code, and the step becomes a finding that can be shrunk. Compiled code
cannot be interrupted. For that case a thread watches the time and reports the history, so that the
process can be ended.
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
"""Time limit of one step."""
FIRST_SECONDS: Final = 40.0
"""Time limit of a step of the warm-up, which compiles the functions that it calls."""
LARGE_SECONDS: Final = 180.0
"""Time limit of a step with a large pool: any of the first steps may compile, and slowly."""
GRACE_SECONDS: Final = 3.0
"""Time that the thread waits beyond the limit of the alarm."""


@frozen(kw_only=True)
class Patience:
    """Time limits in seconds. step: of one step. first: of a warm-up step, which may compile."""

    step: float = STEP_SECONDS
    first: float = FIRST_SECONDS

    def after_warm_up(self, *, here: bool, warm_up: float) -> float:
        """The time limit, in seconds, of a step while a history is shrunk, after a warm-up.

        here: whether the engine runs in this process, where everything is compiled by now. An
        engine in another process is killed when it hangs, and the next process compiles again.
        warm_up: the seconds that all steps of the warm-up took, start of the process included.
        """
        return self.step if here else self.step + min(warm_up, self.first)


def patience_of(seconds: float) -> Patience:
    """The time limits if one step may take this many seconds. A warm-up step may take at least
    FIRST_SECONDS, since it may compile. Raises InvalidInput.
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
    """A step took longer than its time limit."""


def set_alarm(seconds: float) -> None:
    """Raise Hung in the main thread after this many seconds; 0 cancels the alarm."""
    if threading.current_thread() is threading.main_thread():  # it alone handles signals
        _listen()
        signal.setitimer(signal.ITIMER_REAL, seconds)


@cache  # installing the handler again costs more than a small step
def _listen() -> None:
    signal.signal(signal.SIGALRM, _ring)


def _ring(_number: int, _frame: FrameType | None) -> None:
    raise Hung("a step took longer than its time limit")


class Watchdog:
    """A thread that calls `on_hang` with the history and a message if a step exceeds its time."""

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
        """Start the clock for the last step of this history. seconds: its time limit."""
        self._history, self._began = history, time.monotonic()
        self._due = self._began + seconds + GRACE_SECONDS

    @property
    def waited(self) -> float:
        """Seconds since the last step began."""
        return time.monotonic() - self._began

    def end(self) -> None:
        """Stop the clock: the step has ended."""
        self._due = None

    def _watch(self) -> None:
        while not self._closed.wait(0.5):
            due = self._due
            if due is not None and time.monotonic() > due:
                self._on_hang(tuple(self._history), "a step does not return from compiled code")
                return
