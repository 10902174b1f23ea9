"""Batches that together reach what a kernel can do: drawn, followed without K and V, and chosen.

Following a batch takes milliseconds and judging it a second, so many are drawn and few are judged.
"""

from collections.abc import Callable, Sequence
from typing import Final

from attrs import frozen

from conformance.kernels.batches import Batch
from conformance.kernels.coverage.programs import Followed
from conformance.kernels.coverage.sites import Outcome, decides

DRAWN: Final = 240
WORK: Final = 3_000_000
"""Scalar equations that are followed at most; a long row takes tens of thousands."""


@frozen
class Candidate:
    """A batch that was followed."""

    batch: Batch
    followed: Followed

    @property
    def size(self) -> int:
        """Cells and queries: what judging it costs."""
        return sum(cells + queries for queries, cells in self.batch.lens)


def candidates(
    drawn: Sequence[Batch], follow: Callable[[Batch], Followed], *, work: int = WORK
) -> list[Candidate]:
    """These batches, followed in their order until this work is done."""
    found: list[Candidate] = []
    for batch in drawn:
        if work <= 0:
            break
        found.append(Candidate(batch, follow(batch)))
        work -= found[-1].followed.work
    return found


def chosen(every: Sequence[Candidate], *, edges: int) -> list[Batch]:
    """Those that reach all that any of them reaches of branches and loops, few and short.

    edges: how many more are chosen for what else they reach, such as numbers that are equal.
    """
    found, seen = _greedy(every, set(), decides, most=len(every))
    more, _ = _greedy(every, seen, lambda _outcome: True, most=edges)
    return [one.batch for one in (*found, *more)]


def _greedy(
    every: Sequence[Candidate],
    seen: set[Outcome],
    counts: Callable[[Outcome], bool],
    *,
    most: int,
) -> tuple[list[Candidate], set[Outcome]]:
    """Candidates, each with the most that those before lack; and all that is seen then."""
    left = [(one, {o for o in one.followed.seen - seen if counts(o)}) for one in every]
    found: list[Candidate] = []
    while len(found) < most:
        best, news = max(left, key=lambda pair: (len(pair[1]), -pair[0].size), default=(None, set()))
        if best is None or not news:
            break
        found.append(best)
        seen |= best.followed.seen
        left = [(one, rest - best.followed.seen) for one, rest in left if one is not best]
    return found, seen
