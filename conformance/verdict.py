"""The verdict of a command or of a harness, its scope and its exit status."""

from enum import Enum
from typing import Final

BAD_INPUT: Final = 2
UNDECIDED: Final = 3
"""The exit statuses of bad usage or bad input, and of an undecided run."""


class Verdict(Enum):
    """The result of a command. Its exit status is 0, 1 or 3."""

    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "undecided"

    @property
    def exit_status(self) -> int:
        """The exit status of the process."""
        return {Verdict.HOLDS: 0, Verdict.FAILS: 1, Verdict.UNDECIDED: UNDECIDED}[self]


class Scope(Enum):
    """Whether every case was examined, or only a sample.

    UP_TO_RENAMING: of the cases that differ in names alone, some.
    """

    COMPLETE = "complete"
    UP_TO_RENAMING = "complete up to renaming; names sampled"
    SAMPLED = "sampled"
