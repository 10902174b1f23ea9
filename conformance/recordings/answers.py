"""Answers of a judge of recordings: the changes of an action, or the error in a line."""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from attrs import define, frozen

from conformance.files.serialisation import clipped
from conformance.lockstep.comparer import Difference

Change = tuple[str, int]
"""A field, and the slot or page whose value has changed."""
NOT_SHOWN: Final = "not shown: unchanged"
"""The observed value of an entry that has changed and is missing from its line."""


def no_such(field: str) -> str:
    """The expected value of an entry that does not exist: no observed value equals it."""
    return f"no such index of {field}"


class Done(NamedTuple):
    """The effect of an action. results: the legal results as plain data; empty if not judged."""

    changes: list[Change]
    results: Collection[object]


NOTHING: Final = Done([], ())


@define
class Illegal(Exception):
    """The line violates a clause of the specification."""

    difference: Difference

    def __str__(self) -> str:
        return f"{self.difference.clause}: {self.difference}"


def wrong_width(slot: int, seen: Iterable[int], width: int) -> Illegal:
    """The error of a row that takes pages and shows another number of them than it has."""
    return _wrong_row("ROW", slot, seen, f"{width} pages")


def wrong_page(slot: int, seen: Iterable[int], pages: int) -> Illegal:
    """The error of a row that takes a page of a number that no page has."""
    return _wrong_row("ROW", slot, seen, f"pages below {pages}")


def not_free(clause: str, slot: int, seen: Iterable[int], where: str) -> Illegal:
    """The error of a row that takes a page which is not free. where: the page, and where it is."""
    return _wrong_row(clause, slot, seen, f"free pages: {where}")


def _wrong_row(clause: str, slot: int, seen: Iterable[int], expected: str) -> Illegal:
    return Illegal(Difference(clause, f"rows[{slot}]", list(seen), expected))


@frozen
class Found:
    """The first illegal line of a recording. line: its number in the file, from 1.

    The others are those of a `Difference`.
    """

    line: int
    clause: str
    what: str
    seen: object
    expected: object
    note: str = ""

    def __str__(self) -> str:
        seen, expected = clipped(str(self.seen)), clipped(str(self.expected))
        wrong = Difference(self.clause, self.what, seen, expected, self.note)
        return f"line {self.line}: {self.clause}: {wrong}"
