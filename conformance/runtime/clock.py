"""A clock of wall time that excludes warm-ups, in which an engine compiles."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attrs import define, field


@define
class Clock:
    """A clock that starts when it is made, and stands still in warm-ups.

    now: the wall time, in seconds. left_out: the seconds of it that are excluded, so far.
    """

    now: Callable[[], float] = time.perf_counter
    left_out: float = field(default=0.0, init=False)
    _began: float = field(init=False)
    _stands_at: float | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._began = self.now()

    @property
    def seconds(self) -> float:
        """Seconds that count, so far."""
        if self._stands_at is not None:
            return self._stands_at
        return self.now() - self._began - self.left_out

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """A context manager around a warm-up."""
        began, self._stands_at = self.now(), self.seconds
        try:
            yield
        finally:
            self.left_out += self.now() - began
            self._stands_at = None
