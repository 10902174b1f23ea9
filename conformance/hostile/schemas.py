"""Files drawn from their JSON Schemas: each has the right form and arbitrary values.

A schema describes more than an engine ever writes. Sizes stay small, and the engine is an existing
one: the test is of the reader of the file, not of the memory of the machine.
"""

import json
from functools import cache
from importlib import resources
from typing import Any, Final

from hypothesis import strategies as st

ENGINE: Final = "toy:make"
SMALL: Final = st.integers(1, 4)
INTEGERS: Final = st.one_of(st.integers(-2, 5), st.sampled_from((2**31 - 1, 2**31, 10**30)))
TEXTS: Final = st.one_of(st.sampled_from(("", "x", "CW5", "RC", "0.1.0")), st.text(max_size=8))
KEYS: Final = st.integers(-1, 5).map(str)
MOST_LINES: Final = 8
GIVEN: Final[dict[str, st.SearchStrategy[object]]] = {
    "size": SMALL,
    "engine": st.just(ENGINE),
    "python": st.none(),
    "plant": st.none(),
}
"""Strategies that replace the schema of a definition or a property."""

Schema = Any
"""An object of JSON Schema, true or false."""


@cache
def lines(name: str, first: str, then: str) -> st.SearchStrategy[bytes]:
    """A file of JSON Lines. name: of the schema; first, then: its definitions of lines."""
    head, tail = (_drawn({"$ref": f"{name}#/$defs/{part}"}, name) for part in (first, then))
    return st.tuples(head, st.lists(tail, max_size=MOST_LINES)).map(
        lambda pair: b"".join(_line(value) for value in (pair[0], *pair[1]))
    )


@cache
def whole(name: str) -> st.SearchStrategy[bytes]:
    """A file that is one object of this schema."""
    return _drawn(_held(name), name).map(_line)


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


@cache
def _held(name: str) -> Schema:
    text = resources.files("conformance.files").joinpath("schemas", name).read_text("utf-8")
    return json.loads(text)


def _drawn(schema: Schema, home: str) -> st.SearchStrategy[object]:
    """Values of a schema. home: the file to which its references are relative."""
    if schema is True or schema == {}:
        return st.one_of(st.none(), INTEGERS, st.lists(INTEGERS, max_size=3))
    if "$ref" in schema:
        return _referred(schema, home)
    if "not" in schema:
        rest = {key: value for key, value in schema.items() if key != "not"}
        return _without_both(_drawn(rest, home), schema["not"]["required"])
    for several in ("oneOf", "anyOf"):
        if several in schema:
            return st.one_of([_drawn(one, home) for one in schema[several]])
    if "allOf" in schema and "properties" not in schema:
        return _without_refused(schema["allOf"], home)
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return st.one_of([_of_type(kind, schema, home) for kind in kinds])


def _referred(schema: Schema, home: str) -> st.SearchStrategy[object]:
    """Values of the schema that is referred to, with what stands beside the reference."""
    beside = {key: value for key, value in schema.items() if key != "$ref"}
    place, _, path = schema["$ref"].partition("#")
    found = _held(place or home)
    for key in path.strip("/").split("/"):
        found = found[key]
    name = path.rpartition("/")[2]
    return GIVEN[name] if name in GIVEN else _drawn({**found, **beside}, place or home)


def _without_both(drawn: st.SearchStrategy[object], apart: list[str]) -> st.SearchStrategy[object]:
    """Objects that have not all of these properties."""
    return drawn.filter(lambda value: isinstance(value, dict) and not set(apart) <= value.keys())


def _without_refused(schemas: list[Schema], home: str) -> st.SearchStrategy[object]:
    """The first of several alternatives, without the properties that the others rule out."""
    gone = {name for one in schemas[1:] for name, held in one["properties"].items() if not held}

    def without(value: object) -> object:
        assert isinstance(value, dict)
        return {name: one for name, one in value.items() if name not in gone}

    return _drawn(schemas[0], home).map(without)


def _of_type(kind: str, schema: Schema, home: str) -> st.SearchStrategy[object]:
    if kind == "object":
        return _objects(schema, home)
    if kind == "array":
        fixed = [_drawn(one, home) for one in schema.get("prefixItems", ())]
        if fixed:
            return st.tuples(*fixed).map(list)
        least = schema.get("minItems", 0)
        unique = json.dumps if schema.get("uniqueItems") else None
        items = _drawn(schema.get("items", True), home)
        return st.lists(items, min_size=least, max_size=4, unique_by=unique)
    least, most = schema.get("minimum", -(10**31)), schema.get("maximum", 10**31)
    return {
        "integer": INTEGERS.filter(lambda value: least <= value <= most),
        "number": st.floats(0, 10),
        "string": TEXTS,
        "boolean": st.booleans(),
        "null": st.none(),
    }[kind]


def _objects(schema: Schema, home: str) -> st.SearchStrategy[object]:
    drawn = {
        name: GIVEN[name] if name in GIVEN else _drawn(one, home)
        for name, one in schema.get("properties", {}).items()
    }
    if not drawn and isinstance(schema.get("additionalProperties"), dict):
        return st.dictionaries(KEYS, _drawn(schema["additionalProperties"], home), max_size=3)
    needed = {name: one for name, one in drawn.items() if name in schema.get("required", ())}
    others = {name: one for name, one in drawn.items() if name not in needed}
    return st.fixed_dictionaries(needed, optional=others)
