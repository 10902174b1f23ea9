"""One try of one method at one plant, and the file in which tries are kept.

The file has one JSON object per line, written through to the disk, so that a run that is cut off
goes on where it was. Tries of other versions, of other sources or with another budget are left
alone and not used.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
from attrs import field, frozen

from conformance.steps import History
from conformance.watchdog import Watchdog
from spec.vocabulary import InvalidInput

CLEAN: Final = "clean"
"""Names the engine without a bug where a plant is named."""
Key = tuple[str, str, int]
"""(plant or CLEAN, method, seed)."""


@frozen(kw_only=True)
class Attempt:
    """What one try gave.

    steps, seconds: until it was caught, or all that were taken; compilation is left out. clause:
    the one that was violated. example: the text of a history file that shows it, as short as it
    goes. shrunk: the steps of that history. changed: whether the engine without the bug takes the
    same history without a finding, and the engine with the bug does not. error: why nothing was
    decided.
    """

    caught: bool
    steps: int
    seconds: float
    clause: str | None = None
    shrunk: int | None = None
    example: str | None = None
    changed: bool | None = None
    error: str | None = None


@frozen(kw_only=True)
class Budget:
    """What a try may use. shrink: whether a counterexample is wanted. watchdog: told of steps."""

    steps: int
    shrink: bool = False
    watchdog: Watchdog = field(factory=lambda: Watchdog(_nobody))


def _nobody(_history: History, _message: str) -> None:
    """Nobody watches: a watchdog that was not started is never called."""


class Attempts:
    """The tries in a file that belong to one stamp; others stay in the file and are not seen."""

    def __init__(self, path: Path, stamp: str) -> None:
        self.path, self.stamp = path, stamp
        self.made: dict[Key, Attempt] = {}
        self._read_to = 0
        self.refresh()

    def refresh(self) -> None:
        """Read what was added to the file since. Raises InvalidInput if the file is not ours."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read_to)
            for line in file:
                if not line.endswith(b"\n"):  # being written, or cut off
                    break
                self._read_to += len(line)
                self._take(line)

    def add(self, key: Key, attempt: Attempt) -> None:
        """Keep a try: it is on the disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        plant, method, seed = key
        row = {"stamp": self.stamp, "plant": plant, "method": method, "seed": seed}
        text = json.dumps(row | attrs.asdict(attempt)) + "\n"
        with self.path.open("ab") as file:
            file.write((b"\n" if self._cut_off() else b"") + text.encode())
            file.flush()
            os.fsync(file.fileno())
        self.made[key] = attempt

    def _cut_off(self) -> bool:
        """Whether the last line has no end: what follows must not be joined to it."""
        data = self.path.read_bytes()[-1:]
        return data not in {b"", b"\n"}

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            row: Any = json.loads(line)
        except ValueError:  # a line that was cut off
            return
        if not isinstance(row, dict) or "stamp" not in row:
            raise InvalidInput(
                str(self.path),
                seen=line[:60].decode(errors="replace"),
                allowed="a file that kvspec plant has written",
                remedy="Name another with --results.",
            )
        if row.pop("stamp") == self.stamp:
            key = (row.pop("plant"), row.pop("method"), row.pop("seed"))
            self.made[key] = Attempt(**row)


def stamp(versions: Mapping[str, str], *, steps: int) -> str:
    """What a try depends on, in short: versions, the budget, and our sources that are loaded."""
    text = json.dumps([sorted(versions.items()), steps, _sources()])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sources() -> str:
    """A digest of our modules that are loaded, but for the command line."""
    digest = hashlib.sha256()
    for name, module in sorted(sys.modules.items()):
        ours = name.partition(".")[0] in {"spec", "impl", "conformance"}
        path = getattr(module, "__file__", None)
        if ours and path and not name.startswith("conformance.cli"):
            digest.update(name.encode() + Path(path).read_bytes())
    return digest.hexdigest()


Try = Callable[[str | None, int, Budget], Attempt]
"""From a plant that is already planted (None: no plant), a seed and a budget to what it gave."""
