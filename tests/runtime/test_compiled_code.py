"""The cache of compiled code: each user has one, and damage to it changes no verdict.

The tests of the kit use the folder of the user, as the commands do, since a warm start makes them
fast. Only the tests in this module use folders of their own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from deep import deep_after

from conformance.cli import doctor, main
from conformance.runtime import compiled_code
from conformance.runtime.compiled_code import VARIABLE, place

ROOT = Path(compiled_code.__file__).parents[2]
PROGRAM = """
import json, sys
from conformance.runtime import compiled_code
assert "jax" not in sys.modules
compiled_code.LEAST_SECONDS = 0.0  # on a fast machine all compile in less, and none is kept
from jax import config, monitoring

events = []
monitoring.register_event_listener(lambda name, **_: events.append(name.rpartition("/")[2]))
from spec.vocabulary import CleanupMode, Geometry, default_limits
from spec.machines.actions import Reserve
from conformance.engines import ours

sizes = Geometry(pages=3, page_size=2, slots=2, pages_per_seq=2)
engine = ours.make(sizes, default_limits(sizes), CleanupMode.NONE)
slot = engine.apply(Reserve())
print(json.dumps({
    "used": engine.observe().used,
    "hits": events.count("cache_hits"),
    "folder": config.jax_compilation_cache_dir,
}))
"""


def started(folder: Path, **variables: str | Path) -> "subprocess.Popen[str]":
    """Start a process that reserves a slot of our engine in this folder; warnings are errors."""
    known = {name: text for name, text in os.environ.items() if name not in {VARIABLE, "HOME"}}
    known.pop("XDG_CACHE_HOME", None)
    known |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"} | {
        name: str(value) for name, value in variables.items()
    }
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=folder,
        env=known,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: "subprocess.Popen[str]") -> dict[str, object]:
    """The output of a process that succeeds and prints no errors."""
    out, err = process.communicate(timeout=300)
    assert (0, "") == (process.returncode, err)
    found: dict[str, object] = json.loads(out)
    assert [True, False] == found["used"]
    return found


def reserved(folder: Path, **variables: str | Path) -> dict[str, object]:
    """Start such a process, and wait for its output."""
    return ended(started(folder, **variables))


@pytest.mark.parametrize(
    ("system", "known", "below"),
    [
        ("linux", {"HOME": "{}"}, ".cache"),
        ("linux", {"HOME": "/nowhere", "XDG_CACHE_HOME": "{}/x"}, "x"),
        ("linux", {"HOME": "{}", "XDG_CACHE_HOME": "relative"}, ".cache"),
        ("darwin", {"HOME": "{}", "XDG_CACHE_HOME": "/nowhere"}, "Library/Caches"),
        ("win32", {"HOME": "/nowhere", "LOCALAPPDATA": "{}/y"}, "y"),
    ],
)
def test_each_platform_has_its_folder(
    tmp_path: Path, system: str, known: dict[str, str], below: str
) -> None:
    """The folder is created for the user alone, and its name has all versions that matter."""
    found = place({name: text.format(tmp_path) for name, text in known.items()}, system=system)

    assert found.path is not None
    assert tmp_path / below / "kvspec" == found.path.parent
    assert found.path.is_dir()
    assert 0o700 == found.path.stat().st_mode & 0o777
    for name in ("jax-", "jaxlib-", "python-3."):
        assert name in found.path.name


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({}, "no absolute path in XDG_CACHE_HOME or HOME"),
        ({"HOME": ""}, "no absolute path in XDG_CACHE_HOME or HOME"),
        ({"HOME": "/dev/null"}, "cannot be written: Not a directory"),
        ({"HOME": "/proc/nowhere"}, "cannot be written: No such file or directory"),
    ],
)
def test_where_nothing_can_be_written_nothing_is_kept(known: dict[str, str], why: str) -> None:
    """Without a writable folder no code is kept, and the reason is given."""
    found = place(known, system="linux")

    assert None is found.path
    assert why in found.why


def test_the_folder_of_the_users_choice_comes_first(tmp_path: Path) -> None:
    """A folder that the user has set for jax is used without a check."""
    assert Path("/nowhere") == place({VARIABLE: "/nowhere", "HOME": str(tmp_path)}).path
    assert [] == list(tmp_path.iterdir())


@pytest.mark.deep
def test_another_folder_of_the_same_user_starts_warm(tmp_path: Path) -> None:
    """A second process loads the code that the first compiled, and leaves no file where it runs."""
    home = tmp_path / "home"
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    cold, warm = (reserved(folder, HOME=home) for folder in folders)

    assert cold["folder"] == warm["folder"] == str(next((home / ".cache/kvspec").iterdir()))
    assert (0, True) == (cold["hits"], isinstance(warm["hits"], int) and 0 < warm["hits"])
    assert [[], []] == [list(folder.iterdir()) for folder in folders]


@pytest.mark.parametrize("known", deep_after(1, [{}, {"HOME": "/dev/null"}]))
def test_without_a_folder_the_engine_runs_without_a_word(
    tmp_path: Path, known: dict[str, str]
) -> None:
    """Without a folder the engine runs with no warning, and writes no file."""
    assert (None, 0) == (reserved(tmp_path, **known)["folder"], len(list(tmp_path.iterdir())))


@pytest.mark.deep
def test_the_users_own_folder_is_used(tmp_path: Path) -> None:
    """If jax's own variable is set, no file is written below the home, whatever its value."""
    chosen, home = tmp_path / "chosen", tmp_path / "home"

    assert str(chosen) == reserved(tmp_path, HOME=home, **{VARIABLE: chosen})["folder"]
    assert [chosen] == list(tmp_path.iterdir())
    reserved(tmp_path, **{VARIABLE: "/dev/null/nowhere"})


@pytest.mark.deep
def test_damaged_entries_are_compiled_again(tmp_path: Path) -> None:
    """An entry that is cut off, empty or altered is compiled again without a message."""
    reserved(tmp_path, HOME=tmp_path)
    entries = dict[Path, bytes]()

    for damage in (cut_off, lambda _: b"", altered):
        for path in (tmp_path / ".cache").rglob("*-cache"):
            path.write_bytes(damage(entries.setdefault(path, path.read_bytes())))
        assert entries
        assert 0 == reserved(tmp_path, HOME=tmp_path)["hits"]


def cut_off(whole: bytes) -> bytes:
    """The first half, as of an entry that another process has not finished."""
    return whole[: len(whole) // 2]


def altered(whole: bytes) -> bytes:
    """The content with one bit changed."""
    middle = len(whole) // 2
    return whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]


@pytest.mark.deep
def test_several_processes_write_at_once(tmp_path: Path) -> None:
    """Processes that write at the same time all succeed."""
    processes = [started(tmp_path, HOME=tmp_path) for _ in range(2)]
    for process in processes:
        ended(process)

    assert 0 != reserved(tmp_path, HOME=tmp_path)["hits"]


def test_the_folder_does_not_grow_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest entries are removed first, and no other file is."""
    monkeypatch.setattr(compiled_code, "MOST_ENTRIES", 2)
    for age, name in enumerate(("new-cache", "newer-cache", "old-cache", "oldest-cache", "other")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    compiled_code._remove_oldest(tmp_path)

    assert {"new-cache", "newer-cache", "other"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("home", "line", "kept"),
    [
        ("{}", "compiled code   {}/.cache/kvspec/", True),
        ("/dev/null", "not kept: /dev/null/", False),
    ],
)
def test_doctor_says_where_compiled_code_is_kept(
    home: str,
    line: str,
    kept: bool,  # noqa: FBT001 - a parameter of the test
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Doctor prints the folder of compiled code, or the reason for which none is kept."""
    monkeypatch.setattr(doctor, "probe_jax", lambda: {"backend": "cpu", "devices": []})
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", home.format(tmp_path))
    main.main(["doctor", "--json", str(tmp_path / "d.json")])

    assert line.format(tmp_path) in capsys.readouterr().out
    found = json.loads((tmp_path / "d.json").read_text(encoding="utf-8"))
    assert kept == (found["compiled_code"] is not None)
