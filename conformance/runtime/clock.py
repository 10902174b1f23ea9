"""The time that a run has had: wall time, without what is compiled on the way.

What jax compiles in this process is known to the millisecond, and tracing and loading what is kept
count. Where jax is not in this process, what an engine compiles cannot be seen: then its warm-up is
left out as a whole.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attrs import define, field

from conformance.runtime import compiled_code


@define
class Clock:
    """Runs from when it is made, and stands still while something is compiled.

    now: the wall time. compiled: what jax has compiled in this process. Both in seconds.
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
        """Seconds of the wall time that do not count."""
        return self._warmed + self.compiled() - self._compiled_before

    @property
    def seconds(self) -> float:
        """Seconds that count, so far."""
        if self._stands_at is not None:
            return self._stands_at
        return self.now() - self._began - self.left_out

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """A warm-up takes place in the block."""
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
