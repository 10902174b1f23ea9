"""Histories that cover a graph: how long they are, and that nothing in them is to spare."""

from collections.abc import Iterator
from random import Random

import pytest

from conformance.vectors.cover import LONGEST, _history, cover
from conformance.vectors.reach import Reach, Step, covered


class Graph(Reach):
    """Any graph in the place of that of a suite."""

    def __init__(self, steps: list[dict[int, Step]]) -> None:
        self.steps = steps


def graph(seed: int) -> Graph:
    """A long chain of states, with refusals and with steps back to any earlier state."""
    draws = Random(seed)
    count, steps = draws.randrange(1, 30), list[dict[int, Step]]()
    for at in range(count):
        steps.append({})
        for move in range(4):
            refused = move > 0 and draws.randrange(2) > 0
            after = at if refused else at + 1 if move == 0 else draws.randrange(at + 1)
            kind = f"{'abcd'[move]} {'refused' if refused else 'done'}"
            items = (f"outcome of {kind}", *[f"item {draws.randrange(40)}"] * draws.randrange(2))
            if after < count and (move == 0 or draws.randrange(2)):
                steps[at][move] = Step(move, kind, items, after)
    return Graph(steps)


def following(reach: Reach, steps: list[Step]) -> Iterator[tuple[list[Step], set[str]]]:
    """Each step that can follow a history, shortest ways first, and what its end covers.

    A way to a state by a kind of step that a shorter way has is left out.
    """
    ways, known = [steps[-1:]], set[tuple[int, str]]()
    for way in ways:
        for step in reach.steps[way[-1].after if way else 0].values():
            longer = [*way, step]
            yield longer[len(steps[-1:]) :], covered(longer[-2:])
            if (step.after, step.kind) not in known:
                known.add((step.after, step.kind))
                ways.append(longer)


def least(reach: Reach, steps: list[Step], wanted: set[str]) -> int | None:
    """The least number of further steps that cover one of these items; None if none do."""
    return next((len(way) for way, items in following(reach, steps) if items & wanted), None)


@pytest.mark.parametrize("seed", range(40))
def test_a_history_grows_by_what_is_nearest_as_long_as_it_may(seed: int) -> None:
    """Only the way to its first item is longer than the limit, and nothing that fits is left."""
    reach, draws = graph(seed), Random(seed)
    every = sorted(reach.coverable)
    for _ in range(12):
        wanted = {*draws.sample(every, min(len(every), draws.randrange(1, 5)))}
        if not wanted:
            continue

        steps = _history(reach, set(wanted))

        assert steps == reach.taken(step.move for step in steps)
        first = next(at for at in range(1, len(steps) + 1) if covered(steps[:at]) & wanted)
        assert first == least(reach, [], wanted)
        assert len(steps) in range(first, max(LONGEST, first) + 1)
        more = least(reach, steps, wanted - covered(steps))
        assert more is None or len(steps) + more > LONGEST


@pytest.mark.parametrize("seed", range(20))
def test_histories_cover_all_that_can_follow_and_have_nothing_to_spare(seed: int) -> None:
    """Each item of a step and each pair is covered, and without any history or step one is not."""
    reach = graph(seed)
    possible = set[str]().union(*(items for _, items in following(reach, [])))

    histories = cover(reach)

    assert possible == reach.coverable
    assert possible == set[str]().union(*map(covered, histories))
    for steps in histories:
        others = set[str]().union(*(covered(one) for one in histories if one is not steps))
        assert possible - others
        for at in range(len(steps)):
            fewer = reach.taken(step.move for step in steps[:at] + steps[at + 1 :])
            assert fewer is None or possible - others - covered(fewer)


@pytest.mark.parametrize("seed", range(20))
def test_a_choice_is_left_out_only_for_one_that_covers_and_reaches_the_same(seed: int) -> None:
    """Of steps that differ in nothing but the move, the first is left."""
    reach = graph(seed)
    for steps, choices in zip(reach.steps, reach.choices, strict=True):
        alike = [
            next(
                one for one in steps.values() if (one.items, one.after) == (step.items, step.after)
            )
            for step in steps.values()
        ]

        assert list(dict.fromkeys(alike)) == list(choices)
