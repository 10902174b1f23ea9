"""The schedule that the compiler writes: instruction words of one program, one to a cycle.

In the text of the final schedule (`packed-bundles-post-ra`) every line of a bundle has its number,
a label if something jumps to it, and its instructions; empty bundles are listed, so that a count is
one of cycles without waiting. A loop begins where a jump goes backwards to.
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
    """Bundles from `start` to before `end` that a jump repeats. products: of matrices, in them."""

    start: int
    end: int
    products: int

    @property
    def cycles(self) -> int:
        """Of one pass if it takes no short cut."""
        return self.end - self.start

    def holds(self, other: "Loop") -> bool:
        """Whether the other lies inside."""
        return self != other and self.start <= other.start and other.end <= self.end


@frozen
class Schedule:
    """loops: in the order of the program, outer ones first."""

    bundles: int
    loops: tuple[Loop, ...]

    def inside(self, outer: Loop) -> tuple[Loop, ...]:
        """The loops with products right inside of this one, and not deeper."""
        return outermost(loop for loop in self.loops if loop.products and outer.holds(loop))

    def outer(self) -> tuple[Loop, ...]:
        """The outermost loops with products."""
        return outermost(loop for loop in self.loops if loop.products)

    def innermost(self) -> tuple[Loop, ...]:
        """The loops with products that hold no other such loop."""
        return tuple(loop for loop in self.loops if loop.products and not self.inside(loop))


def outermost(parts: Iterable[Loop]) -> tuple[Loop, ...]:
    """Those that no other of them holds."""
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
        """Bundles after a jump that are still executed: no label is nearer to any jump."""
        gaps = [label - jump for jump, _ in self.jumps for label in self._next_label(jump)]
        return max(0, min(gaps, default=1) - 1)

    def _next_label(self, number: int) -> Iterator[int]:
        index = bisect_right(self.labels, number)
        yield from self.labels[index : index + 1]


def parse(text: str) -> Schedule:
    """Read a schedule. Raises ValueError if it is none."""
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
