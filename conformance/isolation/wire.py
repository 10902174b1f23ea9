"""The wire protocol between the kit and an engine in another process: one JSON object a line.

An exchange is a recording cut in two: the kit sends a step, and the answer is the rest of its line.
So steps, reasons and fields have the form of `conformance.recordings`. Both sides import this
module, which needs only the standard library and attrs. Documented in docs/adapters.md.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NotRequired, TypedDict

from conformance.files.geometries import geometry_to_data
from conformance.files.histories import STEPS
from conformance.files.serialisation import Decode, decoder, encode
from conformance.lockstep.called import notes_of
from conformance.protocol import (
    Action,
    Batches,
    EngineFailed,
    Policy,
    Profile,
    Refuses,
    Result,
    Rounds,
    Unsupported,
)
from conformance.recordings.fields import Fields, changes, fields_of, plain_result, saw
from conformance.recordings.format import saw_from_data, saw_to_data
from spec.fields import BY_NAME
from spec.machines import actions as act
from spec.table import BatchPlan
from spec.view import View, plain
from spec.vocabulary import (
    CleanupMode,
    FinishReason,
    Geometry,
    InvalidInput,
    Limits,
    Reason,
)
from spec.vocabulary.capacity import Copy, Reservation
from spec.vocabulary.errors import shown

VERSION: Final = 3
"""The version of the protocol; both sides send theirs in their first line."""
WHOLE_VIEW: Final = "whole"
"""The key beside `saw` that says that the view is complete."""


class ProfileData(TypedDict):
    """The declarations of an adapter, without the sizes that it was given."""

    name: str
    actions: list[str]
    refuses: Refuses
    policy: Policy
    guarded: list[str]
    batches: Batches
    copy: Copy
    lookahead: int
    reserve: Reservation
    ring: int
    unasked: list[str]
    contexts: bool


class InvalidData(TypedDict):
    """Bad input as data, so that the other side can raise it. nearest: see `Unsupported`."""

    name: str
    seen: object
    allowed: str
    remedy: str
    notes: list[str]
    nearest: NotRequired[dict[str, int]]


class FailedData(TypedDict):
    """A failure of the engine as data; see `conformance.protocol.EngineFailed`."""

    wrong: str
    clause: NotRequired[str]
    raised: NotRequired[str | None]
    notes: NotRequired[list[str]]


class Answer(TypedDict, total=False):
    """A line of the engine's side; docs/adapters.md says which keys answer what."""

    kvspec: str
    version: int
    spec_version: str
    python: str
    profile: ProfileData
    offers: list[str]
    whole: bool
    saw: Mapping[str, Any]
    refused: list[str]
    result: object
    value: Any
    invalid: InvalidData
    missing: str
    failed: FailedData
    unsendable: str


def profile_to_data(profile: Profile) -> ProfileData:
    """The declarations of an adapter, without the sizes that it was given."""
    return {
        "name": profile.name,
        "actions": sorted(kind.__name__ for kind in profile.actions),
        "unasked": sorted(kind.__name__ for kind in profile.unasked),
        "contexts": profile.contexts,
        "refuses": profile.refuses,
        "policy": profile.policy,
        "guarded": sorted(_guard_to_text(guard) for guard in profile.guarded),
        "batches": profile.batches,
        "copy": profile.copy,
        "lookahead": profile.lookahead,
        "reserve": profile.reserve,
        "ring": profile.ring,
    }


def _guard_to_text(guard: Reason | tuple[type, Reason]) -> str:
    """The name of a reason; `action: reason` for a pair."""
    return f"{guard[0].__name__}: {guard[1].name}" if isinstance(guard, tuple) else guard.name


def _guard_from_text(text: str) -> Reason | tuple[type, Reason]:
    action, _, reason = text.rpartition(": ")
    return (STEPS[action], Reason[reason]) if action else Reason[reason]


def profile_from_data(
    data: ProfileData, *, geometry: Geometry, limits: Limits, cleanup: CleanupMode
) -> Profile:
    """The inverse, with the sizes. Raises KeyError or TypeError."""
    actions = frozenset(STEPS[name] for name in data["actions"])
    return Profile(
        name=data["name"],
        geometry=geometry,
        limits=limits,
        cleanup=cleanup,
        actions=actions,
        unasked=frozenset(STEPS[name] for name in data["unasked"]),
        contexts=data["contexts"],
        refuses=data["refuses"],
        policy=data["policy"],
        guarded=frozenset(map(_guard_from_text, data["guarded"])),
        batches=data["batches"],
        copy=data["copy"],
        lookahead=data["lookahead"],
        reserve=data["reserve"],
        ring=data["ring"],
    )


def invalid_to_data(error: InvalidInput) -> InvalidData:
    """Bad input as data, so that the other side can raise it."""
    plain = error.seen is None or isinstance(error.seen, str | int | float)
    seen = error.seen if plain else shown(error.seen)
    data = InvalidData(
        name=error.name,
        seen=seen,
        allowed=error.allowed,
        remedy=error.remedy,
        notes=list(notes_of(error)),
    )
    if isinstance(error, Unsupported):
        data["nearest"] = geometry_to_data(error.nearest)
    return data


def invalid_from_data(data: InvalidData) -> InvalidInput:
    """The inverse of `invalid_to_data`."""
    name, seen, allowed = data["name"], data["seen"], data["allowed"]
    if "nearest" in data:
        nearest = decoder(Geometry)(data["nearest"])
        return Unsupported(name, seen=seen, allowed=allowed, nearest=nearest)
    error = InvalidInput(name, seen=seen, allowed=allowed, remedy=data["remedy"])
    for note in data["notes"]:
        error.add_note(note)
    return error


def failed_to_data(error: EngineFailed) -> FailedData:
    """A failure of the engine as data, so that the other side can raise it."""
    return FailedData(
        wrong=str(error), clause=error.clause, raised=error.raised, notes=list(notes_of(error))
    )


def failed_from_data(data: FailedData) -> EngineFailed:
    """The inverse of `failed_to_data`."""
    clause, raised = data.get("clause", "ATOMIC"), data.get("raised")
    error = EngineFailed(data["wrong"], clause=clause, raised=raised)
    for note in data.get("notes", ()):
        error.add_note(note)
    return error


def result_to_data(result: Result) -> object:
    """A result in the form of a recording; a plan with all its fields."""
    return encode(result) if isinstance(result, BatchPlan) else plain_result(result)


def result_from_data(action: Action, data: object) -> Any:
    """The result; malformed data is returned as it is, and equals no result."""
    decode = _RESULTS.get(type(action))
    try:
        return data if decode is None else decode(data)
    except (TypeError, ValueError, KeyError):
        return data


def _rounds(value: Any) -> Rounds:
    done, refused = value
    return Rounds(done, None if refused is None else Reason[refused])


def _outputs(value: object) -> tuple[object, ...]:
    entries = decoder(tuple[tuple[int, int, tuple[int, ...], str], ...])(value)
    return tuple((*rest, FinishReason(why)) for *rest, why in entries)


_RESULTS: Final[Mapping[type, Decode]] = {
    act.Allocate: decoder(BatchPlan),
    act.Pack: decoder(tuple[tuple[int, int, int], ...]),
    act.TakeOutputs: _outputs,
    act.Generate: _rounds,
}


class Shown:
    """The last view sent, on the engine's side: finds the changes in the next one."""

    def __init__(self) -> None:
        self._fields: Fields = {}

    def news(self, view: View) -> Answer:
        """The changes; the whole view, if it shows other fields than before."""
        before, self._fields = self._fields, _fields(view)
        if _shape(before) != _shape(self._fields):
            return {WHOLE_VIEW: True, "saw": saw_to_data(self._fields)}
        changed = changes(before, self._fields)
        return {"saw": saw_to_data(saw(self._fields, changed))} if changed else {}


class Seen:
    """The last view received, on the side of the kit: puts the next one together.

    expected: see `View`; it asks the engine.
    """

    def __init__(self, geometry: Geometry, expected: Callable[[tuple[int, ...]], object]) -> None:
        self._geometry, self._expected = geometry, expected
        self._fields: dict[str, dict[int, Any]] = {}
        self.view: View | None = None

    def take(self, news: Answer) -> View:
        """The view after an answer. Raises ValueError, TypeError or InvalidInput."""
        if news.get(WHOLE_VIEW):
            self._fields = {}
        if "saw" in news or self.view is None:
            told = dict(news.get("saw", {}))
            cells = {"cells": _frozen_values(told.pop("cells"))} if "cells" in told else {}
            for name, values in {**saw_from_data(told), **cells}.items():
                self._fields.setdefault(name, {}).update(values)
            self.view = self._build()
        return self.view

    def _build(self) -> View:
        shown: dict[str, Any] = {"counts": None}
        for name, values in self._fields.items():
            field = BY_NAME[name]
            entries = tuple(field.from_record(values[index]) for index in range(len(values)))
            shown[name] = entries[0] if field.index == "whole" else entries
        return View(geometry=self._geometry, expected=self._expected, **shown)


def _fields(view: View) -> Fields:
    cells = {} if view.cells is None else {"cells": dict(_cells(view))}
    return {**fields_of(view), **cells}


def _cells(view: View) -> Iterator[tuple[int, object]]:
    assert view.cells is not None
    for index in range(len(view.cells)):
        yield index, view.cells[index]


def _shape(fields: Fields) -> dict[str, int]:
    return {name: len(values) for name, values in fields.items()}


def _frozen_values(values: Mapping[str, Any]) -> dict[int, object]:
    return {int(index): plain(value) for index, value in values.items()}
