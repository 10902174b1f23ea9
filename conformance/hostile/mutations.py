"""Damage to the bytes of a file, and to the JSON in it."""

import json
from functools import cache
from typing import Final

from hypothesis import strategies as st

DEEP: Final = 100_000
"""Levels of nesting, more than any parser's stack has."""
MOST_BYTES: Final = 20_000
"""The share of files that are damaged a second time."""
VALUES: Final[tuple[object, ...]] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, -(10**400), 0.5, 1e308),
    *(float("nan"), float("inf"), "", "x", "\x00", "\ud800", "😀", [], {}, [[]], [None]),
)

Keys = tuple[str | int, ...]
"""The way to a value: keys of objects, and places in lists."""


@cache
def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """The content with one error, sometimes two."""
    ways = [_bytes(content)]
    if _json_lines(content) is not None:
        ways += [_json(content)] * 2
    once = st.one_of(ways)
    return st.one_of(once, once, once.flatmap(_again))


def _again(content: bytes) -> st.SearchStrategy[bytes]:
    return st.just(content) if len(content) > MOST_BYTES else _bytes(content)


def _bytes(content: bytes) -> st.SearchStrategy[bytes]:
    place = st.integers(0, max(0, len(content) - 1))
    line = content.splitlines(keepends=True) or [b""]
    number = st.integers(0, len(line) - 1)
    return st.one_of(
        place.map(lambda at: content[:at]),
        place.map(lambda at: content[at:]),
        st.tuples(place, st.binary(min_size=1, max_size=4)).map(
            lambda pair: content[: pair[0]] + pair[1] + content[pair[0] + len(pair[1]) :]
        ),
        number.map(lambda at: b"".join(line[:at] + line[at + 1 :])),
        number.map(lambda at: b"".join([*line[: at + 1], *line[at:]])),
        number.map(lambda at: b"".join([*line[:at], b"\n\n", *line[at:]])),
        st.sampled_from(
            (
                b"",
                b"\n",
                b"\xef\xbb\xbf" + content,
                content.replace(b"\n", b"\r\n"),
                content.replace(b"\n", b"\r"),
                content.rstrip(b"\n"),
                content + b"\x00",
                content + b"\xff\xfe\n",
                content.decode("utf-8", "replace").encode("utf-16"),
                content * 2,
                b"[" * DEEP,
                b'{"a":' * DEEP,
                b"[" * DEEP + b"]" * DEEP,
                b"9" * 1_000_000,
                b"null\n",
                b"x" * 3_000_000,
            )
        ),
    )


def _json_lines(content: bytes) -> list[object] | None:
    try:
        return [json.loads(text) for text in content.splitlines()] or None
    except ValueError:
        return None


def _json(content: bytes) -> st.SearchStrategy[bytes]:
    """One value of one line is replaced, removed or repeated."""
    lines = _json_lines(content)
    assert lines is not None
    places = [(at, path) for at, line in enumerate(lines) for path in _paths(line)]

    def changed(drawn: tuple[tuple[int, Keys], str, object]) -> bytes:
        (at, path), how, value = drawn
        texts = [json.dumps(line) for line in lines]
        texts[at] = _changed(lines[at], path, how, value)
        return "\n".join((*texts, "")).encode()

    hows = st.sampled_from(("replace", "replace", "remove", "double", "add"))
    return st.tuples(st.sampled_from(places), hows, st.sampled_from(VALUES)).map(changed)


def _paths(value: object) -> list[Keys]:
    """The paths to every value inside this one, its own first."""
    parts: list[tuple[str | int, object]] = []
    if isinstance(value, (dict, list)):
        parts = [*value.items()] if isinstance(value, dict) else [*enumerate(value)]
    return [(), *((key, *rest) for key, part in parts for rest in _paths(part))]


def _changed(line: object, path: Keys, how: str, value: object) -> str:
    copy = json.loads(json.dumps(line))
    if not path:
        return json.dumps(value)
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    last = path[-1]
    if how == "remove":
        del parent[last]
    elif how == "double" and isinstance(parent, dict):
        again = f"{json.dumps(last)}: {json.dumps(value)}, "
        inner = json.dumps(parent)
        return json.dumps(copy).replace(inner, "{" + again + inner[1:], 1)
    elif how == "add" and isinstance(parent, dict):
        parent["unknown"] = value
    else:
        parent[last] = value
    return json.dumps(copy)
