"""Selection of a few short histories that together cover all that a suite can reach.

The search is greedy: a history is extended by the shortest path to an item that is not covered yet.
Then redundant parts are removed, whole histories first and single steps after them. The result is
deterministic: nothing is drawn, and nothing depends on the order of a set.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from conformance.vectors.reach import Reach, Step, covered, pair

LONGEST: Final = 12
"""Greatest length of a history in steps, so that a failure is easy to read. Only the path to its
first item may be longer."""


def cover(reach: Reach) -> list[list[Step]]:
    """Histories from the initial state that together cover all of `reach.coverable`."""
    left, found = set(reach.coverable), list[list[Step]]()
    while left:
        found.append(_history(reach, left))
        left -= covered(found[-1])
    return _minimised(reach, found)


def _history(reach: Reach, wanted: set[str]) -> list[Step]:
    """One history that covers at least one of the wanted items."""
    left, steps = set(wanted), list[Step]()
    while len(steps) < LONGEST and left:
        more = _nearest(reach, steps, left, most=LONGEST - len(steps) if steps else None)
        if more is None:
            break
        steps += more
        left -= covered(steps)
    return steps


def _nearest(
    reach: Reach, steps: list[Step], left: set[str], *, most: int | None
) -> list[Step] | None:
    """The shortest extension that covers an item of `left`; None if it has more than `most` steps.

    most: None for any length.
    """
    at = (steps[-1].after, steps[-1].kind) if steps else (0, "")
    ways: dict[tuple[int, str], tuple[tuple[int, str], Step] | None] = {at: None}
    level = [at]
    while level and (most is None or most > 0):
        following = []
        for node in level:
            state, kind = node
            if not left.isdisjoint(reach.items(state, kind)):
                return _way(ways, node, _first(reach.choices[state], kind, left))
            for step in reach.exits[state]:
                reached = (step.after, step.kind)
                if reached not in ways:
                    ways[reached] = node, step
                    following.append(reached)
        level, most = following, None if most is None else most - 1
    return None


def _first(steps: Sequence[Step], before: str, left: set[str]) -> Step:
    """The first of these steps that covers an item of `left`, after a step of kind `before`."""
    return next(
        step for step in steps if pair(before, step.kind) in left or not left.isdisjoint(step.items)
    )


def _way(
    ways: dict[tuple[int, str], tuple[tuple[int, str], Step] | None],
    node: tuple[int, str],
    last: Step,
) -> list[Step]:
    taken = [last]
    while (came := ways[node]) is not None:
        node, step = came
        taken.append(step)
    return taken[::-1]


def _minimised(reach: Reach, histories: list[list[Step]]) -> list[list[Step]]:
    """The histories without those, and then without the steps, that the others make redundant."""
    times = Counter(item for steps in histories for item in covered(steps))
    kept = []
    for steps in reversed(histories):
        if all(times[item] > 1 for item in covered(steps)):
            times.subtract(covered(steps))
        else:
            kept.append(steps)
    kept.reverse()
    while (shorter := [_shortened(reach, steps, times) for steps in kept]) != kept:
        kept = shorter  # the removal of a step can make another one redundant
    return kept


def _shortened(reach: Reach, steps: list[Step], times: Counter[str]) -> list[Step]:
    """A history without its redundant steps, tried from the last to the first.

    times: the number of histories that cover each item; updated.
    """
    times.subtract(covered(steps))
    needed = {item for item in covered(steps) if not times[item]}
    at = len(steps)
    while at:
        at -= 1
        fewer = reach.taken(step.move for step in steps[:at] + steps[at + 1 :])
        if fewer is not None and needed <= covered(fewer):
            steps = fewer
    times.update(covered(steps))
    return steps
