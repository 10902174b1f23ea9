"""Atomic writes: a file appears whole or not at all, and no file is both read and written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.cli import options
from conformance.files import atomic
from spec.vocabulary import InvalidInput


def test_what_was_there_stays_until_the_new_content_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the content cannot be written, the old file is unchanged and no other file is left."""
    path = tmp_path / "kept"
    path.write_text("older")

    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        atomic.write(path, "newer")
    assert ([path], "older") == (list(tmp_path.iterdir()), path.read_text())


def test_folders_are_made_and_links_followed(tmp_path: Path) -> None:
    """A link stays a link, and its target is replaced."""
    link, target = tmp_path / "link", tmp_path / "new" / "target"
    link.symlink_to(target)

    atomic.write(link, b"\x00bytes")
    assert link.is_symlink()
    assert b"\x00bytes" == target.read_bytes()


KILLED = """\
import os, sys
from conformance.files import atomic
os.fsync = lambda _: os._exit(0)
print(os.getpid(), flush=True)
atomic.write(sys.argv[1], "newer")
"""


@pytest.mark.parametrize("kind", ["a file", "a new file", "a link", "a link to a link"])
@pytest.mark.parametrize("absolute", [False, True])
def test_what_a_killed_process_left_is_removed_and_no_more(
    kind: str, *, absolute: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary file goes, wherever links lead, and what another process writes stays."""
    monkeypatch.chdir(tmp_path)
    far = tmp_path / "far"
    far.mkdir()
    (far / "target").write_text("older")
    (tmp_path / "a link").symlink_to("far/target")
    (tmp_path / "a link to a link").symlink_to("a link")
    (tmp_path / "a file").write_text("older")
    path = tmp_path / kind if absolute else Path(kind)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)], check=True, stdout=subprocess.PIPE, text=True
    )
    process, home = int(done.stdout), path.resolve().parent
    right = {one for one in tmp_path.rglob("*") if not one.name.startswith(f".kvspec-{process}.")}
    assert 1 == len(set(tmp_path.rglob("*")) - right)
    other = atomic.beside(home / "other", process=process + 1)
    other.touch()

    atomic.clear(path, process=process)

    assert {*right, other} == set(tmp_path.rglob("*"))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (".", "a folder"),
        ("fifo", "not a regular file"),
        ("loop", "a link that leads back to itself"),
        ("file/below", "not a folder"),
        ("x" * 300, "File name too long"),
        ("new/" + "é" * 200 + "/file", "a name of 400 bytes"),
        ("null\0byte", "null"),
        ("/proc/new/file", "/proc"),
    ],
)
def test_a_place_that_cannot_be_written_is_known_before(
    name: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is found in advance, and the check creates nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")

    found = atomic.check_file(Path(name))
    assert found is not None
    assert why in found or name.startswith("/proc")
    assert {"file", "fifo", "loop"} == {path.name for path in tmp_path.iterdir()}


def test_a_place_that_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    """The check creates neither the folders nor the file."""
    assert atomic.check_file(tmp_path / "new" / "file") is None
    assert atomic.check_folder(tmp_path / "new" / "deep") is None
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_one_file_has_one_purpose(link: object, tmp_path: Path) -> None:
    """A file cannot be both input and output, nor two outputs, under any of its names."""
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_text("input")
    if callable(link):
        link(path, other)
    name = str(other if link else tmp_path / "." / "a")

    with pytest.raises(InvalidInput, match="nothing else for this command"):
        options.check_distinct([3, options.input_file(str(path)), options.output_file(name)])
    with pytest.raises(InvalidInput, match="nothing else for this command"):
        options.check_distinct([options.output_file(str(path)), options.output_file(name)])
    options.check_distinct([options.input_file(str(path)), options.input_file(name)])
    options.check_distinct([options.input_file(str(path)), options.output_file(f"{name}c")])


def test_permissions_are_kept_and_protected_files_left_alone(tmp_path: Path) -> None:
    """Permissions are kept, and a write-protected file is refused in a writable folder too."""
    path = tmp_path / "kept"
    path.write_text("older")
    path.chmod(0o640)
    atomic.write(path, "newer")
    assert ("newer", 0o640) == (path.read_text(), path.stat().st_mode & 0o777)

    path.chmod(0o440)
    assert "a file that is write-protected" == atomic.check_file(path)


def test_the_source_of_an_engine_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source file of an engine counts as input, wherever Python finds it, and is not run."""
    (tmp_path / "below" / "package").mkdir(parents=True)
    (tmp_path / "mine.py").write_text("raise ValueError")
    (tmp_path / "below" / "package" / "mine.py").write_text("raise ValueError")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "below")

    for engine, source in (
        ("mine:make", "mine.py"),
        ("package.mine:make", "below/package/mine.py"),
    ):
        with pytest.raises(InvalidInput, match="the source of the engine"):
            options.check_distinct([engine, options.output_file(source)])
    options.check_distinct(["mine:make", options.output_file("other.py")])


def test_a_folder_that_is_named_is_for_its_own_files(tmp_path: Path) -> None:
    """An output file may not lie in an output folder, whose own files it could replace."""
    folder = options.output_folder(str(tmp_path / "corpus"))

    with pytest.raises(InvalidInput, match="a file in "):
        options.check_distinct([folder, options.output_file(str(tmp_path / "corpus" / "a"))])
    options.check_distinct([folder, options.output_file(str(tmp_path / "a"))])


def test_what_is_printed_may_go_to_a_file(tmp_path: Path) -> None:
    """A file to which stdout or stderr is redirected may not be an output as well."""
    script = (
        "import sys\n"
        "from conformance.cli import options\n"
        "options.check_distinct([options.output_file(sys.argv[1])])"
    )
    for name in ("stdout", "stderr"):
        with (tmp_path / name).open("w") as file:
            words = [sys.executable, "-c", script, str(tmp_path / name)]
            other = subprocess.DEVNULL
            done = subprocess.run(
                words,
                check=False,
                stdout=file if name == "stdout" else other,
                stderr=file if name == "stderr" else other,
            )
        assert 1 == done.returncode
    assert 0 == subprocess.run([*words[:3], str(tmp_path / "3")], check=False).returncode


def test_two_outputs_that_are_not_there_yet_are_one_file_too(tmp_path: Path) -> None:
    """Files that do not exist yet are compared by their resolved paths."""
    names = (str(tmp_path / "new"), str(tmp_path / "x" / ".." / "new"))

    with pytest.raises(InvalidInput):
        options.check_distinct([options.output_file(name) for name in names])
