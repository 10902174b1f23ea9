"""The format of recordings: JSON Lines with a header, then one line per action.

A line has the action and the values that were observed after it. An engine in any language can
write the format. The writer chooses the fields to record: `shows` in the header names the fields of
which every change is recorded. A value of any other field is compared where it is recorded. The
fields that are never recorded are not checked, and the report lists them. The format is documented
in docs/recordings.md; its schema is conformance/files/schemas/recording.schema.json.
"""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, get_args

import attrs
from attrs import field, frozen

import spec
from conformance.files import atomic
from conformance.files.geometries import NEEDED, geometry_to_data
from conformance.files.histories import STEPS, check_version, step_to_data, unknown_step
from conformance.files.serialisation import (
    SHOWN,
    Decode,
    Malformed,
    checked,
    clipped,
    decoder,
    inside,
    shown,
)
from conformance.history import Step
from conformance.protocol import CALLS, UNASKED, Policy, Profile, Refuses
from spec.fields import RECORDED
from spec.vocabulary import Capacity, CleanupMode, Geometry, Limits, Reason, default_limits
from spec.vocabulary.capacity import COPIES, RESERVATIONS, Copy, Reservation
from spec.vocabulary.rules import INT32

T = TypeVar("T")

VERSION: Final = 3

Saw = Mapping[str, Mapping[int, Any]]
"""Observed values by field and by slot or page. A field without an index is at index 0."""

INDEXED: Final[Mapping[str, Decode]] = {
    field.name: decoder(field.record) for field in RECORDED if field.index != "whole"
}
WHOLE: Final[Mapping[str, Decode]] = {
    field.name: decoder(field.record) for field in RECORDED if field.index == "whole"
}
FIELDS: Final = tuple(field.name for field in RECORDED)
"""The fields that can be observed. An entry of `rows` lists its pages, without padding."""

_ABSENT: Final = object()
_STEPS: Final = {name: decoder(kind) for name, kind in STEPS.items()}
_ACTIONS: Final = tuple(kind.__name__ for kind in CALLS)
_HEADER: Final = {
    "spec_version": decoder(str),
    "engine": decoder(str),
    "geometry": decoder(Geometry),
    "limits": decoder(Limits),
    "cleanup": decoder(CleanupMode),
    "policy": decoder(str),
    "refuses": decoder(str),
    "copy": decoder(str),
    "lookahead": decoder(int),
    "reserve": decoder(str),
    "ring": decoder(int),
    "unasked": decoder(tuple[str, ...]),
    "shows": decoder(tuple[str, ...]),
}
_UNASKED: Final = {kind.__name__: kind for kind in UNASKED}
FOLLOWED: Final = frozenset({"rows", "indexed"})
"""The fields from which it is read what an engine does unasked."""
_CHOICES: Final = {
    "policy": get_args(Policy),
    "refuses": get_args(Refuses),
    "copy": COPIES,
    "reserve": RESERVATIONS,
    "spec_version": (spec.SPEC_VERSION,),
}


@frozen(kw_only=True)
class Header:
    """The configuration and the promises of an engine, as in `conformance.protocol.Profile`.

    engine: a name for reports. shows: the fields of which every change is recorded; those of
    FOLLOWED are among them if the engine does anything unasked.
    """

    geometry: Geometry
    limits: Limits
    engine: str = ""
    cleanup: CleanupMode = CleanupMode.INCREMENTAL
    policy: Policy = "any"
    refuses: Refuses = "exact"
    copy: Copy = "eager"
    lookahead: int = field(default=0, validator=INT32)
    reserve: Reservation = "none"
    ring: int = field(default=0, validator=INT32)
    unasked: frozenset[type] = frozenset()
    shows: tuple[str, ...] = ()

    @property
    def capacity(self) -> Capacity:
        """The capacity policy."""
        return Capacity(
            copy=self.copy, lookahead=self.lookahead, reserve=self.reserve, ring=self.ring
        )


class Line(NamedTuple):
    """One action and its outcome. refused: the reasons of the engine, empty if it named none; None
    if the action was done.

    result: the returned value as plain data; None if it is not recorded. saw: the values that were
    observed after the action.
    """

    step: Step
    refused: frozenset[Reason] | None
    result: object
    saw: Saw


def to_text(header: Header, lines: Iterable[Line]) -> str:
    """A whole recording as text."""
    return header_to_text(header) + "".join(map(line_to_text, lines))


def write(path: Path, header: Header, lines: Iterable[Line]) -> None:
    """Write a whole recording; the folder is created if needed. Raises OSError."""
    atomic.write(path, to_text(header, lines))


def header_to_text(header: Header) -> str:
    """The header as the first line of a file, line break included."""
    kind = {"kvspec": "recording", "version": VERSION, "spec_version": spec.SPEC_VERSION}
    return json.dumps({**kind, **header_to_data(header)}) + "\n"


def header_to_data(header: Header) -> dict[str, object]:
    """A header as plain data."""
    return {
        "engine": header.engine,
        "geometry": geometry_to_data(header.geometry),
        "limits": attrs.asdict(header.limits),
        "cleanup": header.cleanup.value,
        "policy": header.policy,
        "refuses": header.refuses,
        "copy": header.copy,
        "lookahead": header.lookahead,
        "reserve": header.reserve,
        **({"ring": header.ring} if header.ring else {}),
        "unasked": sorted(kind.__name__ for kind in header.unasked),
        "shows": list(header.shows),
    }


def line_to_text(line: Line) -> str:
    """A line as text, line break included."""
    return json.dumps(line_to_data(line)) + "\n"


def line_to_data(line: Line) -> dict[str, object]:
    """A line as plain data."""
    data = step_to_data(line.step)
    if line.refused is not None:
        data["refused"] = sorted(reason.name for reason in line.refused)
    if line.result is not None:
        data["result"] = line.result
    if line.saw:
        data["saw"] = saw_to_data(line.saw)
    return data


def header_from_data(data: Mapping[str, Any]) -> Header:
    """The header that plain data describes. Raises ValueError, TypeError or InvalidInput."""
    check_version(data, "recording", VERSION)
    if "geometry" not in data:
        raise Malformed(
            "the header lacks the field geometry", allowed=f"geometry: {', '.join(NEEDED)}"
        )
    given = {name: value for name, value in data.items() if name not in {"kvspec", "version"}}
    geometry: Geometry = _of_header("geometry", given["geometry"])
    given["limits"] = _with_defaults(given.get("limits", {}), geometry)
    fields = {name: _of_header(name, value) for name, value in given.items()}
    for name, allowed in _CHOICES.items():
        if name in fields and fields[name] not in allowed:
            seen = shown(fields[name])
            raise Malformed(seen, allowed=", ".join(allowed), where=name)
    for where, words in (("shows", FIELDS), ("unasked", sorted(_UNASKED))):
        unknown = sorted(set(fields.get(where, ())) - set(words))
        if unknown:
            raise Malformed(shown(unknown), allowed=", ".join(words), where=where)
    fields["unasked"] = frozenset(_UNASKED[name] for name in fields.get("unasked", ()))
    hidden = sorted(FOLLOWED - set(fields.get("shows", ())))
    if fields["unasked"] and hidden:
        needed = "rows and indexed among others, from which it is read what is done unasked"
        raise Malformed(f"no {', no '.join(hidden)}", allowed=needed, where="shows")
    fields.pop("spec_version", None)
    fields["limits"].check(geometry)
    return Header(**fields)


def _with_defaults(limits: object, geometry: Geometry) -> object:
    """The limits of a header; one that it leaves out has its default for this geometry."""
    if not isinstance(limits, dict):
        return limits
    return {**attrs.asdict(default_limits(geometry)), **limits}


def line_from_data(data: dict[str, Any]) -> Line:
    """The line that plain data describes. The dict is emptied on the way.

    Raises ValueError, TypeError or InvalidInput.
    """
    name, refused = data.pop("step", None), data.pop("refused", _ABSENT)
    result, saw = data.pop("result", _ABSENT), data.pop("saw", _ABSENT)
    decode = _STEPS.get(name) if type(name) is str else None
    if decode is None and "kvspec" in data:
        raise Malformed("a second header", allowed="one, on line 1")
    if decode is None:
        raise unknown_step(name, allowed=_ACTIONS)
    step = decode(data)
    if result is None:
        raise Malformed("None", allowed="a result, or no such field", where="result")
    if result is not _ABSENT and refused is not _ABSENT:
        raise Malformed("a refused action has none", allowed="no such field", where="result")
    return Line(
        step,
        None if refused is _ABSENT else reasons_from_data(refused),
        None if result is _ABSENT else result,
        {} if saw is _ABSENT else saw_from_data(saw),
    )


def header_of(profile: Profile, *, shows: tuple[str, ...]) -> Header:
    """The header for an engine with this profile."""
    return Header(
        engine=profile.name,
        geometry=profile.geometry,
        limits=profile.limits,
        cleanup=profile.cleanup,
        policy=profile.policy,
        refuses=profile.refuses,
        copy=profile.copy,
        lookahead=profile.lookahead,
        reserve=profile.reserve,
        ring=profile.ring,
        unasked=profile.unasked,
        shows=shows,
    )


def profile_of(header: Header, *, actions: frozenset[type]) -> Profile:
    """The profile of an engine with this header that offers these actions."""
    return Profile(
        name=header.engine,
        geometry=header.geometry,
        limits=header.limits,
        cleanup=header.cleanup,
        actions=actions & CALLS,
        unasked=header.unasked,
        policy=header.policy,
        refuses=header.refuses,
        copy=header.copy,
        lookahead=header.lookahead,
        reserve=header.reserve,
        ring=header.ring,
    )


def saw_to_data(saw: Saw) -> dict[str, object]:
    """The observed values as plain data for a line."""
    return {
        name: {str(index): value for index, value in values.items()}
        if name not in WHOLE
        else values[0]
        for name, values in saw.items()
    }


def reasons_from_data(value: Any) -> frozenset[Reason]:
    """The reasons that a line names. Raises Malformed."""
    try:
        reasons = [_reason(name) for name in checked(value, list)]
    except Malformed as error:
        raise inside("refused", error) from None
    found = frozenset(reasons)
    if len(found) < len(reasons):
        raise Malformed(shown(value), allowed="each reason once", where="refused")
    return found


def _reason(name: Any) -> Reason:
    found = Reason.__members__.get(checked(name, str))
    if found is None:
        raise Malformed(clipped(shown(name), 30), allowed=", ".join(Reason.__members__))
    return found


def saw_from_data(value: Any) -> Saw:
    """The observed values that a line names. Raises ValueError, TypeError or InvalidInput."""
    fields: dict[str, Mapping[int, Any]] = {}
    name = index = ""
    try:
        for name, values in checked(value, dict).items():
            index = ""
            decode = INDEXED.get(name)
            if decode is None:
                fields[name] = {0: _known(WHOLE, name, allowed=FIELDS)(values)}
                continue
            found = fields[name] = {}
            for index, item in checked(values, dict).items():
                found[_index(index)] = decode(item)
    except Malformed as error:
        where = f"{name}[{clipped(index, SHOWN)}]" if index else clipped(name, SHOWN)
        raise inside("saw", inside(where, error) if name else error) from None
    return fields


@lru_cache(maxsize=1 << 16)  # a recording names the same slots and pages over and over
def _index(text: str) -> int:
    """The slot or page of a JSON key. Only the digits that Python would write are accepted, so that
    no index can be given twice.
    """
    if not text.isdecimal() or not text.isascii() or str(int(text[:20])) != text:
        raise Malformed("no slot or page", allowed="its number, as 5")
    return int(text)


def _known(table: Mapping[str, T], name: str, *, allowed: Iterable[str]) -> T:
    if name not in table:
        raise Malformed("no such field", allowed=", ".join(allowed))
    return table[name]


def _of_header(name: str, value: object) -> Any:
    try:
        return _known(_HEADER, name, allowed=_HEADER)(value)
    except Malformed as error:
        raise inside(clipped(name, SHOWN), error) from None
