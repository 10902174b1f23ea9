"""Stopwatches that measure how long each part of the work takes."""

import time

from attrs import define, field


@define
class Stopwatch:
    """seconds: spent so far in the `with` blocks of this watch; they must not be nested."""

    seconds: float = 0.0
    _started: float = field(default=0.0, init=False)

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._started
