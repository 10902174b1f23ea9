"""What became of mutants, and the file in which it is kept.

The file has one JSON object per line, written through to the disk, so that an interrupted run can
be continued. Lines of other sources stay in the file, and are used only where their stamp is named.
"""

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from conformance.files.results import Results
from conformance.files.serialisation import decoder

HANGS: Final = "does not return"
"""Kills a mutant as much as a wrong result does."""
OUTSIDE: Final = frozenset({-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT})
"""How a process ends that someone else has ended, or the system for lack of memory: no mutant is to
blame."""
ENDS: Final = "ends the process with signal "
"""The beginning of what is kept of a mutant with which a process crashes."""
RAISES: Final = "raises "
"""The beginning of what is kept of a mutant with which a method raises an exception."""

Key = tuple[str, str, int]
"""(group, method, number of the mutant)."""
_KEY: Final = decoder(Key)
Stamp = Callable[[str, str], str]
"""For a group and a method, a digest of all on which its fates depend. Raises KeyError."""


@frozen
class Fate:
    """The fate of a mutant under one method. killed: by what; None if it survives. run: whether
    the method executes it at all.
    """

    killed: str | None
    run: bool = True


_FATE: Final = decoder(Fate)


class Fates:
    """The fates in a file that have the stamp of their group and method, or one of `kept`.

    Of several fates of one mutant the last counts. stamps: for each known fate, its own.
    suspects: mutants of a batch that did not return, which are judged one at a time, and the first
    ones that processes have begun to judge, which have ended them if they crash.
    """

    def __init__(self, path: Path, stamp: Stamp, *, kept: Iterable[str] = ()) -> None:
        self.path, self.stamp = path, stamp
        self.known: dict[Key, Fate] = {}
        self.stamps: dict[Key, str] = {}
        self.suspects: set[Key] = set()
        self._kept = frozenset(kept)
        self._results = Results(path, key="group", command="mutants")
        self.refresh()

    def refresh(self) -> None:
        """Read the lines added since. Raises InvalidInput if it is not a file of fates."""
        for row in self._results.read():
            self._take(row)

    def add(self, key: Key, fate: Fate) -> None:
        """Keep a fate: it is on the disk when this returns. Raises InvalidInput."""
        row = dict(zip(("group", "method", "number"), key, strict=True))
        self._results.add(self.stamp(*key[:2]), row | {"killed": fate.killed, "run": fate.run})
        self.known[key], self.stamps[key] = fate, self.stamp(*key[:2])

    def hung(self, group: str, method: str, numbers: Sequence[int]) -> None:
        """Keep that a batch of mutants did not return: one alone is killed by that."""
        if len(numbers) == 1:
            self.add((group, method, numbers[0]), Fate(HANGS))
            return
        for number in numbers:
            self.suspect((group, method, number))

    def suspect(self, key: Key) -> None:
        """Keep that this mutant is to blame if the process ends without a word."""
        if key not in self.suspects:
            row = dict(zip(("group", "method", "number"), key, strict=True))
            self._results.add(self.stamp(*key[:2]), row | {"suspect": True})
            self.suspects.add(key)

    def left(self, group: str, method: str, numbers: Iterable[int]) -> list[int]:
        """The mutants that have no fate yet under a method."""
        return [number for number in numbers if (group, method, number) not in self.known]

    def notes(self) -> Iterator[tuple[str, str]]:
        """The unused parts of the file, with reasons: for a report."""
        return self._results.notes()

    def _take(self, row: dict[str, object]) -> None:
        try:
            key = _KEY([row.pop(name) for name in ("group", "method", "number")])
            stamp = str(row.pop("stamp"))
            if stamp not in self._kept and stamp != self.stamp(*key[:2]):
                return
            if row.get("suspect") is True:
                self.suspects.add(key)
            else:
                self.known[key], self.stamps[key] = _FATE(row), stamp
        except (ValueError, TypeError, KeyError):
            self._results.spoilt()
