"""How long the copies of a simulated call take, by a model that is written down here.

Main memory serves the copies in the order in which they start, each at the whole bandwidth, and one
is done so many cycles after its last byte: the latency. Copies within the chip are done at once.
Where two cores run, each has half of the bandwidth. Nothing else is modelled: neither banks and
pages of the memory nor a cost of each copy. So a call takes at least as long as this says with no
latency, if it reaches the published bandwidth at all.
"""

from collections import defaultdict
from typing import Final

from attrs import Factory, define

from conformance.kernels.compile.peaks import Peak
from conformance.kernels.compile.simulate import GRANULE, Run

LATENCY: Final = 1e-6
"""Seconds from the last byte of a copy to its end: assumed, since nobody publishes it."""


@define
class _Count:
    """A count of copies. done: from which cycle on there is how much more, in their order.

    held: how much of it is there, with those before `next`.
    """

    done: list[tuple[float, int]] = Factory(list)
    next: int = 0
    held: int = 0

    def reached(self, granules: int) -> float:
        """The cycle from which on it holds so many."""
        at = 0.0
        while self.held < granules:
            done, more = self.done[self.next]
            at, self.held, self.next = max(at, done), self.held + more, self.next + 1
        return at


def waiting(run: Run, *, bytes_per_cycle: float, latency: float = 0.0) -> float:
    """The cycles of a call with those that it waits for copies.

    bytes_per_cycle: of main memory, for the core that runs it. latency: in cycles.
    """
    late, free, counts = 0.0, 0.0, defaultdict[int, _Count](_Count)
    for event in run.events:
        if len(event) == 2:
            counts[event[0]].held += event[1]
            continue
        now, count = event[0] + late, counts[event[1]]
        if len(event) == 3:
            late += max(0.0, count.reached(event[2]) - now)
            continue
        done = now
        if event[3]:
            free = max(free, now) + event[2] * GRANULE / bytes_per_cycle
            done = free + latency
        count.done.append((done, event[2]))
    return run.cycles + late


def moved(run: Run) -> int:
    """Bytes that a call reads from main memory and writes to it."""
    return GRANULE * run.main


def in_cycles(peak: Peak, seconds: float) -> float:
    """A time in cycles of a chip."""
    return seconds * peak.clock
