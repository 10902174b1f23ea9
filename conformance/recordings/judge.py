"""The judge of a recording: each line is compared with the specification or its accelerator.

The accelerator is the ledger of `fast_table`, for recordings of the actions of a table alone.
"""

from collections.abc import Callable, Container, Mapping
from typing import Any, Final, Never, Protocol

from attrs import field, frozen

from conformance.history import Attend, PoisonDead, Step
from conformance.lockstep.comparer import (
    refusal_difference,
    result_difference,
    wrong_entry,
)
from conformance.protocol import Action
from conformance.recordings.answers import NOT_SHOWN, NOTHING, Change, Done, Illegal
from conformance.recordings.by_specification import BySpec
from conformance.recordings.fast_table import NONE, Ledger
from conformance.recordings.fields import require_result
from conformance.recordings.format import FIELDS, Header, Line
from conformance.recordings.slots import slots_of
from conformance.rungs.coverage import Coverage
from conformance.rungs.pages import REFUSED
from spec import rung
from spec.fields import BY_NAME
from spec.machines.actions import Allocate, Clone, Reserve
from spec.vocabulary import Reason

_HARNESS: Final = (PoisonDead, Attend)
_LEAST: Final = ("used", "free")
_ORDER: Final = (*(name for name in FIELDS if name not in _LEAST), *_LEAST)
"""The fields of which a wrong entry is told first, for what it says about the others."""

NO_CHANGE: Final = "a refused call changes nothing"

Entry = tuple[str, int, object]
"""A field, a slot or page, and the value seen."""


class Machine(Protocol):
    """The expected state after the lines so far."""

    def reasons(self, action: Action) -> frozenset[Reason]:
        """The reasons for which the action is refused; empty if it is legal."""
        ...

    def do(self, line: Line) -> Done:
        """Take the action of a line, which is legal or was refused. Raises Illegal."""
        ...

    def expected(self, field: str, index: int) -> object:
        """The expected value of an entry of a field."""
        ...

    def agrees(self, field: str, index: int, seen: object) -> bool:
        """Whether an observed value is right."""
        ...

    def holder(self, page: int) -> int | None:
        """A slot whose row names the page; None if no row does."""
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
        """Judge a line and take its action. Raises Illegal, or Malformed for its result."""
        step, _, result, saw = line
        if isinstance(step, _HARNESS):
            reasons, done = None, NOTHING
            if isinstance(step, PoisonDead):
                self.coverage.poisoned()
        else:
            reasons, done = self._act(line, step)
        if result is not None and not done.results:
            require_result(step, result)
            self.uncompared.add(type(step))
        agrees = self.machine.agrees
        for name, values in saw.items():
            for index, seen in values.items():
                if not agrees(name, index, seen):
                    self._wrong(line, done.changes, (name, index, seen))
        shows = self.header.shows
        for name, index in done.changes:
            if name in shows and index not in saw.get(name, ()):
                self._wrong(line, done.changes, (name, index, NOT_SHOWN))
        if reasons is not None and not isinstance(step, _HARNESS):
            self.machine.count(self.coverage, step, reasons)

    def _act(self, line: Line, action: Action) -> tuple[frozenset[Reason] | None, Done]:
        """Why the action was refused, None if for no reason at all; and its effect."""
        try:
            reasons, done = self._answered(line, action)
            wrong = result_difference(action, line.result, done.results)
            if wrong is not None:
                require_result(action, line.result)
                raise Illegal(wrong._replace(note=_advice(action, self.header)))
        except Illegal:
            self._require_others_untouched(line)
            raise
        return reasons, done

    def _answered(self, line: Line, action: Action) -> tuple[frozenset[Reason] | None, Done]:
        expected = self.machine.reasons(action)
        wrong = refusal_difference(line.refused, expected, refuses=self.header.refuses)
        if wrong is not None:
            short = line.refused is None and Reason.OUT_OF_PAGES in expected
            raise Illegal(wrong._replace(note=self._taken_twice(line) if short else ""))
        if line.refused is None:
            return NONE, self.machine.do(line)
        if not line.refused and not expected:
            self.coverage.corners[REFUSED] += 1
            return None, self.machine.do(line)
        return line.refused or expected, self.machine.do(line)

    def _taken_twice(self, line: Line) -> str:
        """Which page a line without a free page shows as new; empty if it shows none."""
        rows = line.saw.get("rows", {})
        for slot in slots_of(line):
            for page in rows.get(slot, ())[self._kept(line.step, slot) :]:
                holder = self.machine.holder(page)
                if holder is not None:
                    return f"page {page} is in rows[{holder}]"
        return ""

    def _kept(self, step: Step, slot: int) -> int:
        """The number of pages that a row has before its new ones."""
        expected = self.machine.expected
        if isinstance(step, Clone) and slot != step.parent:
            written: Any = expected("written", step.parent)
            return self.header.capacity.shared_pages(self.header.geometry, written)
        row: Any = expected("rows", slot)
        return len(row)

    def _require_others_untouched(self, line: Line) -> None:
        """Raise Illegal if a line shows that another slot than its own has changed.

        An action that is not recorded shows up so, and it explains what is wrong with this one.
        """
        slots = slots_of(line)
        if not slots or -1 in slots:
            return
        wrong = [
            (name, index, seen)
            for name, values in line.saw.items()
            if BY_NAME[name].index == "slot"
            for index, seen in values.items()
            if index not in slots and not self.machine.agrees(name, index, seen)
        ]
        if wrong:
            self._tell(line, min(wrong, key=_rank))

    def _wrong(self, line: Line, changes: list[Change], first: Entry) -> Never:
        """Raise Illegal for the entry of a line that says most about what went wrong.

        It is one that the action does not touch, if there is any. Then rows come before counts,
        lengths and tokens, which are before `used`; the number of free pages says least. first: a
        wrong entry.
        """
        agrees, saw, shows = self.machine.agrees, line.saw, self.header.shows
        wrong = [
            (name, index, seen)
            for name, values in saw.items()
            for index, seen in values.items()
            if not agrees(name, index, seen)
        ]
        wrong += [
            (name, index, NOT_SHOWN)
            for name, index in changes
            if name in shows and index not in saw.get(name, ())
        ]
        touched = self._touched(line, changes)
        self._tell(line, min([first, *wrong], key=lambda entry: (touched(entry), _rank(entry))))

    def _touched(self, line: Line, changes: list[Change]) -> Callable[[Entry], bool]:
        """Whether the action of a line concerns an entry."""
        slots = {index for name, index in changes if BY_NAME[name].index == "slot"}
        slots.update(slots_of(line))
        rows = line.saw.get("rows", {})
        pages = {page for slot in slots for page in rows.get(slot, ())}
        pages.update(index for name, index in changes if BY_NAME[name].index == "page")
        concerned: Mapping[str, Container[int]] = {"slot": slots, "page": pages, "whole": (0,)}
        return lambda entry: entry[1] in concerned[BY_NAME[entry[0]].index]

    def _tell(self, line: Line, entry: Entry) -> Never:
        name, index, seen = entry
        expected = self.machine.expected(name, index)
        wrong = wrong_entry(line.step, name, index, seen=seen, expected=expected)
        advice = _advice(line.step, self.header) if name == "rows" else ""
        raise Illegal(wrong._replace(note=advice if line.refused is None else NO_CHANGE))


def judge(header: Header, *, machine: rung.Machine | None) -> Judge:
    """A judge in the initial state. machine: of the specification; None for the fast table."""
    return Judge(Ledger(header) if machine is None else BySpec(header, machine), header)


def _advice(step: Step, header: Header) -> str:
    """What to write instead, if the engine chose another slot or page; empty if it cannot."""
    match step:
        case Reserve(None) | Clone(child=None):
            chosen = "slot" if isinstance(step, Reserve) else "child"
            return f"if the engine may choose, write the slot that it chose as {chosen}"
        case Allocate() | Clone() if header.policy == "lowest":
            return 'write the policy "any" if the engine does not take the lowest free page'
        case _:
            return ""


def _rank(entry: Entry) -> int:
    return _ORDER.index(entry[0])
