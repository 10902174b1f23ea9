"""Files that the campaign draws from the schemas: each conforms to its schema."""

import importlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.hostile import schemas


@given(st.data())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_a_file_drawn_from_a_schema_is_of_that_schema(data: st.DataObject) -> None:
    """Each drawn line is valid by the schema of its file."""
    name, first, then = data.draw(
        st.sampled_from(
            (
                ("history.schema.json", "header", "step"),
                ("recording.schema.json", "header", "line"),
            )
        )
    )
    content = data.draw(schemas.lines(name, first, then))

    for number, line in enumerate(content.splitlines()):
        part = then if number else first
        assert schema_of({"$ref": f"{name}#/$defs/{part}"}).is_valid(json.loads(line)), line


@pytest.mark.parametrize("name", ["result.schema.json", "vectors.schema.json"])
def test_an_object_drawn_from_a_schema_has_all_that_it_requires(name: str) -> None:
    """A drawn object has every required property; conditions between properties are ignored."""
    required = set(schemas._held(name)["required"])

    @given(schemas.whole(name))
    @settings(max_examples=10, deadline=None, derandomize=True)
    def holds(content: str) -> None:
        assert required <= set(json.loads(content))

    holds()


def schema_of(schema: dict[str, str]) -> Any:
    """A validator of a schema that may refer to ours."""
    jsonschema: Any = importlib.import_module("jsonschema")
    referencing: Any = importlib.import_module("referencing")
    names = ("history.schema.json", "recording.schema.json")
    held = [(one, referencing.Resource.from_contents(schemas._held(one))) for one in names]
    registry = referencing.Registry().with_resources(held)
    return jsonschema.Draft202012Validator(schema, registry=registry)
