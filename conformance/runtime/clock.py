"""A clock of wall time that excludes compilation.

The time that jax compiles in this process is known to the millisecond and excluded; tracing, and
loading of compiled code, count. Where jax is not in this process, the compilation of an engine
cannot be seen: then its whole warm-up is excluded.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attrs import define, field

from conformance.runtime import compiled_code


@define
class Clock:
    """A clock that starts when it is made, and stands still during compilation.

    now: the wall time. compiled: how long jax has compiled in this process. Both in seconds.
    """

    now: Callable[[], float] = time.perf_counter
    compiled: Callable[[], float] = compiled_code.seconds
    _began: float = field(init=False)
    _compiled_before: float = field(init=False)
    _warmed: float = field(default=0.0, init=False)
    _stands_at: float | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._began, self._compiled_before = self.now(), self.compiled()

    @property
    def left_out(self) -> float:
        """Seconds of the wall time that are excluded."""
        return self._warmed + self.compiled() - self._compiled_before

    @property
    def seconds(self) -> float:
        """Seconds that count, so far."""
        if self._stands_at is not None:
            return self._stands_at
        return self.now() - self._began - self.left_out

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """A context manager around a warm-up."""
        compiled_code.listen()
        if compiled_code.listening():
            yield
            return
        began, self._stands_at = self.now(), self.seconds
        try:
            yield
        finally:
            self._warmed += self.now() - began
            self._stands_at = None
