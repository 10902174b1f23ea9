"""The specification as the machine of the judge: slower than the fast table, and complete."""

from collections.abc import Iterable

from conformance.history import Attend, PoisonDead
from conformance.protocol import Action
from conformance.recordings.answers import Done, no_such
from conformance.recordings.fields import Fields, changes, plain_result
from conformance.recordings.format import Header, Line
from conformance.rungs.coverage import Coverage
from conformance.rungs.registry import legal_results
from spec.fields import RECORDED
from spec.rung import Machine
from spec.state import PER_PAGE, PER_SLOT, State
from spec.vocabulary import InvalidInput, Reason


class BySpec:
    """See `conformance.recordings.judge.Machine`. Pages are compared as the policy gives them.

    fields: the entries that the specification expects now.
    """

    def __init__(self, header: Header, machine: Machine) -> None:
        if header.policy != "lowest":
            raise InvalidInput(
                "policy",
                seen=header.policy,
                allowed="lowest, where a recording has other actions than those of a table",
                remedy="Record the actions of the table alone, or an engine with that policy.",
            )
        self._machine = machine
        self._before = self._state = machine.initial(
            header.geometry, header.limits, header.cleanup, header.capacity
        )
        geometry = header.geometry
        self.fields = _shown(machine, self._state, range(geometry.slots), range(geometry.pages))

    def reasons(self, action: Action) -> frozenset[Reason]:
        """The reasons for which the specification refuses the action; empty if it is legal."""
        return frozenset(refusal.reason for refusal in self._machine.refusals(self._state, action))

    def do(self, line: Line) -> Done:
        """Take a legal action."""
        assert not isinstance(line.step, PoisonDead | Attend)
        self._before = before = self._state
        self._state = self._machine.effect(before, line.step)
        results = legal_results(self._machine, before, line.step, self._state)
        shown = _shown(self._machine, self._state, *_touched(before, self._state))
        changed = changes(self.fields, shown)
        for name, values in shown.items():
            self.fields[name].update(values)
        return Done(changed, [plain_result(result) for result in results])

    def count(self, coverage: Coverage, action: Action, reasons: frozenset[Reason]) -> None:
        """Count the last action. reasons: why it was refused; empty if it was done."""
        coverage.record(self._state if reasons else self._before, action, reasons, self._state)

    def expected(self, field: str, index: int) -> object:
        """The expected value of an entry of a field."""
        values = self.fields[field]
        return values.get(index, no_such(field))

    def holder(self, page: int) -> int | None:
        """A slot whose row names the page; None if no row does."""
        sequences = enumerate(self._state.sequences)
        return next((slot for slot, one in sequences if one and page in one.row), None)

    def agrees(self, field: str, index: int, seen: object) -> bool:
        """Whether a value is the expected one."""
        return seen == self.expected(field, index)


def _touched(before: State, after: State) -> tuple[list[int], list[int]]:
    """The slots and the pages in which two states may differ."""
    return _unlike(before, after, PER_SLOT), _unlike(before, after, PER_PAGE)


def _unlike(before: State, after: State, components: Iterable[str]) -> list[int]:
    """The indices at which one of these components differs."""
    found = set[int]()
    for name in components:
        old, new = getattr(before, name), getattr(after, name)
        if old is not new:
            pairs = enumerate(zip(old, new, strict=True))
            found |= {index for index, (one, other) in pairs if one != other}
    return sorted(found)


def _shown(machine: Machine, state: State, slots: Iterable[int], pages: Iterable[int]) -> Fields:
    """The entries of these slots and pages, and of the fields without an index."""
    found = {"slot": tuple(slots), "page": tuple(pages), "whole": (0,)}
    shown: Fields = {}
    for field in RECORDED:
        if field.owner not in machine.names and field.index != "whole":
            continue
        values = field.of(state)
        entries = (values,) if field.index == "whole" else values
        shown[field.name] = {index: field.to_record(entries[index]) for index in found[field.index]}
    return shown
