"""Conversion between plain data and the values of the specification; input is data, never code.

A decoder is made once per type and checks strictly: an integer is an integer and no boolean, a
tuple is a list of the right length, an object has the fields of its class and no others.
"""

from collections.abc import Callable
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Final, TypeVar, get_args, get_origin

import attrs

from spec.vocabulary import errors

T = TypeVar("T")

Decode = Callable[[object], Any]
"""From plain data to a value of the type that it was made for, which only the caller knows.

Raises ValueError, TypeError or InvalidInput.
"""

_NAMES: Final = {
    int: "an integer",
    bool: "true or false",
    str: "text",
    float: "a number",
    list: "a list",
    dict: "an object",
}
SHOWN: Final = 60
CLIPPED: Final = 360
"""The limit of characters of a value, and of a sentence, in a message."""
LARGEST: Final = 1 << 1000
"""The limit of integers where fractions are allowed too."""


class Malformed(ValueError):
    """Plain data that describes no value. where: its field, which may be empty.

    seen: what is wrong. allowed: what may stand there.
    """

    def __init__(self, seen: str, *, allowed: str, where: str = "") -> None:
        self.where, self.seen, self.allowed = where, seen, allowed
        super().__init__(f"{self.what}, allowed: {allowed}")

    @property
    def what(self) -> str:
        """What is wrong, with its field."""
        return f"{self.where}: {self.seen}" if self.where else self.seen


def inside(where: str, error: Malformed) -> Malformed:
    """The error of a part, with the field or the index that the part has in the whole."""
    dot = "." if error.where and not error.where.startswith("[") else ""
    return Malformed(error.seen, allowed=error.allowed, where=f"{where}{dot}{error.where}")


def encode(value: attrs.AttrsInstance) -> dict[str, object]:
    """The fields of an attrs object as plain data; an enum is its value."""
    return attrs.asdict(value, value_serializer=_serialize)


def shown(value: object) -> str:
    """A value for a message, shortened if it is long."""
    return errors.shown(value, most=SHOWN)


def clipped(text: str, most: int = CLIPPED) -> str:
    """The text, shortened to the length of a message."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def choices(kind: type[Enum]) -> Decode:
    """The decoder of an enum, by its values."""
    by_value = {member.value: member for member in kind}
    names = ", ".join(map(str, by_value))

    def decode(value: object) -> object:
        if type(value) not in (str, int) or value not in by_value:
            raise Malformed(f"{shown(value)} is no {kind.__name__}", allowed=names)
        return by_value[value]

    return decode


@cache
def decoder(kind: object) -> Decode:
    """The decoder of a type: an attrs class, an enum, a tuple, an optional, or a plain type."""
    if isinstance(kind, type) and attrs.has(kind):
        return _class_decoder(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return choices(kind)
    if get_origin(kind) is tuple:
        return _tuple_decoder(get_args(kind))
    if isinstance(kind, UnionType):
        return _optional_decoder(get_args(kind))
    if kind is float:
        return _float
    return _plain_decoder(kind if kind in _NAMES else int)


def checked(value: object, kind: type[T]) -> T:
    """The value, if it has exactly this type. Raises Malformed."""
    if type(value) is not kind:
        raise Malformed(shown(value), allowed=_NAMES[kind])
    return value


def _float(value: object) -> float:
    if type(value) is int and abs(value) > LARGEST:
        raise ValueError(f"{shown(value)} is too large for a number")
    return float(checked(value, int if type(value) is int else float))


def text(value: object) -> str:
    """The value, if it is printable text. Raises ValueError."""
    given = checked(value, str)
    if not given.isascii() and any("\ud800" <= letter <= "\udfff" for letter in given):
        raise ValueError(f"{shown(given)} contains half of a surrogate pair")
    return given


def _plain_decoder(kind: type) -> Decode:
    if kind is str:
        return text

    def decode(value: object) -> object:
        if type(value) is not kind:
            raise Malformed(shown(value), allowed=_NAMES[kind])
        return value

    return decode


def _class_decoder(cls: type[attrs.AttrsInstance]) -> Decode:
    attrs.resolve_types(cls)
    decoders = {attribute.name: decoder(attribute.type) for attribute in attrs.fields(cls)}
    needed = [field.name for field in attrs.fields(cls) if field.default is attrs.NOTHING]
    optional = [name for name in decoders if name not in needed]
    names = ", ".join([*needed, *[f"{name} if wanted" for name in optional]]) or "none"

    def build(value: object) -> object:
        given = {}
        for name, item in checked(value, dict).items():
            decode = decoders.get(name)
            if decode is None:
                raise Malformed(f"{cls.__name__} has no field {shown(name)}", allowed=names)
            try:
                given[name] = decode(item)
            except Malformed as error:
                raise inside(name, error) from None
        if len(given) < len(decoders):
            for name in needed:
                if name not in given:
                    raise Malformed(f"{cls.__name__} lacks the field {name}", allowed=names)
        return cls(**given)

    return build


def _optional_decoder(kinds: tuple[object, ...]) -> Decode:
    inner = decoder(next(kind for kind in kinds if kind is not type(None)))
    return lambda value: None if value is None else inner(value)


def _tuple_decoder(kinds: tuple[object, ...]) -> Decode:
    if set(kinds) <= {int, Ellipsis}:
        return _integers_decoder(None if Ellipsis in kinds else len(kinds))
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        entry = [get_args(kind) for kind in get_args(kinds[0]) if get_origin(kind) is tuple]
        if isinstance(kinds[0], UnionType) and entry == [(int, int)]:
            return _pairs_decoder()
        inner = decoder(kinds[0])
        return lambda value: tuple([inner(item) for item in checked(value, list)])
    decoders = tuple(decoder(kind) for kind in kinds)

    def decode(value: object) -> object:
        given = checked(value, list)
        if len(given) != len(decoders):
            raise Malformed(shown(given), allowed=f"{len(decoders)} entries")
        return tuple([each(item) for each, item in zip(decoders, given, strict=True)])

    return decode


def _integers_decoder(length: int | None) -> Decode:
    """The decoder of a list of integers, of which a recording has many."""

    def decode(value: object) -> object:
        if type(value) is not list:
            raise Malformed(shown(value), allowed="a list")
        if length is not None and len(value) != length:
            raise Malformed(shown(value), allowed=f"{length} entries")
        for item in value:
            if type(item) is not int:
                raise Malformed(shown(item), allowed="an integer")
        return tuple(value)

    return decode


def _pairs_decoder() -> Decode:
    """The decoder of the entries of a batch: pairs of integers, or None.

    The class of the action checks the integers: to do it here too would cost as much as all else.
    """
    pair = _integers_decoder(2)

    def decode(value: object) -> object:
        given = checked(value, list)
        if {list}.issuperset(map(type, given)):
            return tuple(map(tuple, given))
        return tuple([None if entry is None else pair(entry) for entry in given])

    return decode


def _serialize(_instance: object, _attribute: object, value: object) -> object:
    return value.value if isinstance(value, Enum) else value
