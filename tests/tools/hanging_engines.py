"""Engines with a step that never ends, in Python or in compiled code."""

import ctypes
import time
from collections import Counter

import spec_engine
import toy_engine

from conformance.protocol import Action, EngineFailed, Result
from spec.machines.actions import Allocate, Generate
from spec.vocabulary import CleanupMode, Geometry, Limits


def sleep() -> None:
    """Sleep for ten minutes, until an alarm interrupts it."""
    time.sleep(600)


def deadlock() -> None:
    """Lock a mutex twice, in C and without the GIL, which no signal interrupts."""
    mutex, code = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    code.pthread_mutex_lock(mutex)
    code.pthread_mutex_lock(mutex)


class Sleeps(toy_engine.Adapter):
    """A toy that hangs in Python at a batch of three."""

    def apply(self, action: Action) -> Result:
        """Take the action, or hang."""
        if isinstance(action, Allocate) and len(action.batch) >= 3:
            self.hang()
        return super().apply(action)

    def hang(self) -> None:
        """Do not return."""
        sleep()


class Deadlocks(Sleeps):
    """A toy that hangs in compiled code at a batch of three."""

    def hang(self) -> None:
        """Do not return."""
        deadlock()


class ServesNoMore(spec_engine.SpecEngine):
    """A specification that hangs in compiled code at the third Generate."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        self.taken = Counter[type]()

    def apply(self, action: Action) -> Result:
        """Take the action, or hang."""
        self.taken[type(action)] += 1
        if isinstance(action, Generate) and self.taken[Generate] == 3:
            self.at_the_third()
        return super().apply(action)

    def at_the_third(self) -> None:
        """Do not return."""
        deadlock()


class RaisesOrDeadlocks(ServesNoMore):
    """A specification that raises at the third Generate of a long history, and hangs otherwise."""

    def at_the_third(self) -> None:
        """Raise after more than 8 actions, and hang otherwise."""
        if self.taken.total() > 8:
            raise EngineFailed("no such page")
        deadlock()
