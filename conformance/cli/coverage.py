"""The report of coverage: each required item, whether it was reached, and how often."""

from typing import TYPE_CHECKING

from conformance.cli.contract import Report

if TYPE_CHECKING:
    from conformance.rungs.coverage import Coverage


def count_covered(coverage: "Coverage", coverable: list[str], report: Report) -> list[str]:
    """Count the required items in the report. Returns those that were not reached."""
    covered = coverage.covered(coverable)
    missing = sorted(set(coverable) - set(covered))
    report.count(covered=len(covered), coverable=len(coverable), not_covered=missing)
    return missing


def say_covered(coverage: "Coverage", coverable: list[str], report: Report) -> None:
    """Print each required item."""
    times = coverage.outcomes + coverage.corners
    for item in coverable:
        mark = "reached" if times[item] else "NOT reached"
        report.say(f"  {mark:>11} {times[item]:>7}  {item}")
