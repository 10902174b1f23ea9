"""The report of coverage: each required item, whether it was reached, and how often."""

from typing import TYPE_CHECKING, Final

from conformance.cli.contract import Report
from conformance.rungs.possible import as_item, is_pair

if TYPE_CHECKING:
    from conformance.fuzzing.campaign import Run
    from conformance.protocol import Engine
    from conformance.rungs.coverage import Coverage


MOST_NAMED: Final = 20
"""So many items are named in one line."""


def count_covered(coverage: "Coverage", coverable: list[str], report: Report) -> list[str]:
    """Count the required items in the report. Returns those that were not reached."""
    covered = coverage.covered(coverable)
    missing = sorted(set(coverable) - set(covered))
    report.count(covered=len(covered), coverable=len(coverable), not_covered=missing)
    return missing


def named(missing: list[str]) -> str:
    """The first of the items that were not reached, and how many more there are."""
    more = len(missing) - MOST_NAMED
    further = f"; and {more} more, which not_covered in the result lists" if more > 0 else ""
    return "; ".join(missing[:MOST_NAMED]) + further


def say_covered(coverage: "Coverage", coverable: list[str], report: Report) -> None:
    """Print each required item; of pairs of steps, which are many, those that were not reached."""
    times = coverage.times_of_items
    for item in coverable:
        if times[item] == 0 or not is_pair(item):
            mark = "reached" if times[item] else "NOT reached"
            report.say(f"  {mark:>11} {times[item]:>7}  {item}")


def count_possible(state: "Run", engine: "Engine", report: Report) -> None:
    """Count the outcomes that cannot be, and the pairs of steps that are possible.

    A listing prints both, and the pairs that were not reached.
    """
    impossible = {str(one): why for one, why in state.outcomes(engine).items() if why is not None}
    possible = state.pairs(engine)
    pairs = state.coverage.pairs
    left = sorted(as_item(pair) for pair in possible if not pairs[pair])
    report.count(
        impossible=impossible,
        pairs_possible=len(possible),
        pairs_reached=len(possible) - len(left),
        pairs_not_reached=left,
    )
    report.say(f"  {len(possible) - len(left)} of {len(possible)} possible pairs of steps reached")
    if report.listing:
        for item, why in impossible.items():
            report.say(f"  impossible: {item}: {why}")
        for item in left:
            report.say(f"  pair of steps not reached: {item}")
