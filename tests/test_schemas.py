"""The JSON Schemas that are shipped accept what the parsers accept, and refuse what they refuse."""

import importlib
import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from importlib.resources import files
from typing import Any

import pytest

from conformance.histories import STEPS, step_to_data
from conformance.recording.lines import FIELDS, header_from_data, header_to_text, line_from_data
from conformance.vectors import build
from conformance.vectors.files import contents, in_json
from conformance.vectors.suites import suites
from conformance.warmup import WARMUP

WRONG: tuple[object, ...] = (None, True, -1, 1.5, "x", [], {}, [None])
SAW = {
    **{name: {"0": True, "2": False} for name in ("used", "finished")},
    **{name: {"0": [1, 2], "1": []} for name in ("rows", "tokens")},
    **{name: {"3": 1} for name in ("allocated", "written", "counts")},
    "free": 3,
    "queue": [[5, 0, 1]],
    "outputs": [[1, 0, [5, 6], "stop"]],
}


@cache
def validator(name: str, part: str | None = None) -> Any:
    """The validator of a shipped schema, or of one of its parts."""
    jsonschema: Any = importlib.import_module("jsonschema")
    text = files("conformance").joinpath(f"schemas/{name}.schema.json").read_text()
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    if part is not None:
        schema = {"$defs": schema["$defs"], "$ref": f"#/$defs/{part}"}
    return jsonschema.Draft202012Validator(schema)


def parses(parse: Callable[[Any], object], data: Any) -> bool:
    """Whether a parser takes this data."""
    try:
        parse(deepcopy(data))
    except (ValueError, TypeError, KeyError):
        return False
    return True


def altered(data: Any) -> Iterator[Any]:
    """The data with one thing in it left out, replaced by something wrong, or added."""
    if isinstance(data, dict):
        yield {**data, "unknown": 1}
        for key, value in data.items():
            yield {other: kept for other, kept in data.items() if other != key}
            yield from ({**data, key: wrong} for wrong in WRONG)
            yield from ({**data, key: changed} for changed in altered(value))
    if isinstance(data, list):
        for at, value in enumerate(data):
            yield data[:at] + data[at + 1 :]
            for changed in (*WRONG, *altered(value)):
                yield [*data[:at], changed, *data[at + 1 :]]


def lines() -> list[dict[str, Any]]:
    """One line of each kind."""
    by_name = {type(step).__name__: step_to_data(step) for step in WARMUP}
    by_name["Free"] |= {"refused": ["SLOT_UNUSED"], "result": [1, None]}
    found: list[dict[str, Any]] = json.loads(json.dumps(list(by_name.values())))
    assert STEPS.keys() == by_name.keys()
    return found


@pytest.mark.parametrize("line", lines(), ids=lambda line: str(line["step"]))
def test_a_line_is_refused_by_the_schema_where_the_parser_refuses_it(line: dict[str, Any]) -> None:
    """As it is, and with each single thing altered."""
    schema = validator("recording", "line")
    assert schema.is_valid(line)
    assert parses(line_from_data, line)

    outcomes = set()
    for data in altered(line):
        accepted = parses(line_from_data, data)
        outcomes.add(accepted)
        assert accepted == schema.is_valid(data), data
    assert False in outcomes


def test_what_was_seen_is_refused_by_the_schema_where_the_parser_refuses_it() -> None:
    """Every field, as it is, and with each single thing altered."""
    schema = validator("recording", "saw")
    assert set(FIELDS) == SAW.keys()
    for data in (SAW, *altered(SAW), {"used": {"01": True}}, {"counts": {"x": 1}}):
        line = {"step": "FreeFinished", "saw": data}
        assert parses(line_from_data, line) == schema.is_valid(data), data


@pytest.fixture(scope="module")
def cover() -> build.Cover:
    """The vectors of the quickest suite."""
    return build.build(suites()[-1])


def test_a_header_is_refused_by_the_schema_where_the_parser_refuses_it(
    cover: build.Cover,
) -> None:
    """As it is, and with each single thing altered; whole recordings are taken."""
    schema = validator("recording", "header")
    header = json.loads(header_to_text(cover.vectors[0].header))
    assert schema.is_valid(header)
    assert parses(header_from_data, header)
    for data in altered(header):
        assert parses(header_from_data, data) == schema.is_valid(data), data

    whole = validator("recording")
    for vector in cover.vectors[:3]:
        assert all(whole.is_valid(json.loads(line)) for line in in_json(vector).splitlines())


def test_a_manifest_is_what_its_schema_says(cover: build.Cover) -> None:
    """As it is written; with anything left out, added, or of another type it is not."""
    schema = validator("vectors")
    manifest = json.loads(dict(contents([cover]))["manifest.json"])
    assert schema.is_valid(manifest)

    short = {**manifest, "vectors": manifest["vectors"][:1]}
    for key in short:
        assert not schema.is_valid({other: short[other] for other in short if other != key})
        assert not schema.is_valid({**short, key: "x"})
    for entry in ({"name": "x"}, {**short["vectors"][0], "more": 1}):
        assert not schema.is_valid({**short, "vectors": [entry]})
    for change in ({"version": 2}, {"spec_version": "0"}, {"kvspec": "recording"}):
        assert not schema.is_valid({**short, **change})
