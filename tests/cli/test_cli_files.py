"""Files on the command line: inputs are never overwritten, and outputs are written whole."""

import argparse
import errno
import io
import json
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import cast

import pytest
from counterexample_tools import OURS
from recording_tools import altered, recorded, table
from spec_engine import small

from conformance.cli import contract, options
from conformance.cli.main import COMMANDS, main
from conformance.files import atomic, histories
from conformance.recordings import itf
from conformance.vectors import files as vectors

PATH_LIKE = ("FILE", "FOLDER", "DIR", "HISTORY", "TRACE", "PATH")
LEGALITY = ("--require", "nothing")

TYPES = {options.input_file, options.output_file, options.output_folder}
INTERPRETERS = {"--python", "--python-a", "--python-b"}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def paths(name: str) -> list[argparse.Action]:
    """The options of a command that name a file or folder, except Python interpreters."""
    parser = contract._parser(import_module(f"conformance.cli.{name}"))
    return [
        action
        for action in parser._actions
        if any(word in str(action.metavar or action.dest).upper() for word in PATH_LIKE)
        and not INTERPRETERS & set(action.option_strings)
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_path_has_a_type_that_guards_it(name: str) -> None:
    """Every path has a type that distinguishes inputs from outputs."""
    found = paths(name)

    assert "--json" in {word for action in found for word in action.option_strings}
    assert [] == [action.dest for action in found if action.type not in TYPES]


def test_the_walk_over_the_options_sees_those_that_there_are() -> None:
    """The options include files to read, files to write and folders."""
    assert TYPES == {action.type for name in COMMANDS for action in paths(name)}


def legal() -> str:
    """Write a recording that holds, and return its name."""
    recorded(Path("r.jsonl"), table(small()), "lifecycle", 1)
    return "r.jsonl"


@pytest.mark.parametrize("link", [None, os.link, os.symlink])
@pytest.mark.parametrize(
    "words",
    [
        ("validate", "r.jsonl", "--json", "OUT"),
        ("validate", "r.jsonl", "--itf", "OUT"),
        ("rerun", "r.jsonl", "--json", "OUT"),
        ("replay", "r.jsonl", "--format", "azure", "--json", "OUT"),
        ("kernel", "tpu", "--target", "v5e", "--baseline", "r.jsonl", "--json", "OUT"),
        ("kernel", "tpu", "--target", "v5e", "--baseline", "r.jsonl", "--results", "OUT"),
        ("kernel", "tpu", "--target", "v5e", "--baseline", "r.jsonl", "--reproduce", "OUT"),
    ],
)
def test_what_is_read_is_not_written_over(
    words: tuple[str, ...], link: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """An input cannot be an output, by its own name or by a link, and no file is changed."""
    before = Path(legal()).read_bytes()
    out = "r.jsonl"
    if link is not None:
        assert callable(link)
        link("r.jsonl", "link")
        out = "link"

    assert 2 == main([out if word == "OUT" else word for word in words])

    assert "which is read" in capsys.readouterr().err
    assert before == Path("r.jsonl").read_bytes()
    assert {"r.jsonl", "link"} >= {path.name for path in Path().iterdir()}


def test_two_outputs_are_two_files(capsys: pytest.CaptureFixture[str]) -> None:
    """Two outputs to one file are refused, since one would overwrite the other."""
    assert 2 == main(["validate", legal(), "--itf", "new", "--json", "./new"])
    assert "which is written too" in capsys.readouterr().err
    assert not Path("new").exists()


def test_a_result_among_the_vectors_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A result file inside the folder of vectors is refused."""
    assert 2 == main(["vectors", "v", "--json", "v/r.json"])
    assert "saw 'a file in v'" in capsys.readouterr().err
    assert [] == [path for path in Path().rglob("*.json*") if path.is_file()]


def full(_path: object, _content: object) -> None:
    """Fail as a write to a full disk does."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_illegal_recording_fails_on_a_full_disk_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the disk is full, the shortest illegal part is printed, and it is a recording itself."""
    altered(Path(legal()))
    monkeypatch.setattr(atomic, "write", full)

    assert 1 == main(["validate", "r.jsonl"])

    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith("{")]
    Path("least.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert "not kept: No space left on device" in out
    assert 1 == main(["validate", "least.jsonl", "--shorten", "0"])
    assert f"least.jsonl line {len(lines)}: RC" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["legal", "illegal", "itf"])
def test_standard_input_is_judged_and_not_kept(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`validate -` judges standard input, ITF included, and leaves no temporary file."""
    path = Path(legal())
    if kind == "illegal":
        altered(path)
    if kind == "itf":
        assert 0 == main(["validate", str(path), "--itf", "t", *LEGALITY])
        path = Path("t")
    given = types.SimpleNamespace(buffer=io.BytesIO(path.read_bytes()))
    monkeypatch.setattr(sys, "stdin", given)
    temporary = Path("tmp")
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    status = main(["validate", "-", "--itf", "new.itf.json", "--illegal", "least", *LEGALITY])

    out = capsys.readouterr().out
    assert (1 if kind == "illegal" else 0) == status
    assert ("FAILS: standard input line" in out) is (kind == "illegal")
    assert itf.from_itf(Path("new.itf.json"))[1]
    assert [] == list(temporary.iterdir())


def test_a_pipe_is_read_once() -> None:
    """A pipe can be validated, and its shortest illegal part is found."""
    altered(Path(legal()))
    command = f"{sys.executable} -m conformance.cli.main validate <(cat r.jsonl)"
    shell = shutil.which("bash")
    assert shell is not None
    done = subprocess.run([shell, "-c", command], capture_output=True, text=True, check=False)

    assert 1 == done.returncode, done.stderr
    assert "shortest_events" in done.stdout


@pytest.mark.parametrize(
    ("command", "kind", "part"),
    [
        ("validate", "history", "saw 'a history of steps', allowed: a recording of an engine. kvs"),
        ("rerun", "recording", "saw 'a recording of an engine', allowed: a history of steps. kvs"),
        ("rerun", "itf", "saw 'a trace in ITF', allowed: a history of steps. kvspec validate"),
        ("rerun", "manifest", "saw 'a manifest of test vectors'"),
        ("validate", "manifest", "saw 'a manifest of test vectors', allowed: a recording"),
        ("validate", "words", "saw 'a test vector in words'"),
        ("validate", "result", "saw 'the JSON result of a command'"),
        ("rerun", "tries", "saw 'a file of kept results'"),
        ("validate", "checkpoint", "saw 'an archive, as of kvspec explore'"),
        ("validate", "later", "saw 'a recording of version 4; version 3 is read here'"),
    ],
)
def test_a_file_of_another_kind_is_told_what_it_is(
    command: str, kind: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the kind of the file, and the command that takes it."""
    text = Path(legal()).read_text()
    header = text.splitlines(keepends=True)[0]
    assert 0 == main(["validate", "r.jsonl", "--itf", "t", "--json", "result", *LEGALITY])
    contents = {
        "history": histories.dump(OURS),
        "recording": text,
        "itf": Path("t").read_text(),
        "manifest": json.dumps({"kvspec": "vectors", "version": 1}, indent=1),
        "words": "kvspec vectors 1 0.1.0\n",
        "result": Path("result").read_text(),
        "tries": '{"stamp": "1", "plant": "CW5"}\n',
        "checkpoint": "PK\x03\x04\0\0",
        "later": header.replace('"version": 3', '"version": 4'),
    }
    Path("given").write_text(contents[kind])
    capsys.readouterr()

    assert 2 == main([command, "given"])
    assert part in capsys.readouterr().err


class Crash(BaseException):
    """The end of the process."""


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("after", range(10))
def test_vectors_are_whole_or_taken_up_again(
    *, killed: bool, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash the folder has a complete manifest or none, and the next run completes it."""
    names = ("a.jsonl", "b.jsonl", "manifest.json")
    old, new = ({name: json.dumps({"kvspec": "vectors", "n": n}) for name in names} for n in (0, 1))
    monkeypatch.setattr(vectors, "contents", lambda content: content.items())
    write = cast("Callable[[object, Path], None]", vectors.write)
    folder, left = Path("v"), iter(range(after))
    write(old, folder)

    def crashing(does: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object) -> object:
            if next(left, None) is None:
                raise Crash
            return does(*given)

        return call

    with monkeypatch.context() as planted, suppress(Crash):
        planted.setattr(atomic, "write", crashing(atomic.write))
        planted.setattr(Path, "replace", crashing(Path.replace))
        if killed:
            planted.setattr(shutil, "rmtree", lambda _path: None)
        write(new, folder)

    there = {path.name: path.read_text() for path in folder.glob("*.json*")}
    assert "manifest.json" not in there or there in (old, new)
    vectors.check(folder)
    write(new, folder)
    assert new == {path.name: path.read_text() for path in folder.iterdir()}


def test_a_manifest_of_others_is_not_ours() -> None:
    """A manifest of another program is left unchanged."""
    Path("v").mkdir()
    Path("v/manifest.json").write_text('{"name": "my app"}')

    assert 2 == main(["vectors", "v"])
    assert '{"name": "my app"}' == Path("v/manifest.json").read_text()
