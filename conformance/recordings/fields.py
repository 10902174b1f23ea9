"""Conversion of views to the fields of a recording, and of results to plain data."""

from collections.abc import Mapping
from typing import Final

from conformance.files.serialisation import Decode, Malformed, decoder, inside
from conformance.protocol import Result, Rounds
from conformance.recordings.answers import Change
from conformance.recordings.format import Saw
from spec.fields import RECORDED, entries
from spec.machines import actions as act
from spec.table import BatchPlan
from spec.view import View

Fields = dict[str, dict[int, object]]
"""Values by field and by slot or page. A field without an index has its value at index 0."""


def fields_of(shown: View) -> Fields:
    """A view as the fields of a recording. Fields that the view does not show are left out."""
    return {
        field.name: {
            index: field.to_record(entry)
            for index, entry in entries(field, getattr(shown, field.name)).items()
        }
        for field in RECORDED
        if field.viewed and getattr(shown, field.name) is not None
    }


def changes(old: Fields, new: Fields) -> list[Change]:
    """The fields and indices at which two views of one engine differ."""
    return [
        (name, index)
        for name, values in new.items()
        for index, value in values.items()
        if value != old[name][index]
    ]


def saw(shown: Fields, only: list[Change]) -> Saw:
    """The values of a view at these fields and indices alone."""
    found: Fields = {}
    for name, index in only:
        found.setdefault(name, {})[index] = shown[name][index]
    return found


PLAIN_RESULTS: Final[Mapping[type, str]] = {
    act.Reserve: "the slot",
    act.Clone: "the slot",
    act.Allocate: "the destinations, `page * page_size + offset`, by slot and position",
    act.Pack: "`[token, slot, position]` each",
    act.TakeOutputs: "`[request, choice, tokens, reason]` each",
    act.Generate: "`[rounds, reason]`, with null if no round was refused",
}
"""The form of each result in a recording, in words."""


_RESULTS: Final[Mapping[type, Decode]] = {
    act.Reserve: decoder(int),
    act.Clone: decoder(int),
    act.Allocate: decoder(tuple[int, ...]),
    act.Pack: decoder(tuple[tuple[int, int, int], ...]),
    act.TakeOutputs: decoder(tuple[tuple[int, int, tuple[int, ...], str], ...]),
    act.Generate: decoder(tuple[int, str | None]),
}


def require_result(step: object, result: object) -> None:
    """Raises Malformed for a result that no action of this class has."""
    decode = _RESULTS.get(type(step))
    if decode is None:
        return
    try:
        decode(result)
    except Malformed as error:
        raise inside("result", error) from None


def plain_result(result: Result) -> object:
    """A result as plain data. An allocation becomes the list of its destinations in plan order."""
    match result:
        case BatchPlan():
            return list(result.destinations)
        case Rounds(done, refused):
            return [done, None if refused is None else refused.name]
        case tuple():
            return [_entry(entry) for entry in result]
        case _:
            return result


def _entry(entry: tuple[object, ...]) -> list[object]:
    """An entry of the queue or of the outputs as plain data: tuples as lists, enums as values."""
    return [
        list(part) if isinstance(part, tuple) else getattr(part, "value", part) for part in entry
    ]
