"""The lowest index that is not held, in time that does not grow with the pool."""

from collections.abc import Container
from heapq import heappop, heappush


class Lowest:
    """The free list over the indices from 0. held: the indices in use, which the owner changes."""

    def __init__(self, held: Container[int]) -> None:
        self._held = held
        self._heap: list[int] = []
        self._known: set[int] = set()
        self._fresh = 0

    def __len__(self) -> int:
        return len(self._heap)

    def first(self) -> int:
        """The lowest that is not held."""
        while self._heap and self._heap[0] in self._held:
            self._known.discard(heappop(self._heap))
        while self._fresh in self._held:
            self._fresh += 1
        return min(self._heap[0], self._fresh) if self._heap else self._fresh

    def returned(self, index: int) -> None:
        """An index is no longer held. One that `first` has not passed is found anyway."""
        if 0 <= index < self._fresh and index not in self._known:
            self._known.add(index)
            heappush(self._heap, index)
