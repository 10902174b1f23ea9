"""Conversion of recordings to traces in ITF, the Informal Trace Format, and back.

Tools for traces of Quint and Apalache can thus display recordings, and their traces can be judged.
A state has the variables `header` (the header of a recording, of which only the geometry is
required), `action`, `arguments`, `refused` (the reasons; one empty name if the engine named none)
and one variable for each field that is shown. The variable of an indexed field is a map without the
entries that have their initial value. If the header has no `shows`, every change of these fields
counts as shown. Source: Apalache, ADR 015.
"""

import json
import re
from collections.abc import Iterable, Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

from conformance.files import kinds
from conformance.files.jsonl import no_number, open_file, told
from conformance.files.serialisation import checked, shown
from conformance.recordings.by_specification import BySpec
from conformance.recordings.format import (
    INDEXED,
    VERSION,
    WHOLE,
    Header,
    Line,
    header_from_data,
    header_to_data,
    line_from_data,
    line_to_data,
)
from spec import ladder
from spec.vocabulary import InvalidInput

MOST: Final = 100_000
"""Greatest number of actions in one trace: a trace is one JSON object, read into memory whole."""
DIGITS: Final = re.compile(r"-?[0-9]{1,4000}")
_MAPS: Final = tuple(INDEXED)


def to_itf(header: Header, lines: Iterable[Line]) -> dict[str, object]:
    """A recording as the JSON object of a trace. Raises InvalidInput if it is too long."""
    kept = list(islice(lines, MOST + 1))
    if len(kept) > MOST:
        raise InvalidInput(
            "recording",
            seen=f"more than {MOST} lines",
            allowed=f"at most {MOST}",
            remedy="Write the shortest part that is still illegal.",
        )
    seen = {name for line in kept for name in line.saw}
    shown = [name for name in (*_MAPS, *WHOLE) if name in seen]
    now: dict[str, dict[int, object]] = {name: {} for name in shown}
    constant = {"header": header_to_data(header)}
    first = {"action": "init", "arguments": {}, "refused": []}
    blank = _blank(header)
    states = [_state(0, {**constant, **first}, now, blank)]
    for index, line in enumerate(kept, start=1):
        data = line_to_data(line)
        for name in shown:
            now[name] = {**now[name], **line.saw.get(name, {})}
        refused = data.pop("refused", None)
        action = {"action": data.pop("step"), "refused": [""] if refused == [] else refused or []}
        data.pop("saw", None)
        states.append(_state(index, {**constant, **action, "arguments": data}, now, blank))
    meta = {"format": "ITF", "description": f"kvspec recording of {header.engine or 'an engine'}"}
    return {
        "#meta": meta,
        "vars": [name for name in states[0] if name != "#meta"],
        "states": states,
    }


def from_itf(path: Path, *, name: str | None = None) -> tuple[Header, list[Line]]:
    """A trace as a recording: state 0 gives the header, and each later state a line.

    name: the name of the file in messages; None for its own. Raises InvalidInput with the number of
    the state.
    """
    try:
        with open_file(path) as file:
            kinds.require(file, "itf", name=name or path.name)
            data = json.loads(file.read().decode("utf-8"), parse_constant=no_number)
        states = _entry(data, "states")
        if len(states) > MOST + 1:
            raise ValueError(f"{len(states) - 1} actions, more than {MOST}")
        plain = [_plain(checked(state, dict)) for state in states]
        if not plain:
            raise ValueError("a trace without states")
        names = [
            one for one in _entry(data, "vars") if type(one) is str and one in (*_MAPS, *WHOLE)
        ]
        head = {"kvspec": "recording", "version": VERSION, "engine": path.name, "shows": names}
        header = header_from_data({**head, **checked(_part(plain[0], "header"), dict)})
    except (ValueError, TypeError, RecursionError) as error:
        raise _bad(path, 0, error, name=name) from None
    lines = []
    for index, (before, state) in enumerate(pairwise(plain), start=1):
        try:
            lines.append(line_from_data(_line(before, state, names, _blank(header))))
        except (ValueError, TypeError, RecursionError) as error:
            raise _bad(path, index, error, name=name) from None
    return header, lines


def _blank(header: Header) -> Mapping[str, object]:
    """The initial entry of each field, which is the same for all slots and pages."""
    return BySpec(header, ladder.whole()).blank


def _state(
    index: int,
    values: Mapping[str, object],
    now: Mapping[str, Mapping[int, object]],
    blank: Mapping[str, object],
) -> dict[str, object]:
    state: dict[str, object] = {"#meta": {"index": index}, **values}
    for name, entries in now.items():
        if name in WHOLE:
            state[name] = entries.get(0, blank[name])
        else:
            kept = sorted((at, value) for at, value in entries.items() if value != blank[name])
            state[name] = {"#map": [[at, value] for at, value in kept]}
    return state


def _line(
    before: Mapping[str, Any],
    state: Mapping[str, Any],
    shown: list[str],
    start: Mapping[str, object],
) -> dict[str, Any]:
    """The line of a state: its action, and the values that differ from the state before."""
    arguments = checked(_part(state, "arguments"), dict)
    line: dict[str, Any] = {**arguments, "step": _part(state, "action")}
    refused = checked(_part(state, "refused"), list)
    if refused:
        line["refused"] = [name for name in refused if name]
    saw: dict[str, Any] = {}
    for name in shown:
        old, new = _part(before, name), _part(state, name)
        if old == new:
            continue
        if name in WHOLE:
            saw[name] = new
            continue
        checked(old, dict)
        checked(new, dict)
        blank = _listed(start[name])
        changed = {at for at in {**old, **new} if old.get(at, blank) != new.get(at, blank)}
        saw[name] = {str(at): new.get(at, blank) for at in changed}
    return {**line, "saw": saw}


def _entry(data: Any, name: str) -> list[Any]:
    """The list of this name in a trace."""
    found: list[Any] = checked(_part(checked(data, dict), name), list)
    return found


def _part(data: Mapping[str, Any], name: str) -> Any:
    if name not in data:
        raise ValueError(f"no field {name}")
    return data[name]


def _map(pairs: list[Any]) -> dict[Any, Any]:
    made = {}
    for pair in pairs:
        if type(pair) is not list or len(pair) != 2:
            raise ValueError(f"{shown(pair)} should be a key and a value")
        key = _plain(pair[0])
        if isinstance(key, dict | list):
            raise ValueError(f"{shown(key)} should be a slot or page")
        made[key] = _plain(pair[1])
    return made


def _plain(value: Any) -> Any:
    """An ITF value as plain data: tuples and sets as lists, maps as dicts, big integers as int."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"#bigint": str(digits)}:
            if not DIGITS.fullmatch(digits):
                raise ValueError(f"{shown(digits)} is not an integer")
            return int(digits)
        case {"#tup": list(items)}:
            return [_plain(item) for item in items]
        case {"#set": list(items)}:
            return sorted((_plain(item) for item in items), key=str)
        case {"#map": list(pairs)}:
            return _map(pairs)
        case _:
            return {key: _plain(item) for key, item in value.items() if key != "#meta"}


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _bad(path: Path, index: int, error: Exception, *, name: str | None) -> InvalidInput:
    wanted = "a trace in ITF with the variables that docs/recordings.md names"
    seen, allowed = told(error, wanted)
    return InvalidInput(
        f"{name or path.name} state {index}",
        seen=seen,
        allowed=allowed,
        remedy="Correct the file or write it again.",
    )
