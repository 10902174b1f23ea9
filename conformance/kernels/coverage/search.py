"""Batches that together reach what a kernel can do: drawn, changed, followed, and chosen.

Following a batch takes milliseconds and judging it a second, so many are followed and few judged.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final

from attrs import evolve, frozen

from conformance.kernels.batches import Batch, Lost, Sizes, edges, fitting
from conformance.kernels.coverage.programs import Followed
from conformance.kernels.coverage.sites import Outcome, decides

DRAWN: Final = 80
CHANGED: Final = 40
WORK: Final = 1_500_000
"""Scalar equations that are followed at most of drawn batches; a long row takes ten thousands."""
CALL: Final = 10_000
"""What a call costs beside the cells that its queries see, in such cells."""
BEHIND: Final = 8
"""How far behind some whole units a length may end: few queries then reach over their edge."""
COSTLY: Final = 5 * CALL
"""A batch that costs more is made shorter."""
Follow = Callable[[Batch], Followed]
Lens = list[tuple[int, int]]


@frozen
class Candidate:
    """A batch that was followed."""

    batch: Batch
    followed: Followed

    @property
    def cost(self) -> int:
        """What judging it takes: cells that are read, cells that each query sees, and a call."""
        return CALL + sum(cells * (queries + 1) for queries, cells in self.batch.lens)


def candidates(drawn: Sequence[Batch], follow: Follow, *, work: int = WORK) -> list[Candidate]:
    """These batches, followed in their order until this work is done."""
    found: list[Candidate] = []
    for batch in drawn:
        if work <= 0:
            break
        found.append(Candidate(batch, follow(batch)))
        work -= found[-1].followed.work
    return found


def changed(
    sizes: Sizes,
    every: Sequence[Candidate],
    follow: Follow,
    *,
    units: Sequence[int],
    seed: int,
    done: Callable[[set[Outcome]], bool],
    count: int = CHANGED,
    work: int = 16 * WORK,
) -> list[Candidate]:
    """These, and those with one change of a batch that reach something which no other does.

    done: whether that is enough, when so many were tried; otherwise it goes on until the work ends.
    """
    draws, found = Random(seed), list(every)
    seen = set().union(*(one.followed.seen for one in found))
    cells, queries = edges(units, sizes.capacity), edges(units, sizes.tokens)
    tried = 0
    while found and work > 0 and not (tried >= count and done(seen)):
        tried += 1
        batch, other = draws.choice(found).batch, draws.choice(found).batch
        lens = _change(draws, [*batch.lens], [*other.lens], cells, queries, units)
        new = with_lens(sizes, batch, lens or [*batch.lens])
        new = _steered(draws, new)
        candidate = Candidate(new, follow(new))
        work -= candidate.followed.work
        if candidate.followed.seen - seen:
            found.append(candidate)
            seen |= candidate.followed.seen
    return found


def _change(
    draws: Random,
    lens: Lens,
    other: Lens,
    cells: Sequence[int],
    queries: Sequence[int],
    units: Sequence[int],
) -> Lens:
    """One change of the lengths of some sequences."""
    row = draws.randrange(len(lens))
    match draws.randrange(11):
        case 0:
            draws.shuffle(lens)
        case 1:
            lens = lens[: row + 1] + other
        case 2:
            lens = other[:1] + lens
        case 3:
            lens[row] = lens[row][0], _small(draws, cells)
        case 4:
            lens[row] = _small(draws, queries), lens[row][1]
        case 5:
            lens = lens[row:] + lens[row:]
        case 6:
            lens[row] = lens[row][0], draws.randint(0, cells[-1])
        case 7 if units:
            step = draws.choice(units) * draws.choice((-1, 1))
            lens[row] = lens[row][0], min(max(lens[row][1] + step, 0), cells[-1])
        case 8 | 9 if units:
            unit = draws.choice(units)
            behind = unit * draws.randint(0, cells[-1] // unit) + draws.randint(-1, BEHIND)
            few = draws.choice((lens[row][0], draws.randint(2, BEHIND)))
            lens[row] = few, min(max(behind, 0), cells[-1])
        case _:
            lens[row:row] = [(0, _small(draws, cells))] * 2
    return lens


def _steered(draws: Random, batch: Batch) -> Batch:
    """Now and then a change of what else steers a kernel: the ids of pages, and lost tokens."""
    lost = draws.randrange(len(batch.lens)), draws.choice([*Lost])
    match draws.randrange(8):
        case 0 | 1:
            return evolve(batch, ordered=not batch.ordered)
        case 2:
            return evolve(batch, seed=draws.randrange(1 << 16))
        case 3:
            return evolve(batch, lost=lost)
        case _:
            return batch


def _small(draws: Random, every: Sequence[int]) -> int:
    """One of these, which rise, and rather a small one: to follow it takes less."""
    return min(draws.choice(every), draws.choice(every))


def with_lens(sizes: Sizes, batch: Batch, lens: Lens) -> Batch:
    """The batch with other lengths, as far as they fit, and what else of it still applies."""
    fitted = fitting(sizes, lens[: sizes.rows])
    count = len(fitted)
    return evolve(
        batch,
        lens=fitted,
        needles=tuple(
            one for one in batch.needles if one[0] < count and one[1] < fitted[one[0]][0]
        ),
        shared=tuple(row for row in batch.shared if row < count),
        repeated=tuple(row for row in batch.repeated if row < count),
        lost=batch.lost if batch.lost is not None and batch.lost[0] < count else None,
    )


def chosen(
    sizes: Sizes, every: Sequence[Candidate], follow: Follow, *, edges: int, most: int | None = None
) -> list[Batch]:
    """Those that reach all that any of them reaches of branches and loops, and cost little.

    edges: how many more are chosen for what else they reach, such as numbers that are equal. most:
    so many reach as much as they can; by default there is no limit.
    """
    found, _ = _greedy(every, set(), decides, most=len(every) if most is None else most)
    found = _without_spare(found)
    for at, one in enumerate(found):
        rest = (other for other in found if other is not one)
        others = set().union(*(other.followed.seen for other in rest))
        needed = frozenset(filter(decides, one.followed.seen - others))
        found[at] = _shortened(sizes, one, needed, follow)
    seen = set().union(*(one.followed.seen for one in found))
    more, _ = _greedy(every, seen, lambda _outcome: True, most=edges)
    return [one.batch for one in (*found, *more)]


def _shortened(
    sizes: Sizes, one: Candidate, needed: frozenset[Outcome], follow: Follow
) -> Candidate:
    """A batch that still reaches what is needed of this one, and is not COSTLY if there is one.

    It is not made shorter than that: in a short batch a wrong value may not show.
    """
    while one.cost > COSTLY:
        for lens in _shorter([*one.batch.lens]):
            batch = with_lens(sizes, one.batch, lens)
            other = Candidate(batch, follow(batch))
            if needed <= other.followed.seen and other.cost < one.cost:
                one = other
                break
        else:
            break
    return one


def _shorter(lens: Lens) -> Iterator[Lens]:
    """The lengths without one sequence, or with half of the cells or queries of one."""
    for row in sorted(range(len(lens)), key=lambda at: -lens[at][0] * lens[at][1]):
        queries, cells = lens[row]
        rest = lens[:row], lens[row + 1 :]
        if len(lens) > 1:
            yield [*rest[0], *rest[1]]
        for fewer in ((queries, cells // 2), (queries // 2, cells)):
            if fewer != lens[row]:
                yield [*rest[0], fewer, *rest[1]]


def _without_spare(found: list[Candidate]) -> list[Candidate]:
    """Those that reach something decisive which none of the others does."""
    needed = list(found)
    for one in found:
        rest = [other for other in needed if other is not one]
        reached = set().union(*(other.followed.seen for other in rest))
        if not any(decides(outcome) for outcome in one.followed.seen - reached):
            needed = rest
    return needed


def _greedy(
    every: Sequence[Candidate],
    seen: set[Outcome],
    counts: Callable[[Outcome], bool],
    *,
    most: int,
) -> tuple[list[Candidate], set[Outcome]]:
    """Candidates, each with the most for its cost that those before lack; and what is seen then."""
    left = [(one, {o for o in one.followed.seen - seen if counts(o)}) for one in every]
    found: list[Candidate] = []
    while len(found) < most:
        best, news = max(left, key=lambda pair: len(pair[1]) / pair[0].cost, default=(None, set()))
        if best is None or not news:
            break
        found.append(best)
        seen = seen | best.followed.seen
        left = [(one, rest - best.followed.seen) for one, rest in left if one is not best]
    return found, seen
