"""The judge of a recording: each line is compared with the specification or its accelerator.

The accelerator is the ledger of `fast_table`, for recordings of the actions of a table alone.
"""

from typing import Final, Never, Protocol

from attrs import frozen

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
from conformance.recordings.fast_table import Ledger
from conformance.recordings.format import Header, Line
from spec import rung
from spec.vocabulary import Reason

_NOTHING: Final = Done([], ())


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


@frozen
class Judge:
    """Takes one line after another. After an illegal line it can take no further one."""

    machine: Machine
    header: Header

    def take(self, line: Line) -> None:
        """Judge a line and take its action. Raises Illegal."""
        step, _, result, saw = line
        done = _NOTHING if isinstance(step, PoisonDead | Attend) else self._act(line, step)
        _require_none(result_difference(step, result, done.results))
        agrees = self.machine.agrees
        for field, values in saw.items():
            for index, seen in values.items():
                if not agrees(field, index, seen):
                    self._wrong(line, field, index, seen)
        shows = self.header.shows
        for field, index in done.changes:
            if field in shows and index not in saw.get(field, ()):
                self._wrong(line, field, index, "not shown: unchanged")

    def _act(self, line: Line, action: Action) -> Done:
        expected = self.machine.reasons(action)
        _require_none(refusal_difference(line.refused, expected, refuses=self.header.refuses))
        return self.machine.do(line) if line.refused is None else _NOTHING

    def _wrong(self, line: Line, field: str, index: int, seen: object) -> Never:
        expected = self.machine.expected(field, index)
        raise Illegal(wrong_entry(line.step, field, index, seen=seen, expected=expected))


def judge(header: Header, *, machine: rung.Machine | None) -> Judge:
    """A judge in the initial state. machine: of the specification; None for the fast table."""
    return Judge(Ledger(header) if machine is None else BySpec(header, machine), header)


def _require_none(found: Difference | None) -> None:
    if found is not None:
        raise Illegal(found)
