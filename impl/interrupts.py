"""An interrupt from the keyboard waits until what a call returns is bound.

CPython looks for signals when a call returns, and before its result is stored. The state of an
engine is donated to the call, so that an interrupt there would leave it nowhere. Blocking the
signal for this thread is not enough: another thread of the process takes it, and the handler still
runs in this one. So the handler itself is exchanged for the time of the call.
"""

import _signal  # type: ignore[import-not-found]  # `signal` wraps it, and is ten times as slow
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


def hold_interrupts(work: Callable[[], T]) -> T:
    """Call `work`, and only then the handler of a SIGINT that came meanwhile.

    What that handler raises is raised here, and what `work` returned is then lost: it binds what
    must stay. Handlers run in the main thread alone, so elsewhere nothing is done; nor is it where
    Python does not handle SIGINT.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return work()
    previous = _signal.getsignal(_signal.SIGINT)
    if not callable(previous):
        return work()
    held: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        held.append(number)

    try:
        _signal.signal(_signal.SIGINT, hold)
        return work()
    finally:
        try:
            _signal.signal(_signal.SIGINT, previous)
        except BaseException:  # the handler of another signal ran first, and raised
            _signal.signal(_signal.SIGINT, previous)
            raise
        if held:
            previous(held[-1], sys._getframe())  # noqa: SLF001 - where it arrives, not where it was
