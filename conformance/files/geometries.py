"""A geometry as text, as the options of the commands and of pytest name it."""

import attrs

from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.geometry import Geometry
from spec.vocabulary.rules import INT32_MAX


def parse_geometry(text: str) -> Geometry:
    """A Geometry from `pages=16,slots=4,page_size=4,pages_per_seq=4`, in any order, all four."""
    names = tuple(attribute.name for attribute in attrs.fields(Geometry))
    pairs = [pair.partition("=") for pair in text.split(",")]
    sizes = {name: int(size) for name, _, size in pairs if is_number(size)}
    if set(sizes) != set(names) or len(pairs) != len(names):
        raise InvalidInput(
            "geometry",
            seen=text,
            allowed=f"{', '.join(names)}, each once and as NAME=INTEGER, joined by commas",
            remedy="For example pages=16,slots=4,page_size=4,pages_per_seq=4.",
        )
    return Geometry(**sizes)


def is_number(text: str) -> bool:
    """Whether the text is digits, and no more of them than any valid number has."""
    return text.isascii() and text.isdigit() and len(text.lstrip("0")) <= len(str(INT32_MAX))
