"""Ctrl-C as an exception that is raised only where our own Python code can handle it.

A KeyboardInterrupt inside jax, which calls back into Python while it traces and compiles, unwinds
compiled code in the middle of its work, and the process dies of a segmentation fault. So the
exception is raised when the function that called jax reaches its next line. SIGTERM means the same.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, Never

from attrs import define

NATIVE: Final = frozenset({"jax", "jaxlib"})
"""Packages whose code is not interrupted."""
AGAIN_SECONDS: Final = 0.02
"""The delay before a signal that was lost in a finalizer is sent again."""


@define
class _State:
    """raised: an interrupt is pending. A second one would disturb the handling of the first."""

    raised: bool = False


_state: Final = _State()


def listen() -> None:
    """Handle SIGINT and SIGTERM of this process, once; called in its main thread.

    A second signal asks for more than that: then `supervisor` ends the process.
    """
    _state.raised = False
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _as_interrupt)
    sys.unraisablehook = _unraisable


@contextmanager
def ignored() -> Iterator[None]:
    """Ignore Ctrl-C in the block: a second one must not cost the result of the first."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread, which alone is interrupted
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def took_the_place_of_one(error: BaseException | None) -> bool:
    """Whether the exception replaced an interrupt, such as in a library's `finally`."""
    seen = set[int]()
    while error is not None and id(error) not in seen:  # a chain of causes may lead back to itself
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def caller_of_native(frame: FrameType | None) -> FrameType | None:
    """The function that called into NATIVE; None if no function of NATIVE is running."""
    caller = None
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in NATIVE:
            caller = frame.f_back
        frame = frame.f_back
    return caller


def _interrupt(_number: int, frame: FrameType | None) -> None:
    if _state.raised or _is_handling_a_lost_one(frame):
        return
    _state.raised = True
    caller = caller_of_native(frame)
    if caller is None:
        raise KeyboardInterrupt

    def arrived(*_: object) -> Never:
        sys.settrace(None)
        raise KeyboardInterrupt

    caller.f_trace = arrived  # its next line
    sys.settrace(_trace_nothing)  # without a trace function none of its lines is traced


def _trace_nothing(*_: object) -> None:
    """A trace function that does not trace further calls."""


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


def _is_handling_a_lost_one(frame: FrameType | None) -> bool:
    """Whether `_unraisable` is running, which sends the signal again itself."""
    while frame is not None:
        if frame.f_code is _unraisable.__code__:
            return True
        frame = frame.f_back
    return False


def _unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """Send the signal again that was lost in a finalizer."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _state.raised = False
        later = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
        later.daemon = True
        later.start()
    else:
        sys.__unraisablehook__(unraisable)
