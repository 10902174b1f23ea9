"""The judge of a recording: each line is compared with the specification or its accelerator.

The accelerator is the ledger of `fast_table`, for recordings of the actions of a table alone.
"""

from typing import Final, Never, Protocol

from attrs import field, frozen

from conformance.history import Attend, PoisonDead
from conformance.lockstep.comparer import (
    Difference,
    refusal_difference,
    result_difference,
    wrong_entry,
)
from conformance.protocol import Action
from conformance.recordings.answers import Done, Illegal
from conformance.recordings.by_specification import BySpec
from conformance.recordings.fast_table import NONE, Ledger
from conformance.recordings.format import Header, Line
from conformance.rungs.coverage import Coverage
from conformance.rungs.pages import REFUSED
from spec import rung
from spec.vocabulary import Reason

_NOTHING: Final = Done([], ())
_HARNESS: Final = (PoisonDead, Attend)


class Machine(Protocol):
    """The expected state after the lines so far."""

    def reasons(self, action: Action) -> frozenset[Reason]:
        """The reasons for which the action is refused; empty if it is legal."""
        ...

    def do(self, line: Line) -> Done:
        """Take the legal action of a line. Raises Illegal."""
        ...

    def expected(self, field: str, index: int) -> object:
        """The expected value of an entry of a field."""
        ...

    def agrees(self, field: str, index: int, seen: object) -> bool:
        """Whether an observed value is right."""
        ...

    def count(self, coverage: Coverage, action: Action, reasons: frozenset[Reason]) -> None:
        """Count the last action. reasons: why it was refused; empty if it was done."""
        ...


@frozen
class Judge:
    """Takes one line after another. After an illegal line it can take no further one.

    coverage: counts the lines that were legal. uncompared: the classes of step of which a result
    is recorded that nothing could be compared with.
    """

    machine: Machine
    header: Header
    coverage: Coverage = field(factory=Coverage)
    uncompared: set[type] = field(factory=set)

    def take(self, line: Line) -> None:
        """Judge a line and take its action. Raises Illegal."""
        step, _, result, saw = line
        if isinstance(step, _HARNESS):
            reasons, done = None, _NOTHING
            if isinstance(step, PoisonDead):
                self.coverage.poisoned()
        else:
            reasons, done = self._act(line, step)
        _require_none(result_difference(step, result, done.results))
        if result is not None and not done.results:
            self.uncompared.add(type(step))
        agrees = self.machine.agrees
        for name, values in saw.items():
            for index, seen in values.items():
                if not agrees(name, index, seen):
                    self._wrong(line, name, index, seen)
        shows = self.header.shows
        for name, index in done.changes:
            if name in shows and index not in saw.get(name, ()):
                self._wrong(line, name, index, "not shown: unchanged")
        if reasons is not None and not isinstance(step, _HARNESS):
            self.machine.count(self.coverage, step, reasons)

    def _act(self, line: Line, action: Action) -> tuple[frozenset[Reason] | None, Done]:
        """Why the action was refused, None if for no reason at all; and its effect."""
        expected = self.machine.reasons(action)
        _require_none(refusal_difference(line.refused, expected, refuses=self.header.refuses))
        if line.refused is None:
            return NONE, self.machine.do(line)
        if not line.refused and not expected:
            self.coverage.corners[REFUSED] += 1
            return None, _NOTHING
        return line.refused or expected, _NOTHING

    def _wrong(self, line: Line, name: str, index: int, seen: object) -> Never:
        expected = self.machine.expected(name, index)
        raise Illegal(wrong_entry(line.step, name, index, seen=seen, expected=expected))


def judge(header: Header, *, machine: rung.Machine | None) -> Judge:
    """A judge in the initial state. machine: of the specification; None for the fast table."""
    return Judge(Ledger(header) if machine is None else BySpec(header, machine), header)


def _require_none(found: Difference | None) -> None:
    if found is not None:
        raise Illegal(found)
