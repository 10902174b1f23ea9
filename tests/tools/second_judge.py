"""A second judge of recordings, written from docs/recordings.md upon the specification alone.

It is slow and plain: before and after each line it has the whole state as values by field. Nothing
of `conformance.recordings` decides here; its words for a line and for a difference are used.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from conformance.history import Attend, PoisonDead, Step
from conformance.recordings.fields import plain_result
from conformance.recordings.format import Header, Line
from conformance.rungs.registry import ACTIONS, clause_of, legal_results
from spec.fields import BY_NAME, RECORDED, entries
from spec.machines import actions as act
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import Reason

ORDER: Final = (
    *("rows", "counts", "allocated", "written", "committed", "first_page"),
    *("indexed", "idle_ranks", "contexts", "stale", "tokens", "proposed"),
    *("finished", "queue", "outputs", "flights", "held", "used", "free"),
)
"""Of the wrong values of a line, those of an earlier field are told first."""

Told = tuple[str, str, object, object]
"""The clause, what is wrong, the value seen and the value expected."""


class Verdict(NamedTuple):
    """told: what is wrong with a line; None if it is legal. after: the state after it.

    outcomes: the item of coverage of each reason, or of having been done.
    """

    told: Told | None
    after: State
    outcomes: tuple[str, ...]


def values(state: State) -> dict[tuple[str, int], object]:
    """Every value that a recording may show of a state."""
    return {
        (field.name, index): field.to_record(entry)
        for field in RECORDED
        for index, entry in entries(field, field.of(state)).items()
    }


def initial(header: Header, machine: Machine) -> State:
    """The state before the first line."""
    return machine.initial(header.geometry, header.limits, header.cleanup, header.capacity)


def judged(header: Header, machine: Machine, state: State, line: Line) -> Verdict:
    """The verdict on one line in a state."""
    step, after = line.step, state
    if isinstance(step, PoisonDead | Attend):
        return Verdict(_of_values(header, state, state, line), state, ())
    reasons = {found.reason for found in machine.refusals(state, step)}
    names = ", ".join(sorted(reason.name for reason in reasons))
    given = ", ".join(sorted(reason.name for reason in line.refused or ())) or "no reason given"
    wrong: Told | None = None
    if line.refused is None and reasons:
        wrong = ("ATOMIC", "the action", "done", f"refused: {names}")
    elif line.refused is not None and not reasons and header.refuses == "exact":
        wrong = ("ATOMIC", "the action", f"refused: {given}", "done")
    elif line.refused and reasons and not line.refused <= reasons:
        wrong = ("ATOMIC", "the reason", given, "one of " * (len(reasons) > 1) + names)
    if line.refused is None and not reasons:
        after = machine.effect(state, step)
        legal = [plain_result(one) for one in legal_results(machine, state, step, after)]
        if line.result is not None and legal and line.result not in legal:
            clause = ACTIONS[type(step)].result_clause
            wrong = (clause, "the result", line.result, " or ".join(map(str, legal)))
    if wrong is not None:
        other = _of_others(after, line)
        return Verdict(other or wrong, after, ())
    found = _of_values(header, state, after, line)
    why = line.refused if line.refused else reasons if line.refused is not None else {None}
    return Verdict(found, after, tuple(_outcome(step, reason) for reason in why))


def _outcome(step: Step, reason: Reason | None) -> str:
    return f"{type(step).__name__}: {'done' if reason is None else reason.name}"


def _shown(line: Line) -> Iterator[tuple[str, int, object]]:
    for name, found in line.saw.items():
        yield from ((name, index, seen) for index, seen in found.items())


def _of_values(header: Header, before: State, after: State, line: Line) -> Told | None:
    """The wrong value of a line that says most."""
    old, new = values(before), values(after)
    wrong = [
        (name, index, seen)
        for name, index, seen in _shown(line)
        if (name, index) not in new or new[name, index] != seen
    ]
    changed = [entry for entry in new if new[entry] != old[entry]]
    wrong += [
        (name, index, "not shown: unchanged")
        for name, index in changed
        if name in header.shows and index not in line.saw.get(name, ())
    ]
    if not wrong:
        return None
    slots = {index for name, index in changed if BY_NAME[name].index == "slot"}
    slots |= set(about(line))
    pages = {index for name, index in changed if BY_NAME[name].index == "page"}
    for slot in slots:
        pages.update(line.saw.get("rows", {}).get(slot, ()))

    def says(entry: tuple[str, int, object]) -> tuple[bool, int]:
        name, index, _ = entry
        own = {"slot": slots, "page": pages, "whole": {0}}[BY_NAME[name].index]
        return index in own, ORDER.index(name)

    return _told(line, min(wrong, key=says), new)


def _of_others(after: State, line: Line) -> Told | None:
    """A wrong value of a slot that the line is not about."""
    slots, new = about(line), values(after)
    if not slots or -1 in slots:
        return None
    wrong = [
        (name, index, seen)
        for name, index, seen in _shown(line)
        if BY_NAME[name].index == "slot" and index not in slots and new.get((name, index)) != seen
    ]
    if not wrong:
        return None
    return _told(line, min(wrong, key=lambda entry: ORDER.index(entry[0])), new)


def _told(line: Line, entry: tuple[str, int, object], new: dict[tuple[str, int], object]) -> Told:
    name, index, seen = entry
    what = name if BY_NAME[name].index == "whole" else f"{name}[{index}]"
    expected = new.get((name, index), f"no such index of {name}")
    return clause_of(line.step, BY_NAME[name].clause), what, seen, expected


def about(line: Line) -> Sequence[int]:
    """The slots that a line names, in order; -1 for one that the engine chose and does not tell."""
    step: Any = line.step
    chosen = line.result if isinstance(line.result, int) else -1
    if isinstance(step, act.Allocate | act.Write):
        return list(dict.fromkeys(entry[0] for entry in step.batch if entry is not None))
    if isinstance(step, act.Share):
        return [step.parent, step.slot]
    if isinstance(step, act.Clone):
        return [step.parent, chosen if step.child is None else step.child]
    slot: Any = getattr(step, "slot", None)
    if isinstance(step, act.Reserve):
        return [chosen if slot is None else slot]
    return [slot] if isinstance(slot, int) else []


def line_of(machine: Machine, state: State, step: Step, *, shows: Sequence[str]) -> Line:
    """The line that the specification writes for a step, with every change of these fields."""
    if isinstance(step, PoisonDead | Attend):
        return Line(step, None, None, {})
    reasons = frozenset(found.reason for found in machine.refusals(state, step))
    if reasons:
        return Line(step, reasons, None, {})
    after = machine.effect(state, step)
    old, new = values(state), values(after)
    saw: dict[str, dict[int, object]] = {}
    for name, index in new:
        if name in shows and new[name, index] != old[name, index]:
            saw.setdefault(name, {})[index] = new[name, index]
    results = legal_results(machine, state, step, after)
    return Line(step, None, plain_result(next(iter(results), None)), saw)
