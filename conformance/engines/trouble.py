"""Trouble from outside during a call of the host: Ctrl-C, other signals, and errors of the device.

Ctrl-C comes before the result of a call of the device is stored, alarms when it is, and both before
the caller has it. An error comes before the device has the state. What engine and host promise of
it: docs/serving.md, "Ctrl-C, and errors".
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from types import FrameType
from typing import Any, Final, Never, cast

import jax
import numpy as np
from jax import Array

from conformance.protocol import EngineFailed
from impl.engine import Engine, Stats
from impl.host import Host, HostState
from impl.state import State
from impl.state.packing import Packed

NEVER: Final = 2**31
"""More calls than any work has."""
Ints = np.ndarray[Any, np.dtype[np.int32]]


class Pressed(KeyboardInterrupt):
    """What Ctrl-C raises, if it is ours and not that of a user."""


class Alarm(BaseException):
    """What the handler of another signal raises."""


class TimedOut(Exception):
    """What it raises where it is no more than an error."""


class Failed(Exception):
    """An error of the device, or of the model that runs on it."""


class Trouble(Enum):
    """What comes. An alarm is another signal, whose handler raises."""

    CTRL_C = "Ctrl-C"
    ALARM = "an alarm"
    TIMEOUT = "an alarm that is an error"
    ERROR = "an error before the device has the state"
    IGNORED = "Ctrl-C in a process that ignores it"


RAISED: Final[dict[Trouble, type[BaseException]]] = {
    Trouble.CTRL_C: Pressed,
    Trouble.ALARM: Alarm,
    Trouble.TIMEOUT: TimedOut,
    Trouble.ERROR: Failed,
}
"""What a call raises that meets this trouble."""
ALARMS: Final = frozenset({Trouble.ALARM, Trouble.TIMEOUT})


class RestorableHost(Host):
    """A host that can be brought back to a state."""

    def restore(self, state: HostState) -> None:
        """Bring it to this state."""
        self._state, self._together.broken = state, False


class TroubledEngine(Engine):
    """An engine that is in trouble at one of its calls.

    fails: whether its next call fails on the device. calls: those since `meets` began, as far as
    nothing has come.
    """

    fails: bool = False
    calls: int = 0
    _left: int | None = None
    _trouble: Trouble = Trouble.CTRL_C
    _is_pressed: bool = False

    @contextmanager
    def meets(self, trouble: Trouble, at: int = NEVER) -> Iterator[None]:
        """Be in trouble at the call of this number, and count the calls. In the main thread only.

        The handler of Ctrl-C is a function, or another object that can be called. It puts another
        one in its place, as one that lets the next Ctrl-C end the process. Raises EngineFailed if
        it is not called, or is called with something else, or has another in its place afterwards.
        """
        self.calls, self._left, self._trouble, self._is_pressed = 0, at, trouble, False
        before, pressed = signal.getsignal(signal.SIGINT), False

        def handle(number: int, frame: FrameType | None) -> None:
            nonlocal pressed
            if self._is_pressed:
                self._is_pressed, pressed = False, True
                signal.signal(signal.SIGINT, next_handle)
                if number != signal.SIGINT or not isinstance(frame, FrameType):
                    wrong = f"the handler of Ctrl-C is called with {number!r} and {frame!r}"
                    raise EngineFailed(wrong, clause="ATOMIC")
                raise Pressed
            next_handle(number, frame)

        def next_handle(number: int, frame: FrameType | None) -> None:
            if callable(before):
                before(number, frame)

        first: Any = handle if at // 2 % 2 else partial(handle)
        if trouble is Trouble.IGNORED:
            first = signal.SIG_IGN
        signal.signal(signal.SIGINT, first)
        try:
            yield
        except KeyboardInterrupt as raised:
            if not self._is_pressed:
                raise
            wrong = f"Ctrl-C raises {type(raised).__name__}, and its handler is not called"
            raise EngineFailed(wrong, clause="ATOMIC") from None
        finally:
            self._left = None
            kept = signal.signal(signal.SIGINT, before)
            if kept is not (next_handle if pressed else first):
                name = getattr(kept, "__name__", kept)
                wrong = f"the handler of Ctrl-C is {name} after a call"
                raise EngineFailed(wrong, clause="ATOMIC")

    def stats(self) -> Stats:
        """The statistics."""
        found = super().stats()
        self._pass()
        return found

    def _call(self, name: str, *rest: Any) -> Ints:
        try:
            return super()._call(name, *rest)
        finally:
            if self._trouble in ALARMS:
                self._pass()

    def _pass(self) -> None:
        """Count a call; trouble comes now, or later."""
        if self._left is None:
            return
        self.calls += 1
        if self.calls <= self._left:
            return
        self._left = None
        if self._trouble in {Trouble.CTRL_C, Trouble.IGNORED}:
            self._is_pressed = self._trouble is Trouble.CTRL_C
            signal.raise_signal(signal.SIGINT)
        else:
            raise RAISED[self._trouble]

    def _bind(self, run: Any, rest: tuple[Any, ...]) -> Ints:
        return super()._bind(self._lost if self.fails else partial(self._in_trouble, run), rest)

    def _in_trouble(self, run: Any, *given: Any) -> Any:
        """Call the device; Ctrl-C comes before its result is stored, and an error before it."""
        if self._trouble is Trouble.ERROR:
            self._pass()
        found = run(*given)
        if self._trouble in {Trouble.CTRL_C, Trouble.IGNORED}:
            self._pass()
        return found

    def _lost(self, _weights: object, packed: Packed, *_rest: object) -> Never:
        """Fail with the state in the call, as XLA does, after Ctrl-C if that is due."""
        self.fails = False
        self._pass()
        for leaf in jax.tree.leaves(packed):
            leaf.delete()
        raise Failed


def damaged(state: State) -> State:
    """A state of which no count, id, length or flag is right.

    The pool stays, and what steps in flight hold, which outlives a reset.
    """
    pages = state.pages._replace(cache=())
    wrong = jax.tree.map(_damaged, state._replace(pages=pages))
    kept = wrong.pages._replace(cache=state.pages.cache, held=state.pages.held)
    return cast(State, wrong._replace(pages=kept, flights=state.flights))


def _damaged(leaf: Array) -> Ints:
    return np.asarray(~leaf if leaf.dtype == bool else leaf + 1, leaf.dtype)


def is_main_thread() -> bool:
    """Whether signals can be handled here."""
    return threading.current_thread() is threading.main_thread()
