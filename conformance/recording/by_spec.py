"""The specification itself as the machine that a recording is judged by: slower, and complete."""

from conformance.lockstep import expected_result
from conformance.protocol import Action
from conformance.recording.fields import Fields, changes, fields_of, plain_result
from conformance.recording.illegal import Done
from conformance.recording.lines import Header, Line
from conformance.steps import Attend, PoisonDead
from spec import table, view
from spec.machines import admission
from spec.machines.actions import Allocate
from spec.vocabulary import InvalidInput, Reason


class BySpec:
    """See `conformance.recording.judge.Machine`. Pages are compared as the policy gives them.

    fields: what the specification shows.
    """

    def __init__(self, header: Header) -> None:
        if header.policy != "lowest":
            raise InvalidInput(
                "policy",
                seen=header.policy,
                allowed="lowest, where a recording has queues, prefills, rounds or requests",
                remedy="Record the actions of the table alone, or an engine with that policy.",
            )
        self._state = admission.initial(header.geometry, header.limits, header.cleanup)
        self.fields = self._shown()

    def reasons(self, action: Action) -> frozenset[Reason]:
        """Why the specification refuses this action; empty if it does not."""
        return frozenset(refusal.reason for refusal in admission.refusals(self._state, action))

    def do(self, line: Line) -> Done:
        """Take an action that nothing refuses."""
        assert not isinstance(line.step, PoisonDead | Attend)
        before = self._state
        self._state = admission.effect(before, line.step)
        result = expected_result(before, line.step)
        if isinstance(line.step, Allocate):
            sequences = self._state.scheduling.sequences
            result = table.plan(sequences, line.step.batch, before.scheduling.geometry.page_size)
        old, self.fields = self.fields, self._shown()
        return Done(changes(old, self.fields), plain_result(result))

    def _shown(self) -> Fields:
        shown = view.of(self._state.scheduling)
        free = self._state.scheduling.lifecycle.sharing.counts.count(0)
        return {**fields_of(shown), "free": {0: free}}

    def expected(self, field: str, index: int) -> object:
        """What this field should show."""
        values = self.fields[field]
        return values.get(index, _nothing(field))

    def agrees(self, field: str, index: int, seen: object) -> bool:
        """Whether it is what the specification shows."""
        return seen == self.expected(field, index)


def _nothing(field: str) -> object:
    """What a slot or page shows that does not exist: nothing that can be observed."""
    return f"no such index of {field}"
