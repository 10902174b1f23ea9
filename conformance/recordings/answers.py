"""Answers of a judge of recordings: the changes of an action, or the error in a line."""

from collections.abc import Collection
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


@define
class Illegal(Exception):
    """The line violates a clause of the specification."""

    difference: Difference

    def __str__(self) -> str:
        return f"{self.difference.clause}: {self.difference}"


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
