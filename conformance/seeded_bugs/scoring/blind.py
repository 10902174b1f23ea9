"""Blind oracles: checks in common use, each shown to miss a bug.

Each oracle judges the random histories by which the clauses and the comparison catch a bug. In
fairness it is also tried at a bug that it sees, under the same budget. Source: the kinds of check
that let real bugs pass, in the threads of the plants.
"""

from collections.abc import Iterator
from typing import Final

from attrs import evolve, frozen

from conformance.lockstep.lockstep import Oracle, by_clauses
from spec.view import View
from spec.vocabulary import INVALID


@frozen(kw_only=True)
class Blind:
    """One oracle. what: the property it checks. misses, sees: the plants that it is tried at."""

    what: str
    judge: Oracle
    misses: str
    sees: str


def _sums(_before: View, seen: View, _wanted: View) -> Iterator[tuple[str, str]]:
    counted = sum(seen.counts or ())
    named = sum(seen.named.values())
    if counted != named:
        yield "CONS", f"the counts add up to {counted}, the rows name {named} pages"


def _not_negative(_before: View, seen: View, _wanted: View) -> Iterator[tuple[str, str]]:
    for page, count in enumerate(seen.counts or ()):
        if count < 0:
            yield "RC", f"counts[{page}] is {count}, should be at least 0"


def _metadata(before: View, seen: View, wanted: View) -> Iterator[tuple[str, str]]:
    yield from by_clauses(evolve(before, cells=None), evolve(seen, cells=None), wanted)


def _renamed_afresh(_before: View, seen: View, wanted: View) -> Iterator[tuple[str, str]]:
    image: dict[int, int] = {INVALID: INVALID}
    for slot, (row, right) in enumerate(zip(seen.rows, wanted.rows, strict=True)):
        for mine, page in zip(row, right, strict=True):
            if image.setdefault(page, mine) != mine:
                yield "DET", f"row {slot} is {row}: no renaming of {right}"
    if len(set(image.values())) != len(image):
        yield "DET", "two pages have one name"


BLIND: Final[dict[str, Blind]] = {
    "sums": Blind(
        what="the counts add up to the pages that the rows name",
        judge=_sums,
        misses="AL1",
        sees="CL6",
    ),
    "negative": Blind(
        what="no count is below zero",
        judge=_not_negative,
        misses="RC1",
        sees="RC1b",
    ),
    "metadata": Blind(
        what="every clause that does not look at K and V",
        judge=_metadata,
        misses="AK4",
        sees="RC2",
    ),
    "renamed": Blind(
        what="the rows, up to a renaming of pages that is made afresh at every step",
        judge=_renamed_afresh,
        misses="DF1",
        sees="PT9",
    ),
}
"""The oracles by name. AL1: a page has two owners. RC1: a clamp hides a double decrement. AK4: the
device writes a page that is free or another's. DF1: a row moves without its K and V."""
