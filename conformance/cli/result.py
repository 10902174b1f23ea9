"""The JSON result of a command: claimed before the work, written whole or not at all after it."""

import json
import math
import os
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from numbers import Integral, Real
from pathlib import Path
from typing import Final

from spec.vocabulary.errors import InvalidInput

KEYS: Final = (
    "command",
    "verdict",
    "scope",
    "seed",
    "seconds",
    "geometry",
    "spec_version",
    "not_checked",
    "failures",
    "interrupted",
    "error",
)
"""The keys that every result has; a command adds its own."""


def claim(path: Path) -> Path:
    """The file to write later, its links followed; an older result there is removed now.

    So a result never outlives the run that should have replaced it, and a path that cannot be
    written is bad usage before the work rather than a loss after it. Raises InvalidInput.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise _unwritable(path, seen="something that is not a regular file")
    try:
        scratch = _scratch(target)
        scratch.touch()
        scratch.unlink()
        target.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, seen=error.strerror or type(error).__name__) from None
    return target


def write(target: Path, value: Mapping[str, object]) -> None:
    """Write one JSON object, atomically. Raises OSError."""
    scratch = _scratch(target)
    try:
        text = json.dumps(plain(value), indent=2, allow_nan=False)
        scratch.write_text(f"{text}\n", encoding="utf-8")
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def plain(value: object) -> object:
    """The same as JSON data: enums by value, sets sorted, infinities null, the rest as text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [plain(item) for item in value]
    return str(value)


def _scratch(target: Path) -> Path:
    """A name in the same folder that no other process uses."""
    return target.with_name(f".{target.name}.{os.getpid()}.partial")


def _unwritable(path: Path, *, seen: str) -> InvalidInput:
    return InvalidInput(
        f"--json {path}",
        seen=seen,
        allowed="a new or regular file in a folder that can be written",
        remedy="Name another file.",
    )
