"""The one comparer of recordings: a line, and the machine that says what it should have been.

Two machines: the ledger for the actions of a table, and the specification itself for all others.
"""

from typing import Final, Protocol

from attrs import frozen

from conformance.history import Attend, PoisonDead
from conformance.protocol import Action
from conformance.recordings.answers import Done, Illegal
from conformance.recordings.by_specification import BySpec
from conformance.recordings.fast_table import Ledger
from conformance.recordings.format import Header, Line
from conformance.rungs.registry import clause_of
from spec.fields import BY_NAME
from spec.vocabulary import Reason

_NOTHING: Final = Done([], None)


class Machine(Protocol):
    """What should be: the state after the lines so far."""

    def reasons(self, action: Action) -> frozenset[Reason]:
        """Why the action is refused; empty if it is not."""
        ...

    def do(self, line: Line) -> Done:
        """Take the action of a line that nothing refuses. Raises Illegal."""
        ...

    def expected(self, field: str, index: int) -> object:
        """The value that a field should show."""
        ...

    def agrees(self, field: str, index: int, seen: object) -> bool:
        """Whether a value that was observed can be so."""
        ...


@frozen
class Judge:
    """Takes line after line; the first that is illegal is the last that it can take."""

    machine: Machine
    header: Header

    def take(self, line: Line) -> None:
        """Raises Illegal, with the machine where it stands then."""
        step, _, result, saw = line
        done = _NOTHING if isinstance(step, PoisonDead | Attend) else self._act(line, step)
        if result is not None and done.result is not None and result != done.result:
            raise Illegal("DET", "the result", seen=result, expected=done.result)
        agrees = self.machine.agrees
        for field, values in saw.items():
            for index, seen in values.items():
                if not agrees(field, index, seen):
                    raise self._wrong(line, field, index, seen)
        shows = self.header.shows
        for field, index in done.changes:
            if field in shows and index not in saw.get(field, ()):
                raise self._wrong(line, field, index, "not shown: unchanged")

    def _act(self, line: Line, action: Action) -> Done:
        expected = self.machine.reasons(action)
        if line.refused is None:
            if expected:
                raise Illegal("ATOMIC", "the action", "done", f"refused: {_names(expected)}")
            return self.machine.do(line)
        if not expected and self.header.refuses == "exact":
            raise Illegal("ATOMIC", "the action", f"refused: {_names(line.refused)}", "done")
        if expected and not line.refused <= expected:
            raise Illegal("ATOMIC", "the reason", _names(line.refused), _names(expected))
        return _NOTHING

    def _wrong(self, line: Line, field: str, index: int, seen: object) -> Illegal:
        clause = clause_of(line.step, BY_NAME[field].clause)
        return Illegal(clause, f"{field}[{index}]", seen, self.machine.expected(field, index))


def judge(header: Header, *, whole: bool) -> Judge:
    """A judge in the initial state. whole: by the specification itself, which is slower."""
    return Judge(BySpec(header) if whole else Ledger(header), header)


def _names(reasons: frozenset[Reason]) -> str:
    return ", ".join(sorted(reason.name for reason in reasons)) or "for no reason that is named"
