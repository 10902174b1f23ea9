"""Files of results: our own are continued, and all others are left unchanged."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deep import deep_after
from process_tools import naming, until

from conformance.cli.main import main
from conformance.files.results import Results
from conformance.kernels.compile import cache
from conformance.seeded_bugs.scoring.attempts import Attempt, Attempts
from spec.vocabulary import InvalidInput

MISSED = Attempt(caught=False, steps=100, seconds=2.0)
KEY = ("CW5", "fuzz", 0)
FOREIGN = {
    "text": b"my notes\n",
    "text without an end": b"my notes",
    "JSON": b'{"name": "mine"}\n',
    "a list": b"[1]\n",
    "blank lines": b"\n\n\n",
    "binary": bytes(range(256)) * 4,
    "another command's": b'{"stamp": "1", "other": 1}\n',
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_file_is_refused_before_anything_is_written(
    content: bytes, tmp_path: Path
) -> None:
    """Every command that keeps results refuses a foreign file, and leaves it unchanged."""
    path = tmp_path / "mine"
    path.write_bytes(content)

    with pytest.raises(InvalidInput, match="this one is left as it is"):
        Attempts(path, "now")
    with pytest.raises(InvalidInput, match="kvspec kernel or compare has written"):
        cache.load(cache.results_of(path), "tpu")
    assert 2 == main(["plant", "--only", "CW5", "--results", str(path), "--fresh"])
    assert 2 == main(["compare", "--kept", "--results", str(path)])
    assert content == path.read_bytes()


def test_a_file_of_the_other_command_is_foreign_too(tmp_path: Path) -> None:
    """Tries of `plant` and cells of `compare` do not share a file."""
    path = tmp_path / "tries"
    Attempts(path, "now").add(KEY, MISSED)

    with pytest.raises(InvalidInput):
        cache.load(cache.results_of(path), "tpu")


def test_an_empty_file_is_a_new_one(tmp_path: Path) -> None:
    """An empty file, as `mktemp` makes it, is accepted."""
    path = tmp_path / "tries"
    path.touch()
    Attempts(path, "now").add(KEY, MISSED)

    assert {KEY: MISSED} == Attempts(path, "now").made


def test_damaged_lines_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    """Damaged lines are counted and the first is named, apart from an incomplete last line."""
    path = tmp_path / "tries"
    Attempts(path, "now").add(KEY, MISSED)
    row = json.loads(path.read_text())
    wrong = [{**row, "steps": "many"}, {**row, "seed": None}, {**row, "extra": 1}]
    wrong.append({name: value for name, value in row.items() if name != "caught"})
    text = "".join(json.dumps(one) + "\n" for one in wrong)
    cut = path.read_text()[:40]
    path.write_text(f"{path.read_text()}\n\0\0\0\n{text}NaN\n{cut}")

    attempts = Attempts(path, "now")

    assert {KEY: MISSED} == attempts.made
    damaged, last = attempts.notes()
    assert damaged[0] == f"6 lines of {path}, line 3 the first"
    assert last == (f"the last line of {path}", "it is incomplete; its work is repeated")


def test_what_is_damaged_is_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report of a command lists the damaged lines of its file."""
    path = tmp_path / "cells"
    path.write_text('{"stamp": "1", "record": {}}\n{"stamp": "1", "rec')

    main(["compare", "--kept", "--results", str(path)])

    assert f"not checked: the last line of {path}" in capsys.readouterr().out


ROW = b'{"stamp": "now", "plant": 1}\n'


@pytest.mark.parametrize(
    "lines",
    [
        [ROW, b'{"stamp": "now", "plant": 2}\n', ROW],
        [ROW, b"{}\n", ROW],
        [ROW, b"\n", b"no JSON\n", b'{"stamp": "now"}\n', ROW],
    ],
    ids=["whole lines", "a foreign line", "damaged and blank lines"],
)
def test_a_file_that_is_being_written_is_read_like_a_new_one(
    lines: list[bytes], tmp_path: Path
) -> None:
    """After each byte, the reader that goes on knows what one that begins knows."""
    content, path = b"".join(lines), tmp_path / "kept"
    going_on, found = Results(path, key="plant", command="plant"), list[dict[str, object]]()
    for end in range(len(content) + 1):
        path.write_bytes(content[:end])
        fresh = Results(path, key="plant", command="plant")

        found += going_on.read()

        whole = [one for one in content[:end].splitlines(keepends=True) if one.endswith(b"\n")]
        right = [json.loads(one) for one in whole if b"plant" in one]
        assert right == found == list(fresh.read())
        assert (not content[:end].endswith(b"\n") and end > 0) == going_on.cut == fresh.cut
        assert fresh.damaged == going_on.damaged
        assert list(fresh.notes()) == list(going_on.notes())


@pytest.mark.parametrize("end", range(len(ROW) + 1))
def test_a_line_that_is_added_never_joins_another(end: int, tmp_path: Path) -> None:
    """Whatever is left of the last line, the new one stands alone and all others are kept."""
    path = tmp_path / "kept"
    path.write_bytes(ROW + ROW[:end])
    results = Results(path, key="plant", command="plant")

    results.add("later", {"plant": 2})

    whole = end in {0, len(ROW), len(ROW) - 1}
    rows = [one["plant"] for one in results.read()]
    assert [1] * (1 + (end >= len(ROW) - 1)) + [2] == rows
    assert ([] if whole else [2], False) == (results.damaged, results.cut)


def test_forgotten_tries_stay_in_the_file(tmp_path: Path) -> None:
    """`--fresh` ignores the tries in the file without removing them, and uses later ones."""
    path = tmp_path / "tries"
    Attempts(path, "then").add(KEY, MISSED)
    attempts = Attempts(path, "now")
    attempts.add(KEY, MISSED)
    before = path.read_bytes()

    attempts.forget()

    assert {} == attempts.made == Attempts(path, "now").made
    assert {KEY: MISSED} == Attempts(path, "then").made
    assert path.read_bytes().startswith(before)
    attempts.add(("RC2", "fuzz", 0), MISSED)
    assert {("RC2", "fuzz", 0): MISSED} == Attempts(path, "now").made


def test_a_file_that_cannot_be_added_to_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is one line of bad input, without a traceback."""

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidInput, match="No space left on device"):
        Attempts(tmp_path / "tries", "now").add(KEY, MISSED)


def plant(folder: Path) -> "subprocess.Popen[str]":
    """Start `kvspec plant` in a process group of its own, with workers that take a while."""
    words = ["plant", "--only", "CW5", "--methods", "fuzz", "--results", str(folder / "tries")]
    return subprocess.Popen(
        [sys.executable, "-m", "conformance.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def workers(folder: Path) -> list[int]:
    """The process ids of its workers."""
    return [one for one in naming(f"{folder}/tries") if is_worker(one)]


def is_worker(number: int) -> bool:
    """Whether a process is a worker that the command has started."""
    try:
        return (
            b"conformance.seeded_bugs.scoring.worker"
            in Path(f"/proc/{number}/cmdline").read_bytes()
        )
    except OSError:
        return False


@pytest.mark.parametrize("how", deep_after(1, [signal.SIGKILL, signal.SIGINT]))
def test_no_worker_is_left(how: signal.Signals, tmp_path: Path) -> None:
    """No worker outlives a command that is killed or interrupted."""
    with plant(tmp_path) as command:
        assert until(lambda: workers(tmp_path), seconds=60)
        time.sleep(1.0)  # in the middle of importing jax
        os.killpg(command.pid, how)
        said, _ = command.communicate()

        assert until(lambda: not workers(tmp_path), seconds=3)
    if how is signal.SIGINT:
        assert 3 == command.returncode
        assert "Traceback" not in said
        assert "interrupted" in said
