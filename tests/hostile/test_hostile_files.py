"""Damaged and invented files: each is refused with a plain message, or read as what it says."""

import io
import json
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from cell_tools import GOOD
from counterexample_tools import GROW, recorded
from deep import deep_after
from graph_tools import ABOUT
from graph_tools import small as small_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recording_tools import recorded as recording
from recording_tools import table, whole
from spec_engine import small

from conformance.exploration import graph
from conformance.files import histories
from conformance.fuzzing.suite import read_known
from conformance.kernels.compile import baseline, cache
from conformance.kernels.compile.table import targets
from conformance.recordings.format import line_from_data
from conformance.recordings.itf import from_itf, to_itf
from conformance.recordings.validate import header_and_lines, validate
from conformance.seeded_bugs.scoring.attempts import Attempt, Attempts
from conformance.vectors import files as vectors
from spec import ladder
from spec.vocabulary import InvalidInput

EXAMPLES: Final = int(os.environ.get("KVSPEC_HOSTILE_EXAMPLES", "60"))
RAW: Final = re.compile(
    r"\b[A-Z]\w*(Error|Exception|BadZipFile)\b|Traceback|__init__|0x[0-9a-f]{6}"
)
HOSTILE: Final[tuple[Any, ...]] = (
    *(None, True, 0, -1, 1.5, 1e308, 2**31, 2**63, 10**400, "", "\0", "\ud800", "é", "x" * 5000),
    *([], {}, [[]], [None], [[1, 2, 3]], {"a": 1}, {"0": -1}, "history", "BOGUS", "1" * 5000),
    *([0] * 3000, {"#bigint": "9" * 5000}, {"#map": [[[], 1]]}, {"#tup": [1]}, {"#set": [[]]}),
)
Read = Callable[[Path], object]


def taken(path: Path) -> object:
    """Validate a recording, and convert it to a trace."""
    found = validate(path)
    with path.open("rb") as file:
        header, lines = header_and_lines(file, path)
        to_itf(header, lines.read(line_from_data))
    return found


def compared(path: Path) -> object:
    """Compare a baseline with itself."""
    earlier, now = baseline.load(path), targets([GOOD])
    return baseline.regressions(earlier, now), baseline.not_compared(earlier, now)


def judged(path: Path) -> object:
    """Read a trace, and judge it as a recording."""
    header, lines = from_itf(path)
    from conformance.recordings.judge import judge

    judging = judge(header, machine=ladder.whole())
    for line in lines:
        try:
            judging.take(line)
        except Exception as error:
            if type(error).__name__ != "Illegal":
                raise
            return str(error)
    return None


def kept_cells(path: Path) -> object:
    """The compiled cells that a file keeps."""
    results = cache.results_of(path)
    return cache.load(results, "tpu"), list(results.notes())


READERS: Final[dict[str, Read]] = {
    "history": histories.load,
    "recording": taken,
    "whole": taken,
    "itf": judged,
    "checkpoint": lambda path: graph.load(path, ABOUT),
    "known": read_known,
    "tries": lambda path: Attempts(path, "now"),
    "cells": kept_cells,
    "baseline": compared,
    "vectors": lambda path: vectors.check(path.parent),
}


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A valid file of each kind."""
    folder = tmp_path_factory.mktemp("right")
    made: dict[str, bytes] = {"history": histories.dump(recorded("leak", GROW)).encode()}
    for name, engine in (("recording", table), ("whole", whole)):
        path = recording(folder / name, engine(small(pages=6, page_size=2)), "lifecycle", 1)
        lines = path.read_bytes().splitlines(keepends=True)[:30]
        made[name] = b"".join(lines)
        path.write_bytes(made[name])
    with (folder / "whole").open("rb") as file:
        header, rows = header_and_lines(file, "whole")
        made["itf"] = json.dumps(to_itf(header, rows.read(line_from_data))).encode()
    graph.save(small_graph(), folder / "e.npz", ABOUT)
    made["checkpoint"] = (folder / "e.npz").read_bytes()
    made["known"] = b"# known\nRC a reason\nCONS another reason\n"
    tries = Attempts(folder / "tries", "now")
    tries.add(("CW5", "fuzz", 0), Attempt(caught=True, steps=7, seconds=0.5, clause="RC"))
    tries.add(("RC2", "fuzz", 1), Attempt(caught=False, steps=9, seconds=1.0))
    made["tries"] = (folder / "tries").read_bytes()
    cache.results_of(folder / "cells").add(cache.stamp("tpu"), {"record": GOOD.as_dict()})
    made["cells"] = (folder / "cells").read_bytes()
    made["baseline"] = json.dumps({"targets": targets([GOOD])}).encode()
    made["vectors"] = json.dumps({"kvspec": "vectors", "version": 1}).encode()
    return made


def test_the_files_are_right_before_they_are_damaged(
    right: dict[str, bytes], tmp_path: Path
) -> None:
    """Each file is read without an error before it is damaged."""
    assert set(READERS) == set(right)
    for kind, content in right.items():
        path = tmp_path / ("manifest.json" if kind == "vectors" else kind)
        path.write_bytes(content)
        if kind != "vectors":
            READERS[kind](path)
            path.unlink()


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(
    "alter",
    [
        lambda _: b"",
        lambda _: b"\n\n",
        lambda _: b"[" * 100_000,
        lambda _: b'{"a":' * 100_000,
        lambda _: b"[" + b"1" * 5000 + b"]\n",
        lambda _: b"x" * 5_000_000,
        lambda _: bytes(range(256)),
        lambda right: b"\xef\xbb\xbf" + right,
        lambda right: b"\0" + right,
        lambda right: b"\xff" + right,
        lambda right: right.replace(b"{", b'{"kvspec": 1, "kvspec": 1, ', 1),
        lambda right: right.replace(b"{", b'{"extra": NaN, ', 1),
        lambda right: right[: len(right) // 2],
    ],
    ids=["empty", "blank", "lists", "objects", "digits", "long", "binary", "BOM", "NUL", "UTF-8",
         "twice", "NaN", "cut"],
)  # fmt: skip
def test_common_damage_is_refused_in_plain_words(
    kind: str, alter: Callable[[bytes], bytes], right: dict[str, bytes], tmp_path: Path
) -> None:
    """Each file with each kind of common damage is refused with a plain message."""
    held_to_its_words(kind, alter(right[kind]), tmp_path)


def held_to_its_words(kind: str, content: bytes, folder: Path) -> None:
    """Read a file. Only InvalidInput may be raised, with one short line and no name of an error."""
    path = folder / {"itf": "t.itf.json", "vectors": "manifest.json"}.get(kind, kind)
    path.write_bytes(content)
    try:
        READERS[kind](path)
    except InvalidInput as error:
        told = str(error).replace(str(folder), "")
        assert 600 > len(told), told
        assert "\n" not in told
        assert not RAW.search(told), told


def altered(value: Any, draw: st.DrawFn) -> Any:
    """Plain data with one place changed: an entry removed, repeated or made hostile."""
    if isinstance(value, (dict, list)) and value and draw(st.integers(0, 9)):
        at = draw(st.sampled_from(list(value) if isinstance(value, dict) else range(len(value))))
        how = draw(st.integers(0, 6))
        made = value.copy()
        if how == 0:
            del made[at]
        elif how == 1:
            other = draw(st.sampled_from([*made.values()] if isinstance(made, dict) else made))
            made[at] = other
        elif how == 2 and isinstance(made, dict):
            made[draw(st.sampled_from(("kvspec", "extra", "-1", "01", "é", "x" * 3000)))] = made[at]
        elif how == 2 and isinstance(made, list):
            made.insert(at, made[at])
        else:
            made[at] = altered(made[at], draw)
        return made
    return draw(st.sampled_from(HOSTILE))


def in_json(content: bytes, draw: st.DrawFn) -> bytes:
    """One line of a file of JSON, with one or two places changed."""
    lines = content.splitlines(keepends=True)
    at = draw(st.integers(0, len(lines) - 1))
    try:
        value = json.loads(lines[at])
    except ValueError:
        return in_bytes(content, draw)
    for _ in range(draw(st.integers(1, 2))):
        value = altered(value, draw)
    lines[at] = json.dumps(value).encode() + b"\n"
    return b"".join(lines)


def in_bytes(content: bytes, draw: st.DrawFn) -> bytes:
    """A file that is cut, has a bit flipped, is joined with itself, or has bytes inserted."""
    at = draw(st.integers(0, len(content)))
    more = draw(
        st.sampled_from(
            (b"", b"\0", b"\xff", b"\xef\xbb\xbf", b"\r\n", b"\n\n", b"NaN", b'"', b"{", b"]",
             b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5000, b'"kvspec": 1, ', b"x" * 5_000_000)
        )
    )  # fmt: skip
    match draw(st.integers(0, 4)):
        case 0:
            return content[:at]
        case 1:
            flipped = bytes([content[at % len(content)] ^ 1 << draw(st.integers(0, 7))])
            return content[:at] + flipped + content[at + 1 :]
        case 2:
            return content[:at] + more + content[at:]
        case 3:
            return more + content
        case _:
            return content[:at] + content[draw(st.integers(0, len(content))) :]


def in_archive(content: bytes, draw: st.DrawFn) -> bytes:
    """A checkpoint with an altered header or altered numbers."""
    with np.load(io.BytesIO(content)) as held:
        parts: dict[str, Any] = dict(held)
    if draw(st.booleans()):
        data = altered(json.loads(parts["header"].tobytes()), draw)
        parts["header"] = np.frombuffer(json.dumps(data).encode(), np.uint8)
    else:
        name = draw(st.sampled_from(("parents", "moves", "header")))
        other = parts[name].astype(draw(st.sampled_from(("int64", "float64", "int32", "bool"))))
        if len(other):
            other[draw(st.integers(0, len(other) - 1))] = draw(st.sampled_from((-1, 0, 7, 120)))
        parts[name] = other[:: draw(st.sampled_from((1, 2)))]
    out = io.BytesIO()
    np.savez_compressed(out, **parts)
    return out.getvalue()


@st.composite
def damaged(draw: st.DrawFn, kind: str, content: bytes) -> bytes:
    """A damaged file of this kind."""
    if kind == "checkpoint" and draw(st.booleans()):
        return in_archive(content, draw)
    how = in_bytes if kind in {"known", "checkpoint"} or draw(st.booleans()) else in_json
    return how(content, draw)


@pytest.mark.parametrize("kind", deep_after(3, READERS))
def test_what_is_damaged_is_refused_in_plain_words(
    kind: str, right: dict[str, bytes], tmp_path: Path
) -> None:
    """A damaged file raises only InvalidInput, with one short line and no name of an error."""

    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(damaged(kind, right[kind]))
    def check(content: bytes) -> None:
        held_to_its_words(kind, content, tmp_path)

    check()


def test_an_archive_of_something_else_is_no_checkpoint(tmp_path: Path) -> None:
    """An archive of other contents, even with the name of a checkpoint, is refused."""
    path = tmp_path / "e.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.npy", b"no array")
    with pytest.raises(InvalidInput, match="a file that is damaged, or no checkpoint"):
        graph.load(path, ABOUT)
