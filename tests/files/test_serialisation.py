"""Decoders: each accepts the values of its type, and refuses all others in words."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from conformance.files.serialisation import LARGEST, checked, decoder, encode
from spec.vocabulary import CleanupMode, Geometry, InvalidInput

SIZES: Final = Geometry(pages=4, page_size=2, slots=2, pages_per_seq=2)
VALUES: Final[tuple[object, ...]] = (
    *(None, True, False, 0, -1, 1, 2**63, 0.0, -0.5, 1e308, "", "x", "\ud800", "end", "é"),
    *(LARGEST, -LARGEST, LARGEST + 1, -LARGEST - 1, 10**400, -(10**400)),
    *([], [1], [1, 2], [1, 2, 3], [True, 2], [1.0, 2], [None, [1, 2]], [[1, 2]], [[1]], (1, 2)),
    *({}, encode(SIZES), {**encode(SIZES), "pages": True}, {**encode(SIZES), "more": 1}),
)
"""Plain data of every kind, at the limits of numbers and lengths."""


def whole(value: object) -> bool:
    """Whether a value is an integer, and no boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def a_list(value: object, of: Callable[[object], bool], length: int | None = None) -> bool:
    """Whether a value is a list of such entries, and so long."""
    if not isinstance(value, list):
        return False
    return all(map(of, value)) and length in {None, len(value)}


def a_text(value: object) -> bool:
    """Whether a value is text that can be written as UTF-8."""
    return isinstance(value, str) and "\ud800" not in value


KINDS: Final[dict[Any, tuple[Callable[[object], bool], Callable[[Any], object]]]] = {
    int: (whole, int),
    bool: (lambda value: isinstance(value, bool), bool),
    str: (a_text, str),
    float: (
        lambda value: isinstance(value, float) or (whole(value) and abs(int(value)) <= LARGEST),  # type: ignore[call-overload]
        float,
    ),
    int | None: (lambda value: value is None or whole(value), lambda value: value),
    CleanupMode: (lambda value: value == "end", CleanupMode),
    tuple[int, ...]: (lambda value: a_list(value, whole), tuple),
    tuple[int, int]: (lambda value: a_list(value, whole, 2), tuple),
    tuple[int, str]: (lambda value: value == [1, "x"], tuple),
    Geometry: (
        lambda value: value == encode(SIZES) and value["pages"] is not True,
        lambda _: SIZES,
    ),
}
"""For each type, whether a value has its form, and what it then is."""


@pytest.mark.parametrize("kind", list(KINDS), ids=str)
def test_a_decoder_takes_what_has_the_form_of_its_type(kind: Any) -> None:
    """Every other value is refused with an error that a reader of files tells as bad input."""
    has_form, made = KINDS[kind]
    for value in (*VALUES, [1, "x"]):
        if has_form(value):
            found = decoder(kind)(value)
            assert (type(made(value)), made(value)) == (type(found), found)
        else:
            with pytest.raises((ValueError, TypeError, InvalidInput)):
                decoder(kind)(value)


@pytest.mark.parametrize("kind", [int, bool, str, float, list, dict])
def test_a_checked_value_has_its_type_exactly(kind: type) -> None:
    """A boolean is no integer, and an integer no fraction."""
    for value in VALUES:
        if type(value) is kind:
            assert value is checked(value, kind)
        else:
            with pytest.raises(ValueError, match="allowed: "):
                checked(value, kind)
