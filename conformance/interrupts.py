"""Ctrl-C as an exception that is raised only where Python code of ours can take it.

A KeyboardInterrupt inside of jax, which calls back into Python while it traces and compiles, leaves
compiled code in the middle of its work: the process dies of a segmentation fault. So the signal
waits until no function of such a package is running. SIGTERM means the same as SIGINT.
"""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Final

NATIVE: Final = frozenset({"jax", "jaxlib"})
"""Packages that are not interrupted."""
AGAIN_SECONDS: Final = 0.02
"""How long the signal waits before the next try."""


def listen() -> None:
    """Handle SIGINT and SIGTERM of this process; called in its main thread."""
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _as_interrupt)
    sys.unraisablehook = _unraisable


def _interrupt(_number: int, frame: FrameType | None) -> None:
    if runs_native_code(frame):
        _again()
    else:
        raise KeyboardInterrupt


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


def runs_native_code(frame: FrameType | None) -> bool:
    """Whether a function of NATIVE is among those that are running."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in NATIVE:
            return True
        frame = frame.f_back
    return False


def _again() -> None:
    later = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
    later.daemon = True
    later.start()


def _unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """An interrupt that fell into a finalizer is lost there: it comes again."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _again()
    else:
        sys.__unraisablehook__(unraisable)
