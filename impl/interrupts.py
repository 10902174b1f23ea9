"""Deferral of keyboard interrupts until the result of a call is stored.

CPython checks for signals when a call returns, and before its result is stored. The state of an
engine is donated to the call, so that an interrupt there would lose it. Blocking the signal for
this thread is not enough: another thread of the process takes it, and the handler still runs in
this one. So the handler itself is replaced for the time of the call.
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

    An exception of that handler is raised here, and the result of `work` is then lost, so `work`
    itself must store what has to be kept. Handlers run in the main thread only: in another thread,
    or if Python does not handle SIGINT, `work` is called and nothing else is done.
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
            _restore(previous)
        finally:
            if held:
                previous(held[-1], sys._getframe())  # noqa: SLF001 - the frame of delivery


def _restore(handler: Callable[[int, FrameType | None], object]) -> None:
    """Install a handler of SIGINT, also if the handler of another signal runs first and raises."""
    try:
        _signal.signal(_signal.SIGINT, handler)
    except BaseException:
        _signal.signal(_signal.SIGINT, handler)
        raise
