"""Changes of a device and of what its host knows, which happen together or are told."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from impl.engine import StateLost
from impl.interrupts import hold_interrupts
from spec.vocabulary.errors import KvspecError

T = TypeVar("T")


class Together:
    """Whether a host and its engine are in the same state. broken: they may not be."""

    broken = False

    def run(self, work: Callable[[], T]) -> T:
        """Run work that changes device and host. An interrupt waits until both are done."""
        return hold_interrupts(partial(self._unless_broken, work))

    def check(self) -> None:
        """Raise StateLost if host and engine may be in different states."""
        if self.broken:
            raise StateLost("host and engine are in different states")

    def _unless_broken(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except KvspecError:  # refused, and nothing has changed; or StateLost
            raise
        except BaseException:
            self.broken = True
            raise
