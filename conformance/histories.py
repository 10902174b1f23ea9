"""Histories as files: JSON Lines, a header and one line per step; input is data, never code.

The header says how the engine was made and, for a counterexample, what went wrong. Every finding is
reproduced by its file alone. A malformed file is InvalidInput with the number of the line.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Final, TypeVar, get_args, get_origin

import attrs
from attrs import frozen

from conformance.steps import Attend, History, PoisonDead, Step
from spec.machines import actions
from spec.vocabulary import CleanupMode, Geometry, InvalidInput, Limits

T = TypeVar("T")

VERSION: Final = 1
STEPS: Final[dict[str, type]] = {
    cls.__name__: cls
    for cls in (
        actions.Reserve,
        actions.Assign,
        actions.Allocate,
        actions.Write,
        actions.Clone,
        actions.Free,
        actions.FreeFinished,
        actions.Reset,
        actions.TakeOutputs,
        actions.Enqueue,
        actions.Pack,
        actions.Purge,
        actions.Prefill,
        actions.Round,
        actions.Generate,
        actions.Submit,
        actions.Admit,
        PoisonDead,
        Attend,
    )
}
HEADER: Final = (
    "kvspec",
    "version",
    "engine",
    "geometry",
    "limits",
    "cleanup",
    "plant",
    "clause",
    "message",
)
MAX_LINE: Final = 1 << 20
"""Bytes."""


@frozen(kw_only=True)
class Recorded:
    """A history and how its engine is made.

    engine: MODULE:FACTORY. plant: the planted bug, or None. clause and message: what went wrong.
    """

    engine: str
    geometry: Geometry
    limits: Limits
    cleanup: CleanupMode
    history: History
    plant: str | None = None
    clause: str | None = None
    message: str | None = None


def dump(recorded: Recorded) -> str:
    """The text of a history file."""
    header = {
        "kvspec": "history",
        "version": VERSION,
        "engine": recorded.engine,
        "geometry": attrs.asdict(recorded.geometry),
        "limits": attrs.asdict(recorded.limits),
        "cleanup": recorded.cleanup.value,
        "plant": recorded.plant,
        "clause": recorded.clause,
        "message": recorded.message,
    }
    lines = [header, *(step_to_data(step) for step in recorded.history)]
    return "".join(json.dumps(line) + "\n" for line in lines)


def load(path: Path) -> Recorded:
    """Read a history file. Raises InvalidInput with the line number."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _bad(path, 0, seen=str(error), allowed="a readable file") from None
    return loads(data, path)


def loads(data: bytes, path: Path) -> Recorded:
    """The same from the bytes of a file; the path is only named in messages."""
    lines = data.removesuffix(b"\n").split(b"\n")
    if lines == [b""]:
        raise _bad(path, 1, seen="an empty file", allowed="a header line and one line per step")
    header = _parse(path, 1, lines[0], _recorded)
    steps = tuple(_parse(path, number, line, step_from_data) for number, line in _numbered(lines))
    return attrs.evolve(header, history=steps)


def step_to_data(step: Step) -> dict[str, object]:
    """A step as plain data: its class name and its fields."""
    return {"step": type(step).__name__, **attrs.asdict(step, value_serializer=_plain)}


def step_from_data(data: Mapping[str, Any]) -> Step:
    """The step that plain data describes. Raises ValueError, TypeError or InvalidInput."""
    name = data.get("step")
    if name not in STEPS:
        raise ValueError(f"step {name!r} is not one of {sorted(STEPS)}")
    fields = {key: value for key, value in data.items() if key != "step"}
    made: Step = _build(STEPS[name], fields)
    return made


def _recorded(data: Mapping[str, Any]) -> Recorded:
    known = (data.get("kvspec"), data.get("version")) == ("history", VERSION)
    if not known or isinstance(data["version"], bool):
        raise ValueError(f"not the header of a history of version {VERSION}")
    unknown = set(data) - set(HEADER)
    if unknown:
        raise ValueError(f"a header has no field {sorted(unknown)}")
    return Recorded(
        engine=_checked(data["engine"], str),
        geometry=_convert(data["geometry"], Geometry),
        limits=_convert(data["limits"], Limits),
        cleanup=CleanupMode(data["cleanup"]),
        history=(),
        plant=_checked(data["plant"], str | None),
        clause=_checked(data["clause"], str | None),
        message=_checked(data["message"], str | None),
    )


def _numbered(lines: list[bytes]) -> Iterable[tuple[int, bytes]]:
    return enumerate(lines[1:], start=2)


def _parse(path: Path, number: int, line: bytes, build: Callable[[Mapping[str, Any]], T]) -> T:
    if len(line) > MAX_LINE:
        raise _bad(path, number, seen=f"{len(line)} bytes", allowed=f"at most {MAX_LINE}")
    try:
        data = json.loads(line.decode("utf-8"), object_pairs_hook=_without_duplicates)
        if not isinstance(data, dict):
            raise TypeError("not a JSON object")
        return build(data)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        seen = f"{type(error).__name__}: {error}"
        raise _bad(path, number, seen=seen, allowed="what `kvspec fuzz` writes") from None


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return data


def _bad(path: Path, number: int, *, seen: str, allowed: str) -> InvalidInput:
    remedy = "Correct the file or record it again."
    return InvalidInput(f"{path.name} line {number}", seen=seen, allowed=allowed, remedy=remedy)


def _plain(_instance: object, _attribute: object, value: object) -> object:
    return value.value if isinstance(value, Enum) else value


def _build(cls: type, fields: Mapping[str, Any]) -> Any:
    """An attrs object from plain fields, each converted to its annotated type."""
    attrs.resolve_types(cls)
    known = {attribute.name: attribute for attribute in attrs.fields(cls)}
    unknown = set(fields) - set(known)
    if unknown:
        raise ValueError(f"{cls.__name__} has no field {sorted(unknown)}")
    return cls(**{name: _convert(value, known[name].type) for name, value in fields.items()})


def _convert(value: Any, wanted: Any) -> Any:
    if attrs.has(wanted):
        return _build(wanted, _checked(value, dict))
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return wanted(value)
    if get_origin(wanted) is tuple:
        return _convert_tuple(_checked(value, list), get_args(wanted))
    if isinstance(wanted, UnionType):
        if value is None and type(None) in get_args(wanted):
            return None
        return _convert(value, next(arg for arg in get_args(wanted) if arg is not type(None)))
    if wanted is float:
        return float(_checked(value, int | float))
    return _checked(value, int if wanted not in {int, str} else wanted)


def _convert_tuple(values: list[Any], kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_convert(value, kinds[0]) for value in values)
    if len(kinds) != len(values):
        raise ValueError(f"{values} should have {len(kinds)} entries")
    return tuple(_convert(value, kind) for value, kind in zip(values, kinds, strict=True))


def _checked(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{value!r} should be of type {getattr(kind, '__name__', kind)}")
    return value
