"""Coverage of several engines in one run: nothing of one engine counts for the next."""

from collections import Counter
from itertools import pairwise
from typing import Any, Final

from walk_tools import walk

from conformance.rungs.coverage import Coverage
from conformance.rungs.pages import PAGE_REUSED, SLOT_REUSED
from spec.machines import actions as act
from spec.state import State
from spec.vocabulary import Geometry, Reason

SIZES: Final = Geometry(pages=4, slots=2, page_size=2, pages_per_seq=2)
Steps = list[tuple[State, Any, frozenset[Reason], State]]


def steps(seed: int) -> Steps:
    """A walk, which ends between a slot's use and its next one; with a refusal."""
    found: Steps = [
        (before, action, frozenset(), after) for before, action, after in walk(SIZES, seed, 40)
    ]
    last = found[-1][3]
    return [*found, (last, act.Free(9), frozenset({Reason.SLOT_RANGE}), last)]


def counted(*engines: Steps, begin: bool = True) -> Coverage:
    """The coverage of these engines, one after another."""
    coverage = Coverage()
    for engine in engines:
        if begin:
            coverage.begin()
        for step in engine:
            coverage.record(*step)
    return coverage


def test_engines_count_as_if_each_were_alone() -> None:
    """Items of a run are those of its engines added up; without a beginning they would be more."""
    walks = [steps(seed) for seed in range(40)]
    alone = [counted(one) for one in walks]
    more = Counter[str]()

    for (one, other), (first, then) in zip(pairwise(walks), pairwise(alone), strict=True):
        both = counted(one, other)
        assert first.times_of_items + then.times_of_items == both.times_of_items
        assert first.steps + then.steps == both.steps
        more += counted(one, other, begin=False).times_of_items - both.times_of_items

    assert {SLOT_REUSED, PAGE_REUSED} <= {*more}
    assert any(" > " in item for item in more)
