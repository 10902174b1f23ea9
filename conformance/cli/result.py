"""The JSON result of a command."""

import json
import math
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from numbers import Integral, Real
from typing import Final

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
"""The keys of every result; a command adds its own."""


def to_text(value: Mapping[str, object]) -> str:
    """The text of the file: one JSON object."""
    return json.dumps(plain(value), indent=2, allow_nan=False) + "\n"


def plain(value: object) -> object:
    """The value as JSON data: enums by value, sets sorted, infinities null, others as text."""
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
