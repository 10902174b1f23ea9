"""Changes of a device and of what its host knows, which happen together or are told."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from impl.engine import StateLost
from impl.interrupts import hold_interrupts
from spec.vocabulary.errors import KvspecError

T = TypeVar("T")


class Together:
    """The part of a host that keeps it and its engine in the same state."""

    _broken = False

    def _together(self, work: Callable[[], T]) -> T:
        """Run work that changes device and host. An interrupt waits until both are done."""
        return hold_interrupts(partial(self._unless_broken, work))

    def _unless_broken(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except KvspecError:  # refused, and nothing has changed; or StateLost
            raise
        except BaseException:
            self._broken = True
            raise

    def _check(self) -> None:
        if self._broken:
            raise StateLost("host and engine are in different states")
