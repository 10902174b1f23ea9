"""Read a recording to its first illegal line: in one pass, in memory that does not grow with it."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from attrs import frozen

from conformance.files import kinds
from conformance.files.jsonl import Lines, open_file
from conformance.history import Attend, PoisonDead
from conformance.recordings.answers import Found, Illegal
from conformance.recordings.fast_table import ACTIONS
from conformance.recordings.format import Header, Line, header_from_data, line_from_data
from conformance.recordings.judge import Judge, judge
from spec.machines.actions import Reset

QUICK: Final = ACTIONS | {PoisonDead, Attend}
"""What the ledger can judge. A recording with anything else is read again from its beginning."""
EVERY: Final = 4096
"""Lines between two looks at how far it is."""
AHEAD: Final = 32
"""Lines that are read before they are judged."""


@frozen
class Part:
    """The part of a file since its last reset. offset: of its first line, in bytes."""

    first_line: int
    offset: int


@frozen
class Outcome:
    """events: lines taken, the illegal one included. observed: the fields that some line shows.

    whole: whether the specification itself judged. part: where the illegal line's past begins.
    """

    header: Header
    events: int
    found: Found | None
    observed: frozenset[str]
    whole: bool
    part: Part


def validate(
    path: Path, *, update: Callable[[float], None] = lambda _: None, name: str | None = None
) -> Outcome:
    """Judge a recording. update: told the share that is read. Raises InvalidInput with the line.

    name: of the file in messages, if not its path.
    """
    size = max(1, path.stat().st_size) if path.is_file() else 1
    for whole in (False, True):
        with open_file(path) as file, _uncollected():
            outcome = _Pass(file, name or str(path), whole=whole).run(lambda at: update(at / size))
        if outcome is not None:
            return outcome
    raise AssertionError("the specification knows every action")


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of cycles: a pass makes many small things, and no cycle of them."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


def header_and_lines(file: BinaryIO, name: str | Path) -> tuple[Header, Lines]:
    """The header of a recording, and the lines after it. Raises InvalidInput."""
    kinds.require(file, "recording", name=str(name))
    lines = Lines(file, name=str(name), written_by="what docs/recordings.md says")
    header = next(lines.read(header_from_data), None)
    if header is None:
        raise lines.bad("an empty file", "a header line and one line per action")
    return header, lines


def lines_of(path: Path, part: Part, last_line: int) -> Iterator[Line]:
    """The lines of a part of a file, to this one."""
    with open_file(path) as file:
        file.seek(part.offset)
        lines = Lines(file, name=str(path), written_by="the same file as before")
        for _, line in zip(
            range(part.first_line, last_line + 1), lines.read(line_from_data), strict=False
        ):
            yield line


class _Pass:
    """One reading of a file."""

    def __init__(self, file: BinaryIO, name: str, *, whole: bool) -> None:
        self._whole = whole
        self._header, self._lines = header_and_lines(file, name)
        self._judge: Judge = judge(self._header, whole=whole)
        self._part = Part(2, self._lines.offset)
        self._observed: set[str] = set()

    def run(self, update: Callable[[int], None]) -> Outcome | None:
        """To the first illegal line; None at the first that this pass cannot judge."""
        take, observed, events = self._judge.take, self._observed, 0
        lines = self._lines.read(line_from_data, ahead=AHEAD)
        for events, line in enumerate(lines, start=1):
            if not self._whole and type(line.step) not in QUICK:
                return None
            observed.update(line.saw)
            try:
                take(line)
            except Illegal as illegal:
                return self._outcome(events, Found(self._lines.number, *illegal.difference))
            if type(line.step) is Reset and line.refused is None:
                self._part = Part(self._lines.number + 1, self._lines.offset)
            if events % EVERY == 0:
                update(self._lines.offset)
        return self._outcome(events, None)

    def _outcome(self, events: int, found: Found | None) -> Outcome:
        observed = frozenset(self._observed)
        return Outcome(self._header, events, found, observed, self._whole, self._part)
