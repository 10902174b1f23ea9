"""Validation of a recording up to its first illegal line, line by line in bounded memory."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from attrs import frozen

from conformance.files import kinds
from conformance.files.jsonl import Lines, open_file
from conformance.files.serialisation import Malformed
from conformance.history import Attend, PoisonDead
from conformance.recordings.answers import Found, Illegal
from conformance.recordings.fast_table import APPENDING
from conformance.recordings.format import Header, Line, header_from_data, line_from_data
from conformance.recordings.judge import Judge, judge
from conformance.rungs.coverage import Coverage
from spec import ladder
from spec.machines.actions import Append, Reserve, Reset
from spec.rung import Machine
from spec.vocabulary import InvalidInput

QUICK: Final = APPENDING | {PoisonDead, Attend}
"""The steps that the fast table can judge. If a recording has any other, the specification judges
it, from the beginning; its machine has no queue if the recording has Append. It also judges what an
engine does unasked."""
EVERY: Final = 4096
"""Number of lines between two updates of the progress."""
AHEAD: Final = 32
"""Number of lines that are read ahead of the judge."""


@frozen
class Part:
    """The part of a file after its last reset. offset: byte offset of its first line."""

    first_line: int
    offset: int


@frozen
class Outcome:
    """The outcome of a validation. events: the number of lines judged, the illegal one included.

    found: the first illegal line, or None. observed: the fields that at least one line shows.
    machine: the machine of the specification that judged; None if the fast table did. part: the
    part of the file that the illegal line depends on. coverage: what the legal lines reached.
    uncompared: the classes of step of which some recorded result was not compared. contexts:
    whether a sequence has a context other than 0.
    """

    header: Header
    events: int
    found: Found | None
    observed: frozenset[str]
    machine: Machine | None
    part: Part
    coverage: Coverage
    uncompared: frozenset[type]
    contexts: bool


def validate(
    path: Path, *, update: Callable[[float], None] = lambda _: None, name: str | None = None
) -> Outcome:
    """Judge a recording. Raises InvalidInput with the number of a malformed line.

    update: called with the share of the file that is read. name: the name of the file in messages;
    None for its path.
    """
    size = max(1, path.stat().st_size) if path.is_file() else 1
    machine: Machine | None = None
    while True:
        with open_file(path) as file, _uncollected():
            found = _Pass(file, name or str(path), machine).run(lambda at: update(at / size))
        if isinstance(found, Outcome):
            return found
        machine = found


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable the garbage collector: a pass makes many small objects and no cycles of them."""
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
    """The lines of a part of a file, up to and including this line number."""
    with open_file(path) as file:
        file.seek(part.offset)
        lines = Lines(file, name=str(path), written_by="the same file as before")
        for _, line in zip(
            range(part.first_line, last_line + 1), lines.read(line_from_data), strict=False
        ):
            yield line


def _has_context(line: Line) -> bool:
    """Whether a line is for an index of prefixes, which the fast table does not have."""
    return isinstance(line.step, Reserve) and line.step.context != 0


class _Pass:
    """One pass over a file. machine: of the specification; None for the fast table."""

    def __init__(self, file: BinaryIO, name: str, machine: Machine | None) -> None:
        self._machine = machine
        self._header, self._lines = header_and_lines(file, name)
        self._judge: Judge = judge(self._header, machine=machine)
        self._part = Part(2, self._lines.offset)
        self._observed: set[str] = set()
        self._kinds: set[type] = set()
        self._contexts = False

    def run(self, update: Callable[[int], None]) -> Outcome | Machine:
        """Judge up to the first illegal line.

        Returns the machine for a pass from the beginning, at a line that this judge cannot take.
        """
        take, observed, events, kinds = self._judge.take, self._observed, 0, self._kinds
        lines = self._whole_lines()
        for events, line in enumerate(lines, start=1):
            if type(line.step) not in kinds or (not self._contexts and _has_context(line)):
                machine = self._new(line)
                if machine is not None:
                    return machine
            observed.update(line.saw)
            try:
                take(line)
            except Illegal as illegal:
                number = self._lines.number
                if self._appends_later(lines):
                    return ladder.whole_appending()
                return self._outcome(events, Found(number, *illegal.difference))
            except Malformed as error:
                raise self._lines.bad(error.what, error.allowed) from None
            if type(line.step) is Reset and line.refused is None:
                self._part = Part(self._lines.number + 1, self._lines.offset)
            if events % EVERY == 0:
                update(self._lines.offset)
        return self._outcome(events, None)

    def _whole_lines(self) -> Iterator[Line]:
        """The lines. Raises InvalidInput; if the file was cut, with what is known of the rest."""
        try:
            yield from self._lines.read(line_from_data, ahead=AHEAD)
        except InvalidInput:
            if not self._lines.cut:
                raise
            number = self._lines.number
            before = f"the {number - 1} lines before it are legal"
            raise self._lines.bad(
                f"the file ends inside line {number}: it was cut; {before}", "whole lines"
            ) from None

    def _new(self, line: Line) -> Machine | None:
        """The machine for a new pass, if this one cannot judge a further class of step.

        Raises InvalidInput if the class does not go with the earlier ones.
        """
        kind = type(line.step)
        self._contexts = self._contexts or _has_context(line)
        self._kinds.add(kind)
        if kind in self._header.unasked:
            raise self._lines.bad(
                f"{kind.__name__}, which the engine does unasked",
                "no line of what `unasked` in the header names: it is read from what lines show",
            )
        apart = sorted(one.__name__ for one in ladder.not_beside(frozenset({kind})) & self._kinds)
        if apart:
            raise self._lines.bad(
                f"{kind.__name__} after {', '.join(apart)}",
                "Append, or actions of the queue, of requests and of rounds: with Append the "
                "caller has the queue",
            )
        header = self._header
        beyond = not self._kinds <= QUICK or self._contexts or header.unasked or header.ring
        if self._machine is None and not beyond:
            return None
        machine = ladder.whole_appending() if Append in self._kinds else ladder.whole()
        other = self._machine is None or (Append in self._kinds and self._machine is not machine)
        return machine if other else None

    def _appends_later(self, lines: Iterator[Line]) -> bool:
        """Whether the machine has a queue that the recording turns out not to have."""
        if self._machine is not ladder.whole() or Append in ladder.not_beside(
            frozenset(self._kinds)
        ):
            return False
        with suppress(InvalidInput):  # a malformed line after an illegal one is not reported
            return any(type(line.step) is Append for line in lines)
        return False

    def _outcome(self, events: int, found: Found | None) -> Outcome:
        return Outcome(
            header=self._header,
            events=events,
            found=found,
            observed=frozenset(self._observed),
            machine=self._machine,
            part=self._part,
            coverage=self._judge.coverage,
            uncompared=frozenset(self._judge.uncompared),
            contexts=self._contexts,
        )
