"""The report of coverage, beside a count by hand of what is required, possible and reached."""

from collections import Counter
from itertools import product
from types import SimpleNamespace
from typing import Any, Final

import pytest

from conformance.cli.contract import Report
from conformance.cli.coverage import MOST_NAMED, count_covered, count_possible, named, say_covered
from conformance.rungs.coverage import Coverage
from conformance.rungs.possible import Kind, Outcome, as_item
from spec.machines.actions import Free, Reserve
from spec.vocabulary import Reason

KINDS: Final = [Kind(kind, refused) for kind in (Free, Reserve) for refused in (False, True)]
PAIRS: Final = [*product(KINDS, KINDS)]
POSSIBLE: Final = frozenset(PAIRS[1::2])
REACHED: Final = Counter({pair: number % 3 for number, pair in enumerate(PAIRS)})
OUTCOMES: Final[dict[Outcome, str | None]] = {
    Outcome(Free, None): None,
    Outcome(Free, Reason.SLOT_RANGE): "needs a slot",
    Outcome(Reserve, Reason.NO_FREE_SLOT): None,
}


@pytest.mark.parametrize("listing", [False, True])
def test_pairs_are_counted_among_those_that_are_possible(
    *, listing: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pair that is called impossible and was reached all the same is not counted."""
    report = Report(command="fuzz", seed=0, listing=listing)
    run: Any = SimpleNamespace(
        outcomes=lambda _: OUTCOMES,
        pairs=lambda _: POSSIBLE,
        coverage=SimpleNamespace(pairs=REACHED),
    )

    count_possible(run, SimpleNamespace(), report)

    left = sorted(as_item(pair) for pair in POSSIBLE if REACHED[pair] == 0)
    reached = [pair for pair in PAIRS if pair in POSSIBLE and REACHED[pair] > 0]
    assert {
        "impossible": {"Free: SLOT_RANGE": "needs a slot"},
        "pairs_possible": 8,
        "pairs_reached": len(reached),
        "pairs_not_reached": left,
    } == report.counts
    assert 8 == len(reached) + len(left)
    first, *others = capsys.readouterr().out.splitlines()
    assert f"  {len(reached)} of 8 possible pairs of steps reached" == first
    listed = ["  impossible: Free: SLOT_RANGE: needs a slot"]
    listed += [f"  pair of steps not reached: {item}" for item in left]
    assert (listed if listing else []) == others


def test_each_required_item_is_reached_or_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """Items are counted once each, and of the pairs only those that are missing are printed."""
    coverage, report = Coverage(), Report(command="fuzz", seed=0)
    coverage.count(Free, frozenset(), ["corner"])
    coverage.count(Free, frozenset({Reason.SLOT_RANGE}), [])
    coverage.count(Free, frozenset(), ["corner"])
    times = {
        "Free: done": 2,
        "Free: SLOT_RANGE": 1,
        "corner": 2,
        "Reserve: done": 0,
        "another corner": 0,
        "Free done > Free refused": 1,
        "Free done > Free done": 0,
    }

    missing = count_covered(coverage, [*times], report)
    say_covered(coverage, [*times], report)

    never = sorted(item for item, number in times.items() if number == 0)
    assert never == missing
    assert {"covered": 4, "coverable": 7, "not_covered": never} == report.counts
    expected = [
        f"  {'NOT reached' if number == 0 else 'reached':>11} {number:>7}  {item}"
        for item, number in times.items()
        if number == 0 or " > " not in item
    ]
    assert expected == capsys.readouterr().out.splitlines()


def test_a_line_names_the_first_items_and_says_how_many_more_there_are() -> None:
    """As many as fit are named alone."""
    items = [f"item {number}" for number in range(MOST_NAMED + 2)]

    assert "item 0; item 1" == named(items[:2])
    assert "; ".join(items[:MOST_NAMED]) == named(items[:MOST_NAMED])
    further = "; and 2 more, which not_covered in the result lists"
    assert "; ".join(items[:MOST_NAMED]) + further == named(items)
