"""JSON Lines: the fast parser of a line is as strict as the careful one."""

import io
import json
from typing import Any, Final, Never

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conformance.files.jsonl import MAX_LINE, Lines
from spec.vocabulary import InvalidInput

KEYS: Final = st.sampled_from(["a", "b", ":", "a: b"])
PLAIN: Final = st.sampled_from(["1", "-2", "null", "true", '":"', '"a"', '"{\\"a\\": 1}"', "NaN"])


def _inside(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Objects and lists with optional spaces; keys of an object may repeat."""
    pairs = st.tuples(KEYS, st.sampled_from([":", ": ", " :"]), values)
    made = pairs.map(lambda pair: f'"{pair[0]}"{pair[1]}{pair[2]}')
    objects = st.lists(made, max_size=3).map(lambda every: "{" + ", ".join(every) + "}")
    return objects | st.lists(values, max_size=2).map(lambda every: f"[{', '.join(every)}]")


def careful(text: str) -> Any:
    """The object that Python reads with every key checked. Raises ValueError or TypeError."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("a key stands twice")
        return dict(pairs)

    def never(constant: str) -> Never:
        raise ValueError(constant)

    found = json.loads(text, object_pairs_hook=once, parse_constant=never)
    if not isinstance(found, dict):
        raise TypeError("not an object")
    return found


@settings(deadline=None)  # the machine may be busy
@given(st.recursive(PLAIN, _inside, max_leaves=8))
@example('{"a": 1, "a": 1}')
@example('{"a": 1, "b": {"a": 1, "a": 2}}')
@example('{"a": {"b": {"a": {"a": 1, "a": 1}}}}')
@example('{"a": [{"a": 1, "a": 1}]}')
@example('{"a": ":", "b": {"a": ":"}}')
@example('{"a": {":": {"a": {"b": 1}}}}')
def test_a_line_is_read_as_carefully_as_can_be(text: str) -> None:
    """The fast parser returns the same object as the careful one, or refuses where it does."""
    lines = Lines(io.BytesIO(f"{text}\n".encode()), name="it", written_by="somebody")
    try:
        expected = careful(text)
    except (ValueError, TypeError):
        with pytest.raises(InvalidInput, match="it line 1"):
            next(lines.read(lambda data: data))
    else:
        assert [expected] == list(lines.read(lambda data: data))
    assert 1 == lines.number


def test_a_file_that_cannot_be_read_to_its_end_is_named() -> None:
    """A read error in the middle of a file is bad input."""

    class Fails(io.BytesIO):
        def readline(self, _size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    lines = Lines(Fails(b"{}\n"), name="h.jsonl", written_by="anybody")
    with pytest.raises(InvalidInput, match=r"h\.jsonl: saw 'Input/output error'"):
        list(lines.read(dict))


def reader(content: bytes, *, start: int = 0) -> Lines:
    """A reader of this content from a byte on."""
    file = io.BytesIO(content)
    file.seek(start)
    return Lines(file, name="it", written_by="somebody")


@pytest.mark.parametrize("ahead", [1, 2, 3, 9])
@pytest.mark.parametrize("start", [0, 9])
@pytest.mark.parametrize("bad", range(5))
@pytest.mark.parametrize("ending", [b"\n", b""])
def test_the_place_is_that_of_the_last_line(
    ahead: int, start: int, bad: int, ending: bytes
) -> None:
    """However many lines are read at a time, each comes with its number and its end."""
    lines = [b'{"a": %d}\n' % number for number in (1, 22, 333, 4444)]
    given = [*lines[:bad], b'{"a"' + ending, *(lines[bad:] if ending else ())]
    found = reader(b"x" * start + b"".join(given), start=start)
    seen, ends = list[tuple[object, int, int]](), 0
    right = []
    for number, line in enumerate(lines[:bad], 1):
        ends += len(line)
        right.append((json.loads(line), number, start + ends))

    with pytest.raises(InvalidInput, match=f"it line {bad + 1}:"):
        seen.extend(
            (value, found.number, found.offset)
            for value in found.read(lambda data: data, ahead=ahead)
        )

    assert right == seen
    assert (bad + 1, not ending) == (found.number, found.cut)


@pytest.mark.parametrize("more", [-1, 0, 1, 2, 1000])
@pytest.mark.parametrize("after", [b"", b'{"a": 1}\n'])
def test_a_line_has_at_most_so_many_bytes(more: int, after: bytes) -> None:
    """The limit is that of a line without its end, whatever follows."""
    line = b'{"a": "%s"}' % (b"x" * (MAX_LINE + more - 9))
    found = reader(line + b"\n" + after)
    if more > 0:
        with pytest.raises(InvalidInput, match=f"it line 1: saw 'more than {MAX_LINE} bytes"):
            next(found.read(len))
    else:
        assert [1] * (1 + bool(after)) == list(found.read(len))
    assert MAX_LINE + more == len(line)
