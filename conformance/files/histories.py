"""History files: JSON Lines, a header and one line per step; input is data, never code.

The header says how the engine was made and, for a counterexample, which clause was violated. Every
finding can be reproduced from its file alone. A malformed file raises InvalidInput with the line
number.
"""

import json
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

import attrs
from attrs import frozen

import spec
from conformance.files import kinds
from conformance.files.geometries import geometry_to_data
from conformance.files.jsonl import Lines, open_file
from conformance.files.serialisation import Malformed, decoder, encode, shown, text
from conformance.history import Attend, History, PoisonDead, Step
from conformance.protocol import CALLS
from spec.vocabulary import CleanupMode, Geometry, Limits

VERSION: Final = 1
CORPUS: Final = ".kvspec/corpus"
"""The folder of kept findings."""
STEPS: Final[dict[str, type]] = {cls.__name__: cls for cls in (*CALLS, PoisonDead, Attend)}
"""The steps of a history by their names."""
HEADER: Final = (
    "kvspec",
    "version",
    "spec_version",
    "engine",
    "geometry",
    "limits",
    "cleanup",
    "plant",
    "clause",
    "message",
    "python",
    "in_process",
)


OPTIONAL: Final = frozenset({"spec_version", "python", "in_process"})
NEEDED: Final = frozenset(HEADER) - OPTIONAL - {"kvspec", "version"}


@frozen(kw_only=True)
class Recorded:
    """A history, and how its engine is made.

    engine: the value of `--engine`. plant: the planted bug, or None. clause and message: the
    violation. python: the interpreter of the engine's process, None if it was that of the kit.
    in_process: whether a foreign engine ran in the process of the kit. spec_version: of the
    specification that wrote the file, None if it does not say.
    """

    engine: str
    geometry: Geometry
    limits: Limits
    cleanup: CleanupMode
    history: History
    plant: str | None = None
    clause: str | None = None
    message: str | None = None
    python: str | None = None
    in_process: bool = False
    spec_version: str | None = spec.SPEC_VERSION


def dump(recorded: Recorded) -> str:
    """The text of a history file."""
    header = {
        "kvspec": "history",
        "version": VERSION,
        **({} if recorded.spec_version is None else {"spec_version": recorded.spec_version}),
        "engine": recorded.engine,
        "geometry": geometry_to_data(recorded.geometry),
        "limits": attrs.asdict(recorded.limits),
        "cleanup": recorded.cleanup.value,
        "plant": recorded.plant,
        "clause": recorded.clause,
        "message": recorded.message,
        **({} if recorded.python is None else {"python": recorded.python}),
        **({"in_process": True} if recorded.in_process else {}),
    }
    lines = [header, *(step_to_data(step) for step in recorded.history)]
    return "".join(json.dumps(line) + "\n" for line in lines)


def load(path: Path) -> Recorded:
    """Read a history file. Raises InvalidInput with the line number."""
    with open_file(path) as file:
        return _read(file, path)


def loads(data: bytes, path: Path) -> Recorded:
    """Like `load`, from the bytes of a file; the path appears only in messages."""
    return _read(BytesIO(data), path)


def _read(file: BinaryIO, path: Path) -> Recorded:
    kinds.require(file, "history", name=str(path))
    lines = Lines(file, name=str(path), written_by="what `kvspec fuzz` writes")
    header = next(lines.read(_recorded), None)
    if header is None:
        raise lines.bad("an empty file", "a header line and one line per step")
    return attrs.evolve(header, history=tuple(lines.read(step_from_data)))


def step_to_data(step: Step) -> dict[str, object]:
    """A step as plain data: its class name and its fields."""
    return {"step": type(step).__name__, **encode(step)}


def step_from_data(data: Mapping[str, object]) -> Step:
    """The step that plain data describes. Raises ValueError, TypeError or InvalidInput."""
    name = data.get("step")
    if type(name) is not str or name not in STEPS:
        raise unknown_step(name, allowed=STEPS)
    fields = {key: value for key, value in data.items() if key != "step"}
    made: Step = decoder(STEPS[name])(fields)
    return made


def unknown_step(name: object, *, allowed: Iterable[str]) -> Malformed:
    """The error for a name that is no step of a file. allowed: the names of its steps."""
    return Malformed(f"step {shown(name)}", allowed=", ".join(sorted(allowed)))


def _recorded(data: Mapping[str, object]) -> Recorded:
    check_version(data, "history", VERSION)
    for name in data:
        if name not in HEADER:
            raise ValueError(f"the header of a history has no field {shown(name)}")
    for name in NEEDED:
        if name not in data:
            raise ValueError(f"the header lacks the field {name}")
    geometry, limits = decoder(Geometry)(data["geometry"]), decoder(Limits)(data["limits"])
    limits.check(geometry)
    return Recorded(
        engine=text(data["engine"]),
        geometry=geometry,
        limits=limits,
        cleanup=decoder(CleanupMode)(data["cleanup"]),
        history=(),
        plant=_text(data["plant"]),
        clause=_text(data["clause"]),
        message=_text(data["message"]),
        python=_text(data.get("python")),
        in_process=decoder(bool)(data.get("in_process", False)),
        spec_version=_text(data.get("spec_version")),
    )


def check_version(data: Mapping[str, object], kind: str, version: int) -> None:
    """Raises ValueError unless this is the header of a file of this kind and version."""
    if data.get("kvspec") != kind:
        raise ValueError(f"not the header of a {kind}")
    found = data.get("version")
    if type(found) is not int or found != version:
        raise ValueError(f"a {kind} of version {shown(found)}; version {version} is read here")


def _text(value: object) -> str | None:
    return None if value is None else str(text(value))
