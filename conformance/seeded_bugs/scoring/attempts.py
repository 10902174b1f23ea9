"""One try of one method at one plant, and the file in which tries are kept.

The file has one JSON object per line, written through to the disk, so that an interrupted run can
be continued. Tries of other versions, of other sources or with another budget stay in the file and
are not used.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs
from attrs import field, frozen

from conformance.files.results import Results
from conformance.files.serialisation import decoder
from conformance.history import History
from conformance.lockstep.watchdog import Watchdog

CLEAN: Final = "clean"
"""The engine without a bug, in the place of a plant."""
Key = tuple[str, str, int]
"""(plant or CLEAN, method, seed)."""
_KEY: Final = decoder(Key)


@frozen(kw_only=True)
class Attempt:
    """The result of one try.

    steps, seconds: until the bug was caught, or of the whole try; without compilation, unless the
    method says otherwise. clause: the violated clause. example: the text of a history file that
    shows the bug, shrunk. shrunk: the number of steps of that history. changed: whether the engine
    without the bug takes that history without a finding, and the engine with the bug does not.
    error: why nothing was decided.
    """

    caught: bool
    steps: int
    seconds: float
    clause: str | None = None
    shrunk: int | None = None
    example: str | None = None
    changed: bool | None = None
    error: str | None = None


_ATTEMPT: Final = decoder(Attempt)


@frozen(kw_only=True)
class Budget:
    """The budget of a try. shrink: whether to shrink a counterexample. watchdog: watches steps."""

    steps: int
    shrink: bool = False
    watchdog: Watchdog = field(factory=lambda: Watchdog(_nobody))


def _nobody(_history: History, _message: str) -> None:
    """Do nothing: a watchdog that was not started never reports."""


class Attempts:
    """The tries of one stamp in a file; those of other stamps stay there and are not used."""

    def __init__(self, path: Path, stamp: str) -> None:
        self.path, self.stamp = path, stamp
        self.made: dict[Key, Attempt] = {}
        self._results = Results(path, key="plant", command="plant")
        self.refresh()

    def refresh(self) -> None:
        """Read the lines added since. Raises InvalidInput if it is not a file of tries."""
        for row in self._results.read():
            if row.pop("stamp") == self.stamp:
                self._take(row)

    def add(self, key: Key, attempt: Attempt) -> None:
        """Keep a try: it is on the disk when this returns. Raises InvalidInput."""
        plant, method, seed = key
        row = {"plant": plant, "method": method, "seed": seed}
        self._results.add(self.stamp, row | attrs.asdict(attempt))
        self.made[key] = attempt

    def forget(self) -> None:
        """Use none of the tries that were made so far. They stay in the file."""
        if self.made:
            self._results.add(self.stamp, {"plant": None, "forget": True})
            self.made.clear()

    def notes(self) -> Iterator[tuple[str, str]]:
        """The unused parts of the file, with reasons: for a report."""
        return self._results.notes()

    def _take(self, row: dict[str, object]) -> None:
        if row.get("forget") is True:
            self.made.clear()
            return
        try:
            key = tuple(map(row.pop, ("plant", "method", "seed")))
            self.made[_KEY(list(key))] = _ATTEMPT(row)
        except (ValueError, TypeError, KeyError):
            self._results.spoilt()


def stamp(versions: Mapping[str, str], *, steps: int) -> str:
    """A digest of all that a try depends on: versions, the budget, and our loaded sources."""
    text = json.dumps([sorted(versions.items()), steps, _sources()])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sources() -> str:
    """A digest of our loaded modules, without the command line."""
    digest = hashlib.sha256()
    for name, module in sorted(sys.modules.items()):
        ours = name.partition(".")[0] in {"spec", "impl", "conformance"}
        path = getattr(module, "__file__", None)
        if ours and path and not name.startswith("conformance.cli"):
            digest.update(name.encode() + Path(path).read_bytes())
    return digest.hexdigest()


Try = Callable[[str | None, int, Budget], Attempt]
"""From a plant that is already planted (None: no plant), a seed and a budget to the result."""
