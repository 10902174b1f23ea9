"""The shipped JSON Schemas accept what the parsers accept, and refuse what they refuse."""

import importlib
import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from deep import deep_after

import spec
from conformance.cli import contract
from conformance.cli.contract import Report
from conformance.cli.main import main
from conformance.cli.result_json import KEYS, to_text
from conformance.engines.registry import OUR_ENGINE
from conformance.files import histories
from conformance.files.histories import STEPS, Recorded, step_to_data
from conformance.protocol import CALLS
from conformance.recordings.format import FIELDS, header_from_data, header_to_text, line_from_data
from conformance.rungs.registry import WARMUP
from conformance.vectors import build
from conformance.vectors.files import contents, in_json
from conformance.vectors.suites import suites
from conformance.verdict import Scope, Verdict
from spec.vocabulary import CleanupMode, Geometry, Reason, default_limits

NAMES = ("history", "recording", "result", "vectors")
WRONG: tuple[object, ...] = (None, True, -1, 1.5, "x", [], {}, [None])
GEOMETRY = Geometry(pages=16, slots=4, page_size=4, pages_per_seq=4)
SAW = {
    **{name: {"0": True, "2": False} for name in ("used", "finished", "stale")},
    **{name: {"0": [1, 2], "1": []} for name in ("rows", "tokens", "proposed", "indexed")},
    **{name: {"3": 1} for name in ("allocated", "written", "committed", "first_page", "counts")},
    **{name: {"3": 1} for name in ("idle_ranks", "contexts", "held")},
    "free": 3,
    "queue": [[5, 0, 1]],
    "outputs": [[1, 0, [5, 6], "stop"]],
    "flights": [[True, [[0, 2, 1, True]], [1]], [False, [], []]],
}


@cache
def registry() -> Any:
    """A registry of the shipped schemas by name, since they refer to each other."""
    referencing: Any = importlib.import_module("referencing")
    found = {}
    for file in files("conformance.files").joinpath("schemas").iterdir():
        found[file.name] = json.loads(file.read_text())
    assert [f"{name}.schema.json" for name in NAMES] == sorted(found)
    pairs = [(name, referencing.Resource.from_contents(one)) for name, one in found.items()]
    return referencing.Registry().with_resources(pairs)


@cache
def validator(name: str, part: str | None = None) -> Any:
    """The validator of a shipped schema, or of one of its parts."""
    jsonschema: Any = importlib.import_module("jsonschema")
    whole = f"{name}.schema.json"
    jsonschema.Draft202012Validator.check_schema(registry().contents(whole))
    schema = {"$ref": whole if part is None else f"{whole}#/$defs/{part}"}
    return jsonschema.Draft202012Validator(schema, registry=registry())


def parses(parse: Callable[[Any], object], data: Any) -> bool:
    """Whether a parser accepts this data."""
    try:
        parse(deepcopy(data))
    except (ValueError, TypeError, KeyError):
        return False
    return True


def altered(data: Any) -> Iterator[Any]:
    """The data with one part removed, replaced by a wrong value, or added, in every way."""
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
    """One line for each class of step."""
    by_name = {type(step).__name__: step_to_data(step) for step in WARMUP}
    by_name["Free"] |= {"refused": ["SLOT_UNUSED", "SLOT_RANGE"]}
    by_name["Write"] |= {"result": [1, None]}
    found: list[dict[str, Any]] = json.loads(json.dumps(list(by_name.values())))
    assert STEPS.keys() == by_name.keys()
    return found


def test_the_schemas_list_every_step_field_and_reason() -> None:
    """The enumerations of the schemas have the names of the registries and suites, in any order."""
    recording = registry().contents("recording.schema.json")["$defs"]
    vectors = registry().contents("vectors.schema.json")["$defs"]
    steps = [line["properties"]["step"]["const"] for line in recording["line"]["oneOf"]]

    assert sorted(STEPS) == sorted(steps)
    assert sorted(FIELDS) == sorted(recording["saw"]["properties"])
    assert sorted(FIELDS) == sorted(recording["header"]["properties"]["shows"]["items"]["enum"])
    assert sorted(Reason.__members__) == sorted(recording["refused"]["items"]["enum"])
    assert sorted(action.__name__ for action in CALLS) == sorted(
        vectors["suite"]["properties"]["actions"]["items"]["enum"]
    )
    levels = vectors["suite"]["properties"]["level"]["enum"]
    assert {suite.level for suite in suites()} == set(levels)
    result = registry().contents("result.schema.json")["properties"]
    for name, values in (("verdict", Verdict), ("scope", Scope)):
        assert sorted(value.value for value in values) == sorted(result[name]["enum"])


@pytest.mark.parametrize("line", deep_after(12, lines()), ids=lambda line: str(line["step"]))
def test_a_line_is_refused_by_the_schema_where_the_parser_refuses_it(line: dict[str, Any]) -> None:
    """Schema and parser agree on a line, and on the line with any one part altered."""
    schema = validator("recording", "line")
    assert schema.is_valid(line)
    assert parses(line_from_data, line)

    outcomes = set()
    twice = {**line, "refused": ["SLOT_RANGE", "SLOT_RANGE"]}
    for data in (*altered(line), twice, {**line, "refused": [], "result": 1}):
        accepted = parses(line_from_data, data)
        outcomes.add(accepted)
        assert accepted == schema.is_valid(data), data
    assert False in outcomes


def test_what_was_seen_is_refused_by_the_schema_where_the_parser_refuses_it() -> None:
    """Schema and parser agree on every field of `saw`, and on `saw` with any one part altered."""
    schema = validator("recording", "saw")
    assert set(FIELDS) == SAW.keys()
    for data in (SAW, *altered(SAW), {"used": {"01": True}}, {"counts": {"x": 1}}):
        line = {"step": "FreeFinished", "saw": data}
        assert parses(line_from_data, line) == schema.is_valid(data), data


@pytest.fixture(scope="module")
def cover() -> build.Cover:
    """The vectors of the quickest suite."""
    return build.build(next(suite for suite in suites() if suite.name == "preemption"))


def test_a_header_is_refused_by_the_schema_where_the_parser_refuses_it(
    cover: build.Cover,
) -> None:
    """Schema and parser agree on a header with any part altered, and recordings are accepted."""
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
    """A manifest as written is valid, and is not with a part removed, added or of another type."""
    schema = validator("vectors")
    levels = [build.build(suite) for suite in suites() if suite.name in {"table-2", "requests"}]
    assert schema.is_valid(json.loads(dict(contents(levels))["manifest.json"]))
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


RECORDED = Recorded(
    engine="a:b",
    geometry=GEOMETRY,
    limits=default_limits(GEOMETRY),
    cleanup=CleanupMode.END,
    history=tuple(WARMUP),
    clause="RC",
    message="counts[0] is 2, should be 1",
    python="python3",
)


def test_a_history_is_refused_by_the_schema_where_the_parser_refuses_it() -> None:
    """Schema and parser agree on a header with any part altered, and on a step with more fields."""
    schema, path = validator("history"), Path("h.jsonl")
    header, *steps = map(json.loads, histories.dump(RECORDED).splitlines())

    def read(data: object) -> object:
        return histories.loads(f"{json.dumps(data)}\n".encode(), path)

    assert header["spec_version"] == spec.SPEC_VERSION
    for data in (header, *altered(header)):
        assert parses(read, data) == schema.is_valid(data), data
    observed: tuple[dict[str, object], ...] = ({"refused": []}, {"saw": {}}, {"result": 1})
    for line in steps:
        assert schema.is_valid(line)
        for more in observed:
            assert not parses(histories.step_from_data, {**line, **more})
            assert not schema.is_valid({**line, **more})


def test_a_history_of_another_specification_is_taken_again(tmp_path: Path) -> None:
    """A history of another version of the specification is run again, and the report says so."""
    path, result = tmp_path / "h.jsonl", tmp_path / "r.json"
    own = evolve(RECORDED, engine=OUR_ENGINE, python=None, history=(), spec_version="0.0.1")
    path.write_text(histories.dump(own), encoding="utf-8")

    assert main(["rerun", str(path), "--json", str(result), "--quiet"]) == 0

    found = json.loads(result.read_text())
    assert validator("result").is_valid(found)
    assert ["the verdict of specification 0.0.1 on this history"] == [
        line.partition(":")[0] for line in found["not_checked"]
    ]


def test_a_result_is_what_its_schema_says() -> None:
    """A result of any verdict is valid, with more keys too, but not with one removed or altered."""
    report = Report(command="fake", seed=3, geometry=GEOMETRY)
    for verdict, failures in ((Verdict.HOLDS, []), (Verdict.FAILS, ["RC: one"])):
        report.failures = failures
        found = json.loads(to_text(contract.as_json(report, verdict, 1.5)))
        assert set(KEYS) == set(found)
        assert validator("result").is_valid({**found, "steps": 3})
        for key in found:
            assert not validator("result").is_valid({k: v for k, v in found.items() if k != key})
            assert not validator("result").is_valid({**found, key: {"x": 1}})
    assert not validator("result").is_valid({**found, "verdict": "holds"})
