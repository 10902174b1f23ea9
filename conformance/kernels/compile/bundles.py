"""A parser of the compiler's schedule: the instruction bundles of one program, one per cycle.

In the text of the final schedule (`packed-bundles-post-ra`) every line of a bundle has its number,
a label if it is a jump target, and its instructions; empty bundles are listed, so a count of
bundles is a count of cycles without waiting. A loop begins at the target of a backward jump.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from attrs import frozen

BUNDLE: Final = re.compile(r"\s*(0x[0-9a-f]+|0)\s+([A-Z]{2})?\s*:[\s>]*\{(.*)")
JUMP: Final = re.compile(r"\bsbr\.\w+ .*?target bundleno = (\d+)")
PRODUCT: Final = re.compile(r"\bvmatmul")


@frozen
class Loop:
    """Bundles from `start` to before `end` that a jump repeats. products: its matrix products."""

    start: int
    end: int
    products: int

    @property
    def cycles(self) -> int:
        """Cycles of one pass without a shortcut."""
        return self.end - self.start

    def holds(self, other: "Loop") -> bool:
        """Whether the other loop lies inside."""
        return self != other and self.start <= other.start and other.end <= self.end


@frozen
class Schedule:
    """loops: in the order of the program, outer ones first."""

    bundles: int
    loops: tuple[Loop, ...]

    def inside(self, outer: Loop) -> tuple[Loop, ...]:
        """The loops with products directly inside this one."""
        return outermost(loop for loop in self.loops if loop.products and outer.holds(loop))

    def outer(self) -> tuple[Loop, ...]:
        """The outermost loops with products."""
        return outermost(loop for loop in self.loops if loop.products)

    def innermost(self) -> tuple[Loop, ...]:
        """The loops with products that contain no other such loop."""
        return tuple(loop for loop in self.loops if loop.products and not self.inside(loop))


def outermost(parts: Iterable[Loop]) -> tuple[Loop, ...]:
    """The loops that no other contains."""
    every = tuple(parts)
    return tuple(one for one in every if not any(other.holds(one) for other in every))


@frozen
class _Text:
    """labels: numbers of bundles that have one. jumps: from, to. totals: products up to each."""

    labels: tuple[int, ...]
    jumps: tuple[tuple[int, int], ...]
    totals: tuple[int, ...]

    def products(self, start: int, end: int) -> int:
        before = self.totals[start - 1] if start else 0
        return self.totals[end - 1] - before

    def part(self, start: int, end: int) -> Loop:
        return Loop(start, end, self.products(start, end))

    def delay(self) -> int:
        """Delay slots of a jump: the least distance from any jump to a label."""
        gaps = [label - jump for jump, _ in self.jumps for label in self._next_label(jump)]
        return max(0, min(gaps, default=1) - 1)

    def _next_label(self, number: int) -> Iterator[int]:
        index = bisect_right(self.labels, number)
        yield from self.labels[index : index + 1]


def parse(text: str) -> Schedule:
    """Parse a schedule. Raises ValueError for any other text."""
    found = _read(text)
    count, delay = len(found.totals), found.delay()
    if not count:
        raise ValueError("no bundles in the schedule of the compiler")
    ends: dict[int, int] = {}
    for jump, target in found.jumps:
        after = min(jump + 1 + delay, count)
        if target <= jump:
            ends[target] = max(ends.get(target, 0), after)
    loops = tuple(found.part(start, end) for start, end in sorted(ends.items()))
    return Schedule(count, loops)


def delay(text: str) -> int:
    """Delay slots of the jumps of a schedule. Raises ValueError for any other text."""
    return _read(text).delay()


def _read(text: str) -> _Text:
    labels: list[int] = []
    jumps: list[tuple[int, int]] = []
    products: list[int] = []
    for match in filter(None, map(BUNDLE.match, text.splitlines())):
        number = int(match[1], 16)
        if number != len(products):
            raise ValueError(f"bundle {number} of the schedule comes after {len(products) - 1}")
        if match[2]:
            labels.append(number)
        jumps += [(number, int(target)) for target in JUMP.findall(match[3])]
        products.append(len(PRODUCT.findall(match[3])))
    return _Text(tuple(labels), tuple(jumps), tuple(accumulate(products)))
