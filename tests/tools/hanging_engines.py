"""Engines of which a step never ends, in Python or in compiled code."""

import ctypes
import time
from collections import Counter

import spec_engine
import toy_engine

from conformance.protocol import Action, Result
from spec.machines.actions import Allocate, Generate
from spec.vocabulary import CleanupMode, Geometry, Limits


def sleep() -> None:
    """An alarm ends this."""
    time.sleep(600)


def deadlock() -> None:
    """Wait for oneself, in C and without the lock of Python. Nothing ends this."""
    mutex, code = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    code.pthread_mutex_lock(mutex)
    code.pthread_mutex_lock(mutex)


class Sleeps(toy_engine.Adapter):
    """At a batch of three."""

    def apply(self, action: Action) -> Result:
        """What the toy does, unless it hangs."""
        if isinstance(action, Allocate) and len(action.batch) >= 3:
            self.hang()
        return super().apply(action)

    def hang(self) -> None:
        """Do not return."""
        sleep()


class Deadlocks(Sleeps):
    """The same in compiled code."""

    def hang(self) -> None:
        """Do not return."""
        deadlock()


class ServesNoMore(spec_engine.SpecEngine):
    """Hangs at the third Generate, in compiled code."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        self.taken = Counter[type]()

    def apply(self, action: Action) -> Result:
        """What the specification does, unless it hangs."""
        self.taken[type(action)] += 1
        if isinstance(action, Generate) and self.taken[Generate] == 3:
            self.at_the_third()
        return super().apply(action)

    def at_the_third(self) -> None:
        """Do not return."""
        deadlock()


class RaisesOrDeadlocks(ServesNoMore):
    """Raises there if there was more than one step before for each, else hangs."""

    def at_the_third(self) -> None:
        """Shorter histories hang."""
        if self.taken.total() > 8:
            raise IndexError("no such page")
        deadlock()
