"""The places in a kernel where integers decide, and what may happen at each.

A predicate is taken or not; either twice in a row, and at the first and the last pass of the loop
around it. A loop is passed never, once, or several times. A comparison finds its first number
less, equal or greater: that decides nothing alone, and is a guide to batches at an edge.
"""

from enum import Enum
from functools import cached_property
from typing import Final

from attrs import define, field, frozen

LOOP: Final = ("no pass", "one pass", "several passes")
COMPARED: Final = ("less", "equal", "greater")
TWICE: Final = ", twice in a row"
FIRST: Final = ", at the first pass"
LAST: Final = ", at the last pass"
HOW: Final = ("", TWICE, FIRST, LAST)


class Kind(Enum):
    """What decides there."""

    PREDICATE = "predicate"
    LOOP = "loop"
    COMPARISON = "comparison"


@frozen(kw_only=True, cache_hash=True)
class Site:
    """One place. path: where it is in the traced kernel, by the numbers of the equations.

    where: its line in the source. branches: of a predicate. looped: whether a loop is around it.
    """

    kernel: str
    path: str
    kind: Kind
    where: str = field(eq=False)
    branches: int = field(default=0, eq=False)
    looped: bool = field(default=False, eq=False)

    def branch(self, index: int) -> str:
        """The name of a branch; those of a condition are the usual ones."""
        return ("not taken", "taken")[index] if self.branches == 2 else f"branch {index}"

    def outcomes(self) -> tuple["Outcome", ...]:
        """Everything that may happen there."""
        if self.kind is not Kind.PREDICATE:
            return self.results
        return tuple(one for each in self.taken for one in each[: len(HOW) if self.looped else 1])

    @cached_property
    def results(self) -> tuple["Outcome", ...]:
        """Of a loop or a comparison. Made once, since batches reach them a million times."""
        every = LOOP if self.kind is Kind.LOOP else COMPARED
        return tuple(Outcome(self, what) for what in every)

    @cached_property
    def taken(self) -> tuple[tuple["Outcome", ...], ...]:
        """Of each branch of a predicate: how it may be taken, in the order of HOW."""
        return tuple(
            tuple(Outcome(self, self.branch(index) + more) for more in HOW)
            for index in range(self.branches)
        )


@frozen(cache_hash=True)
class Outcome:
    """What happened at a site."""

    site: Site
    what: str

    def __str__(self) -> str:
        """The line of the source, and what happened there."""
        return f"{self.site.where}: {self.what}"


def decides(outcome: Outcome) -> bool:
    """Whether a kernel is checked only if it was reached: a branch, or a number of passes."""
    edge = outcome.what.endswith((TWICE, FIRST, LAST))
    return outcome.site.kind is not Kind.COMPARISON and not edge


@define
class _Loop:
    """A loop that is being passed. here: the branches of this pass, if it should be the last."""

    passes: int = 0
    here: list[Outcome] = field(factory=list)


@define
class Watch:
    """What has happened so far. last: the branch that each predicate took last in this call."""

    seen: set[Outcome] = field(factory=set)
    last: dict[Site, int] = field(factory=dict)
    loops: list[_Loop] = field(factory=list)

    def decided(self, site: Site, index: int) -> None:
        """A predicate took this branch."""
        plain, twice, first, last = site.taken[index]
        self.seen.add(plain)
        if not site.looped:
            return
        if self.last.get(site) == index:
            self.seen.add(twice)
        self.last[site] = index
        loop = self.loops[-1]
        loop.here.append(last)
        if loop.passes == 1:
            self.seen.add(first)

    def compared(self, site: Site, first: int, second: int) -> None:
        """A comparison of two numbers."""
        self.seen.add(site.results[(first >= second) + (first > second)])

    def enter(self) -> None:
        """A loop begins."""
        self.loops.append(_Loop())

    def passes(self) -> None:
        """Another pass of the innermost loop begins."""
        self.loops[-1].passes += 1
        self.loops[-1].here.clear()

    def leave(self, site: Site | None) -> None:
        """The innermost loop has ended. site: None for one whose passes are known beforehand."""
        loop = self.loops.pop()
        if site is not None:
            self.seen.add(site.results[min(loop.passes, 2)])
        self.seen.update(loop.here)
