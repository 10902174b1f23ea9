"""The specification itself as the machine that a recording is judged by: slower, and complete."""

from collections.abc import Iterable
from typing import Final

from conformance.history import Attend, PoisonDead
from conformance.lockstep.comparer import expected_result
from conformance.protocol import Action
from conformance.recordings.answers import Done
from conformance.recordings.fields import Fields, changes, outputs_of, plain_result
from conformance.recordings.format import Header, Line
from spec import table, view
from spec.machines import admission, scheduling
from spec.machines.actions import Allocate
from spec.table import Sequence
from spec.vocabulary import InvalidInput, Reason

EMPTY: Final = Sequence()


class BySpec:
    """See `conformance.recordings.comparer.Machine`. Pages are compared as the policy gives them.

    fields: what the specification shows now.
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
        geometry = header.geometry
        self.fields = _shown(self._now, range(geometry.slots), range(geometry.pages))

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
        shown = _shown(self._now, *_touched(before.scheduling, self._now))
        changed = changes(self.fields, shown)
        for name, values in shown.items():
            self.fields[name].update(values)
        return Done(changed, plain_result(result))

    @property
    def _now(self) -> scheduling.State:
        return self._state.scheduling

    def expected(self, field: str, index: int) -> object:
        """What this field should show."""
        values = self.fields[field]
        return values.get(index, _nothing(field))

    def agrees(self, field: str, index: int, seen: object) -> bool:
        """Whether it is what the specification shows."""
        return seen == self.expected(field, index)


def _touched(before: scheduling.State, after: scheduling.State) -> tuple[list[int], list[int]]:
    """The slots and the pages in which two states may differ."""
    slots = range(len(after.sequences))
    old, new = before.lifecycle, after.lifecycle
    return (
        [
            slot
            for slot in slots
            if before.sequences[slot] is not after.sequences[slot]
            or old.details[slot] is not new.details[slot]
        ],
        _unlike(old.sharing.counts, new.sharing.counts),
    )


def _unlike(old: tuple[int, ...], new: tuple[int, ...]) -> list[int]:
    if old is new:
        return []
    return [index for index, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1]]


def _shown(state: scheduling.State, slots: Iterable[int], pages: Iterable[int]) -> Fields:
    """What these slots and pages show, and what has no index; as `fields.fields_of` of a view."""
    details, counts = state.lifecycle.details, state.lifecycle.sharing.counts
    held = {slot: state.sequences[slot] or EMPTY for slot in slots}
    return {
        "used": {slot: state.sequences[slot] is not None for slot in held},
        "rows": {slot: sequence.row for slot, sequence in held.items()},
        "counts": {page: counts[page] for page in pages},
        "allocated": {slot: sequence.allocated for slot, sequence in held.items()},
        "written": {slot: sequence.written for slot, sequence in held.items()},
        "tokens": {slot: sequence.tokens for slot, sequence in held.items()},
        "finished": {slot: bool((detail := details[slot]) and detail.finished) for slot in held},
        "queue": {0: tuple((queued.token, queued.slot, queued.position) for queued in state.queue)},
        "outputs": {0: outputs_of(map(view.output_entry, state.lifecycle.outputs))},
        "free": {0: counts.count(0)},
    }


def _nothing(field: str) -> object:
    """What a slot or page shows that does not exist: nothing that can be observed."""
    return f"no such index of {field}"
