"""The page of actions, docs/actions.md, made from the specification.

Reasons and their order come from the checks of a machine, words from docstrings, and examples from
a history that the specification takes. `python -m conformance.recordings.actions_page FILE` writes
the page.
"""

import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import product
from pathlib import Path
from typing import Any, Final

import attrs
from attrs import evolve, frozen

from conformance.files import atomic
from conformance.protocol import CALLS, RESULTS, Action
from conformance.recordings.fields import PLAIN_RESULTS, changes, fields_of, plain_result, saw
from conformance.recordings.format import Header, Line, line_to_data
from conformance.rungs.registry import legal_results
from spec import fields, ladder, view
from spec.machines import actions as act
from spec.rung import Check, ChecksOf, Machine
from spec.state import State
from spec.vocabulary import (
    CleanupMode,
    FinishReason,
    Geometry,
    Limits,
    Params,
    Reason,
    Request,
    ResetMode,
    default_limits,
    rules,
)

MACHINE: Final = ladder.whole()
INTERNAL: Final = frozenset({act.Sample})
"""Actions that only contain in others: no caller calls them."""
GEOMETRY: Final = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4, window=3)

_PROMPT: Final = tuple((0, position) for position in range(5))
_REQUEST: Final = Request(id=2, prompt=(5, 6), params=Params(max_new=4))
EXAMPLES: Final[tuple[Action, ...]] = (
    act.Reserve(),
    act.Assign(0, (5, 6, 7, 8, 9), Params(max_new=9), request=1),
    act.Allocate(_PROMPT),
    act.Write(_PROMPT),
    act.Clone(0, choice=1),
    act.Free(1),
    act.Enqueue(0, 3),
    act.Purge(0),
    act.Propose(0, (4, 7)),
    act.Pack(),
    act.Allocate(((0, 5), (0, 6), (0, 7))),
    act.Write(((0, 5), (0, 6), (0, 7))),
    act.Commit(0, 7),
    act.Truncate(0, 7),
    act.Publish(0, 4),
    act.Reserve(),
    act.Assign(1, (5, 6, 7, 8, 9), Params(max_new=1), request=3),
    act.Hit(1, 4),
    act.Free(1),
    act.Reserve(),
    act.Assign(1, (5, 6, 7, 8, 9), Params(max_new=1), request=3),
    act.Share(0, 1, 4),
    act.Free(1),
    act.Reserve(),
    act.Assign(1, (5, 6, 7, 8, 9), Params(max_new=1), request=3),
    act.Allocate(tuple((1, position) for _, position in _PROMPT)),
    act.Write(tuple((1, position) for _, position in _PROMPT)),
    act.Merge(1, 0),
    act.Free(1),
    act.Release(0, 4),
    act.Evict((5, 6, 7, 8)),
    act.Drop(),
    act.Prefill((evolve(_REQUEST, params=Params(max_new=1)),)),
    act.FreeFinished(),
    act.TakeOutputs(),
    act.Reserve(),
    act.Assign(1, (5, 6), Params(max_new=4), request=3),
    act.MixedRound(((1, 2),)),
    act.Preempt(3),
    act.Reserve(),
    act.Assign(1, (5, 6), Params(max_new=4), request=3),
    act.Replay(1, (7,)),
    act.Free(1),
    act.Reserve(),
    act.Assign(1, (5, 6), Params(max_new=4), request=3),
    act.Dispatch(((1, 2),)),
    act.Retire(),
    act.Deliver(),
    act.Free(1),
    act.Prefill((_REQUEST,)),
    act.Round(),
    act.Generate(),
    act.Reset(),
    act.Submit(_REQUEST),
    act.Admit(),
)
"""A legal history with every action that a caller calls; the first of a kind is its example."""
APART: Final[tuple[Action, ...]] = (act.Append(0, (7, 8)),)
"""Examples that have no place in the history: a round never writes a token that is not queued."""

_CALLED: Final = {rules.NAME: rules.SLOT, rules.NAME_OR_ANY: rules.SLOT_OR_ANY}
"""The rule of what a caller calls a sequence: by its slot, never by (request, choice)."""

_HEAD: Final = """\
# The actions

Every action that an engine may offer: its fields, its effect, when it is refused, and its result.
`make actions` writes this page from the specification; a test compares them.

An action is done, or refused as a whole: then nothing changes. It is legal if no condition of its
table holds. **The first condition that holds, in the order of the table, is always a right
reason.** Conditions with a higher number are asked only if those with lower numbers do not hold;
conditions with the same number are asked together. If several are found, any one of them may be
given; "also beside" names reasons of lower numbers that do not end the questions. A condition
about something that your engine does not have (prompts, a queue, drafts) never holds. A condition
that begins with an action, such as `Append`, is one of that action, which is a part of this one.

The column "rung" names the part of the specification that asks. Those of *rollback* are asked only
of an engine that offers `Propose`, `Commit`, `Truncate`, `Release` or an action of *prefix* or
*flights*, or has a `ring`; those of *window* only if it offers `Release` or has a `ring`, those of
*prefix* only if it offers `Hit`, `Share`, `Publish`, `Merge`, `Evict` or `Drop`, and those of
*flights* only if it offers `Dispatch`, `Retire` or `Deliver`.

An action that has a result says so: `apply` returns it, and it is compared unless it is None. Any
other action returns None. The examples are lines of one recording, with the policy "lowest"; `saw`
has every field of the view that changed. A refused action has no result, but for instance
`"refused": ["SLOT_USED"]`. A field with a default may be left out. In JSON a tuple is a list, and
None is null.

In Python the actions are in `spec.machines.actions`, and `Params`, `Request`, `ResetMode` and
`Reason` in `spec.vocabulary`.
"""


Parts = tuple[ChecksOf[Any], ...]


@frozen
class Asked:
    """A check of an action. rung: the rung that makes it. parts: the actions that it is made of."""

    check: Check[Any]
    rung: str
    parts: Parts

    @property
    def label(self) -> str:
        """Its reason, and of which part of the action it is."""
        return " of ".join(
            [self.check.reason.name, *(f"`{part.kind.__name__}`" for part in self.parts)]
        )

    def holds(self, machine: Machine, state: State, action: Action) -> bool:
        """Whether its condition holds. It must be asked only when its turn has come."""
        for part in self.parts:
            machine, action = part.machine(machine), part.action(machine, state, action)
        return any(self.check.refusals(machine, machine.prepared(state, action), action))


@frozen
class Row:
    """One condition of an action.

    number: its place in the order. beside: the labels of those with lower numbers that may be given
    together with this one.
    """

    number: int
    asked: Asked
    beside: frozenset[str]

    @property
    def reason(self) -> Reason:
        """The reason that is given if the condition holds."""
        return self.asked.check.reason


def conditions(machine: Machine, kind: type) -> tuple[Row, ...]:
    """The conditions of an action in the order in which they are asked."""
    every, ends = _asked(machine, kind, ())
    numbers = [1] * len(every)
    for _ in every:  # the longest path to each
        for before, after in ends:
            numbers[after] = max(numbers[after], numbers[before] + 1)
    found = []
    for at, asked in enumerate(every):
        beside = {
            other.label
            for before, other in enumerate(every)
            if numbers[before] < numbers[at] and (before, at) not in ends
        }
        found.append(Row(numbers[at], asked, frozenset(beside - {asked.label})))
    return tuple(sorted(found, key=lambda row: row.number))


def _asked(machine: Machine, kind: type, parts: Parts) -> tuple[list[Asked], set[tuple[int, int]]]:
    """The checks of an action; and pairs of their numbers, of which the first ends the second.

    A check ends another one if that is not made, or is replaced, when the first finds something.
    """
    every: list[Asked] = []
    ends: set[tuple[int, int]] = set()
    for rung, stage in machine.stages(kind):
        start = len(every)
        for one in stage.checks:
            if isinstance(one, ChecksOf):
                inner, pairs = _asked(one.machine(machine), one.kind, (*parts, one))
                ends |= {(len(every) + before, len(every) + after) for before, after in pairs}
                every += inner
            else:
                every.append(Asked(one, rung, parts))
        for after, before in product(range(start, len(every)), range(start)):
            if every[before].check.reason in stage.unless:
                ends.add((before, after))
            elif stage.first:
                ends.add((after, before))
    return _possible(every, ends)


def _possible(
    every: list[Asked], ends: set[tuple[int, int]]
) -> tuple[list[Asked], set[tuple[int, int]]]:
    """Without the checks of parts of an action that cannot find anything there."""
    kept = [
        at
        for at, asked in enumerate(every)
        if not any({asked.check.reason, asked.check} & part.never.keys() for part in asked.parts)
    ]
    pairs = {(kept.index(one), kept.index(two)) for one, two in ends if {one, two} <= {*kept}}
    return [every[at] for at in kept], pairs


def meanings(kind: type[attrs.AttrsInstance]) -> tuple[str, dict[str, str]]:
    """A docstring's text, and its meaning of each field: `name: meaning.` in its last paragraph."""
    text = " ".join((inspect.getdoc(kind) or "").split("\n\n"))
    names = [attribute.name for attribute in attrs.fields(kind)]
    if not names:
        return " ".join(text.split()), {}
    pattern = rf"(?:^|(?<=\. ))((?:(?:{'|'.join(names)})(?:, )?)+): "
    effect, *parts = re.split(pattern, " ".join(text.split()))
    found = {
        name: meaning.strip().removesuffix(".")
        for told, meaning in zip(parts[::2], parts[1::2], strict=True)
        for name in told.split(", ")
    }
    return effect.strip(), found


def python_form(value: object) -> str:
    """A value as Python, without what it leaves at its default."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, tuple):
        inner = ", ".join(map(python_form, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if attrs.has(type(value)):
        given = ", ".join(f"{name}={python_form(part)}" for name, part in _given(value))
        return f"{type(value).__name__}({given})"
    return repr(value)


def _given(value: Any) -> Iterator[tuple[str, object]]:
    """The fields that are not at their defaults."""
    for attribute in attrs.fields(type(value)):
        part = getattr(value, attribute.name)
        if part != attribute.default:
            yield attribute.name, part


def recorded() -> tuple[Header, tuple[Line, ...]]:
    """The history of the examples as a recording of the specification."""
    header = Header(
        geometry=GEOMETRY,
        limits=default_limits(GEOMETRY),
        cleanup=CleanupMode.NONE,
        policy="lowest",
        shows=tuple(one.name for one in fields.RECORDED if one.viewed),
    )
    state = MACHINE.initial(header.geometry, header.limits, header.cleanup)
    lines = []
    for action in EXAMPLES:
        after = MACHINE.step(state, action)
        result = next(iter(legal_results(MACHINE, state, action, after)), None)
        old, new = (fields_of(view.of(MACHINE, one)) for one in (state, after))
        lines.append(Line(action, None, plain_result(result), saw(new, changes(old, new))))
        state = after
    return header, tuple(lines)


def examples() -> Mapping[type, Line]:
    """The example of each action."""
    _, lines = recorded()
    apart = [Line(action, None, None, {}) for action in APART]
    return {type(line.step): line for line in (*reversed(lines), *apart)}


def page() -> str:
    """The text of the page."""
    shown = examples()
    parts = [_HEAD, *_fields_of_the_state(), *_summary()]
    for rung in MACHINE.rungs:
        parts.append(f"## Rung {rung.name}\n")
        parts += [_action(kind, shown) for kind in rung.rules]
    parts += _values()
    return "\n".join(map(_wrapped, parts))


def _wrapped(part: str) -> str:
    """The text with lines of prose of at most 100 characters."""
    lines = part.split("\n")
    return "\n".join(
        line if line.startswith(("|", "{", "`")) else textwrap.fill(line, 100) for line in lines
    )


def _summary() -> Iterator[str]:
    lines = ["| rung | actions |", "|---|---|"]
    for rung in MACHINE.rungs:
        links = (f"[`{kind.__name__}`](#{kind.__name__.lower()})" for kind in rung.rules)
        lines.append(f"| [{rung.name}]({_page_of(rung.name)}) | {', '.join(links)} |")
    yield "\n".join(lines) + "\n"


def _page_of(rung: str) -> str:
    return "scheduling.md" if rung == "admission" else f"{rung}.md"


def _action(kind: type, shown: Mapping[type, Line]) -> str:
    """The section of one action."""
    effect, fields_meant = meanings(kind)
    parts = [f"### {kind.__name__}", effect]
    if kind in INTERNAL:
        parts.append("Internal: `Prefill` and `Round` contain it, and no caller calls it.")
        return "\n\n".join(parts) + "\n"
    if kind not in CALLS:
        parts.append("No engine offers it yet: `Enqueue`, `Assign` and others contain it.")
    if attrs.fields(kind):
        parts.append(_table(kind, fields_meant))
    parts.append(_reasons(conditions(MACHINE, kind)))
    if kind in RESULTS:
        parts.append(f"Result: {RESULTS[kind].words}. In a recording: {PLAIN_RESULTS[kind]}.")
    line = shown[kind]
    parts.append(f"```json\n{_json(line)}\n```")
    parts.append(f"`{python_form(line.step)}`")
    return "\n\n".join(parts) + "\n"


def _table(kind: type[attrs.AttrsInstance], meant: Mapping[str, str]) -> str:
    lines = ["| field | | allowed |", "|---|---|---|"]
    for attribute in attrs.fields(kind):
        allowed = _CALLED.get(attribute.validator, attribute.validator).allowed
        default = attribute.default
        if default is not attrs.NOTHING:
            allowed += f"; default {python_form(default)}"
        lines.append(f"| `{attribute.name}` | {meant[attribute.name]} | {allowed} |")
    return "\n".join(lines)


def _reasons(found: tuple[Row, ...]) -> str:
    if not found:
        return "Never refused."
    lines = ["| | reason | refused if | rung |", "|---|---|---|---|"]
    for row in found:
        beside = ", ".join(sorted(row.beside))
        within = "".join(f"`{part.kind.__name__}`: " for part in row.asked.parts)
        condition = _lower(row.asked.check.when) + f" (also beside {beside})" * bool(beside)
        lines.append(
            f"| {row.number} | `{row.reason.name}` | {within}{condition} | {row.asked.rung} |"
        )
    return "\n".join(lines)


def _lower(sentence: str) -> str:
    text = " ".join(sentence.split()).removesuffix(".")
    return text[0].lower() + text[1:]


def _json(line: Line) -> str:
    """A line of a recording, without fields at their defaults."""
    kept = _plain(line.step)
    rest = {key: value for key, value in line_to_data(line).items() if key in ("result", "saw")}
    return json.dumps({"step": type(line.step).__name__, **kept, **rest})


def _plain(value: Any) -> dict[str, object]:
    """The fields of a value that are not at their defaults, as plain data."""
    return {name: _plain_part(part) for name, part in _given(value)}


def _plain_part(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain_part(part) for part in value]
    return _plain(value) if attrs.has(type(value)) else value


def _fields_of_the_state() -> Iterator[str]:
    """The words of the page: the fields of the state, and the sizes."""
    yield "## Words\n"
    lines = ["| field of the state | of each | |", "|---|---|---|"]
    for one in fields.FIELDS:
        index = "" if one.index == "whole" else one.index
        lines.append(f"| `{one.name}` | {index} | {one.meaning} |")
    yield "\n".join(lines) + "\n"
    yield (
        "`page_size`, `pages`, `slots`, `pages_per_seq` and `window` are those of the geometry. "
        "`max_len` is `page_size * pages_per_seq`.\n"
    )
    _, meant = meanings(Limits)
    yield (
        "\n".join(
            [
                "| limit | |",
                "|---|---|",
                *(f"| `limits.{name}` | {meant[name]} |" for name in meant),
            ]
        )
        + "\n"
    )


def _values() -> Iterator[str]:
    """The values that actions carry, and the reasons."""
    yield "## Values\n"
    for kind in (Request, Params):
        text, meant = meanings(kind)
        yield f"`{kind.__name__}`: {_lower(text)}.\n"
        yield _table(kind, meant) + "\n"
    for mode in (CleanupMode, ResetMode, FinishReason):
        told = (inspect.getdoc(mode) or "").partition("Source:")[0]
        values = ", ".join(f"`{json.dumps(one.value)}`" for one in mode)
        yield f"`{mode.__name__}`: {_lower(told)}. In JSON: {values}.\n"
    yield "## Reasons\n"
    lines = ["| reason | code | |", "|---|---|---|"]
    lines += [f"| `{one.name}` | {one.value} | {one.meaning} |" for one in Reason]
    yield "\n".join(lines) + "\n"


def main() -> None:
    """Write the page to the file that the command line names."""
    atomic.write(Path(sys.argv[1]), page())


if __name__ == "__main__":
    main()
