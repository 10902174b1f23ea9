"""A geometry as text, as the options of the commands and of pytest name it, and as plain data."""

from typing import Final

import attrs

from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.geometry import Geometry
from spec.vocabulary.rules import INT32_MAX

_DEFAULTS: Final = {field.name: field.default for field in attrs.fields(Geometry)}
NEEDED: Final = tuple(name for name, default in _DEFAULTS.items() if default is attrs.NOTHING)
OPTIONAL: Final = tuple(name for name in _DEFAULTS if name not in NEEDED)


def geometry_to_data(geometry: Geometry) -> dict[str, int]:
    """A geometry as plain data, without what it leaves at its default."""
    return attrs.asdict(
        geometry, filter=lambda field, value: field.name in NEEDED or value != field.default
    )


def geometry_to_text(geometry: Geometry) -> str:
    """The text from which `parse_geometry` makes this geometry."""
    return ",".join(f"{name}={size}" for name, size in geometry_to_data(geometry).items())


def parse_geometry(text: str) -> Geometry:
    """A Geometry from `pages=16,slots=4,page_size=4,pages_per_seq=4`, in any order, all four.

    `window=8` may follow.
    """
    pairs = [pair.partition("=") for pair in text.split(",")]
    sizes = {name: int(size) for name, _, size in pairs if is_number(size)}
    if not {*NEEDED} <= sizes.keys() <= {*_DEFAULTS} or len(pairs) != len(sizes):
        raise InvalidInput(
            "geometry",
            seen=text,
            allowed=f"{', '.join(NEEDED)}, each once and as NAME=INTEGER, joined by commas; "
            f"and {', '.join(OPTIONAL)} if wanted",
            remedy="For example pages=16,slots=4,page_size=4,pages_per_seq=4.",
        )
    return Geometry(**sizes)


def is_number(text: str) -> bool:
    """Whether the text is digits, and no more of them than any valid number has."""
    return text.isascii() and text.isdigit() and len(text.lstrip("0")) <= len(str(INT32_MAX))
