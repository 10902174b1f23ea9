"""What a judge of recordings answers: what an action changes, or what is wrong with a line."""

from typing import NamedTuple

from attrs import define, frozen

from conformance.files.serialisation import clipped

Change = tuple[str, int]
"""A field, and the slot or page whose value is another now."""


class Done(NamedTuple):
    """What an action did. result: what it returns, None if there is nothing to say."""

    changes: list[Change]
    result: object


@define
class Illegal(Exception):
    """No engine may do this. what: the value that is wrong; seen and expected: of it."""

    clause: str
    what: str
    seen: object
    expected: object

    def __str__(self) -> str:
        return f"{self.clause}: {self.what} is {self.seen}, should be {self.expected}"


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
        wrong = f"{self.what} is {seen}, should be {expected}"
        return f"line {self.line}: {self.clause}: {wrong}"
