"""A view as the fields of a recording, and a result as plain data."""

from collections.abc import Iterable, Sequence

from conformance.protocol import Result, Rounds
from conformance.recordings.answers import Change
from conformance.recordings.format import Saw
from spec.table import BatchPlan
from spec.view import OutputEntry, View
from spec.vocabulary import INVALID

Fields = dict[str, dict[int, object]]
"""Field to slot or page to value; what has no index is at index 0."""


def fields_of(shown: View) -> Fields:
    """A view as the fields of a recording; those that it does not show are left out.

    A row ends with its last page; a hole before that is wrong, and stays to be seen.
    """
    by_index: dict[str, Iterable[object] | None] = {
        "used": shown.used,
        "rows": tuple(_pages(row) for row in shown.rows),
        "counts": shown.counts,
        "allocated": shown.allocated,
        "written": shown.written,
        "tokens": shown.tokens,
        "finished": shown.finished,
    }
    fields = {
        name: dict(enumerate(values)) for name, values in by_index.items() if values is not None
    }
    if shown.queue is not None:
        fields["queue"] = {0: shown.queue}
    if shown.outputs is not None:
        fields["outputs"] = {0: outputs_of(shown.outputs)}
    return fields


def outputs_of(entries: Iterable[OutputEntry]) -> tuple[tuple[object, ...], ...]:
    """What callers receive, with the reason as its value."""
    return tuple((*rest, why.value) for *rest, why in entries)


def changes(old: Fields, new: Fields) -> list[Change]:
    """Where two views of one engine differ."""
    return [
        (name, index)
        for name, values in new.items()
        for index, value in values.items()
        if value != old[name][index]
    ]


def saw(shown: Fields, only: list[Change]) -> Saw:
    """These values of a view."""
    found: Fields = {}
    for name, index in only:
        found.setdefault(name, {})[index] = shown[name][index]
    return found


def plain_result(result: Result) -> object:
    """A result as plain data: an allocation's is its destinations, in plan order."""
    match result:
        case BatchPlan():
            return list(result.destinations)
        case Rounds(done, refused):
            return [done, None if refused is None else refused.name]
        case tuple():
            return [_entry(entry) for entry in result]
        case _:
            return result


def _pages(row: Sequence[int]) -> tuple[int, ...]:
    end = len(row)
    while end and row[end - 1] == INVALID:
        end -= 1
    return tuple(row[:end])


def _entry(entry: tuple[object, ...]) -> list[object]:
    """An entry of the queue or of the outputs: tuples are lists, the reason is its value."""
    return [
        list(part) if isinstance(part, tuple) else getattr(part, "value", part) for part in entry
    ]
