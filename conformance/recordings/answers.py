"""What a judge of recordings answers: what an action changes, or what is wrong with a line."""

from collections.abc import Collection
from typing import NamedTuple

from attrs import define, frozen

from conformance.files.serialisation import clipped
from conformance.lockstep.comparer import Difference

Change = tuple[str, int]
"""A field, and the slot or page whose value is another now."""


class Done(NamedTuple):
    """What an action did. results: what it may return, as plain data; empty: nothing to say."""

    changes: list[Change]
    results: Collection[object]


@define
class Illegal(Exception):
    """A line that no engine may record."""

    difference: Difference

    def __str__(self) -> str:
        return f"{self.difference.clause}: {self.difference}"


@frozen
class Found:
    """The first illegal line of a recording. line: its number in the file, from 1."""

    line: int
    clause: str
    what: str
    seen: object
    expected: object

    def __str__(self) -> str:
        seen, expected = clipped(str(self.seen)), clipped(str(self.expected))
        wrong = Difference(self.clause, self.what, seen, expected)
        return f"line {self.line}: {self.clause}: {wrong}"
