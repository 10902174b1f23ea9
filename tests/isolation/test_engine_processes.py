"""The process of an engine: ours runs here, and any other in its own unless the caller asks."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deep import deep_after

from conformance.cli.main import main
from conformance.engines.registry import OUR_ENGINE, is_ours
from conformance.isolation.placement import factory_of
from conformance.isolation.remote import RemoteFactory
from spec.vocabulary import CleanupMode, Geometry, InvalidInput, default_limits

SIZES = Geometry(pages=6, page_size=2, slots=3, pages_per_seq=4)

ENGINES = """
import os, sys
from attrs import evolve
import spec_engine, toy_engine
from spec.vocabulary import InvalidInput

class Exits(toy_engine.Adapter):
    taken = 0
    def apply(self, action):
        Exits.taken += 1
        if Exits.taken > 30:
            os._exit(0)
        return super().apply(action)

class Forks(toy_engine.Adapter):
    taken = 0
    def apply(self, action):
        Forks.taken += 1
        if Forks.taken == 30:
            os.fork()
        return super().apply(action)

class Hangs(toy_engine.Adapter):
    def apply(self, action):
        open("hanging", "w").write(str(os.getpid()))
        while True:
            pass

class Shows(spec_engine.SpecEngine):
    def observe(self):
        view = super().observe()
        return evolve(view, cells=[object() for _ in view.cells], expected=lambda _: object())

def refuses(geometry, limits, cleanup):
    raise InvalidInput("geometry", seen=geometry.pages, allowed="100", remedy="Use 100.")

def lacks(geometry, limits, cleanup):
    import no_such_module_here
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with modules of engines in it."""
    (tmp_path / "engines_here.py").write_text(ENGINES)
    (tmp_path / "raises_here.py").write_text("import json\n\nraise KeyError('at import')\n")
    (tmp_path / "exits_here.py").write_text("import os\nos._exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "tools")
    return tmp_path


def command(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in a process that can import the modules of the tests."""
    paths = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "tools")}
    return subprocess.run(
        [sys.executable, "-m", "kvspec", *words],
        env=paths,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_ours_runs_here_and_another_elsewhere(here: Path) -> None:
    """Only our engine runs in this process by default, and any engine can be made to."""
    del here
    assert is_ours(OUR_ENGINE)
    assert not isinstance(factory_of(OUR_ENGINE, python=None), RemoteFactory)
    assert isinstance(factory_of(OUR_ENGINE, python=sys.executable), RemoteFactory)
    assert isinstance(factory_of("engines_here:Exits", python=None), RemoteFactory)
    chosen = factory_of("engines_here:Exits", python=None, in_process=True)
    assert "Exits" == getattr(chosen, "__name__", None)


def test_a_process_that_lacks_the_engine_says_what_is_missing() -> None:
    """What it says is in the error, and not that its first line is strange."""
    with pytest.raises(InvalidInput) as found:
        RemoteFactory("lib:Engine", python=None)._require_engine({"missing": "no module lib"})

    assert "no module lib" == found.value.seen


def test_in_process_and_another_python_exclude_each_other(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The options --in-process and --python cannot be combined."""
    del here
    words = ["fuzz", "--engine", "engines_here:Exits", "--in-process", "--python", sys.executable]

    assert 2 == main(words)
    assert "--in-process: saw " in capsys.readouterr().err


def test_an_engine_that_ends_its_process_is_a_finding(here: Path) -> None:
    """An engine that ends its process is a finding; in the kit's process the run is undecided."""
    found = command("fuzz", "--engine", "engines_here:Exits", "--seconds", "5", "--json", "f.json")
    assert 1 == found.returncode
    assert "the engine's process ended with status 0" in found.stdout
    kept = json.loads((here / "f.json").read_text())["counterexample"]
    assert (here / kept).exists()

    words = ("fuzz", "--engine", "engines_here:Exits", "--seconds", "5", "--in-process")
    undecided = command(*words, "--json", "u.json")
    assert 3 == undecided.returncode
    assert "the process ended with status 0 before there was a verdict" in undecided.stderr
    assert "undecided" == json.loads((here / "u.json").read_text())["verdict"]


def test_an_engine_that_forks_is_one_engine(here: Path) -> None:
    """The copy of an engine that forks does not answer for it."""
    words = ("fuzz", "--engine", "engines_here:Forks", "--seconds", "5", "--json", "f.json")

    assert command(*words).returncode in {0, 3}
    found = json.loads((here / "f.json").read_text())
    assert (None, []) == (found["error"], found["failures"])
    assert found["steps"] > 100


@pytest.mark.parametrize(
    ("engine", "says"),
    deep_after(
        1,
        [
            ("engines_here:Shows", "not JSON serializable|is no number, text, list or array"),
            ("engines_here:refuses", "geometry: saw 16, allowed: 100. Use 100."),
            ("exits_here:make", "ended with status 0"),
            ("engines_here:lacks", "No module named 'no_such_module_here'.*in lacks: import"),
            ("engines_here:absent", "no callable absent"),
            ("raises_here:make", "KeyError: 'at import' .*raises_here.py line 3"),
        ],
    ),
)
def test_what_is_wrong_with_an_adapter_is_bad_input(here: Path, engine: str, says: str) -> None:
    """An error of an adapter before the first step is bad input, and no finding."""
    del here
    done = command("fuzz", "--engine", engine, "--seconds", "2")

    assert 2 == done.returncode
    assert re.search(says, done.stderr.splitlines()[-1])
    assert done.stderr.splitlines()[-1].startswith("kvspec fuzz: ")


def test_what_cannot_be_sent_can_be_shown_in_process(here: Path) -> None:
    """Values that cannot be sent between processes can be compared in one process."""
    del here
    shows: Any = factory_of("engines_here:Shows", python=None, in_process=True)

    engine = shows(SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)
    assert SIZES.pages * SIZES.page_size == len(engine.observe().cells)
    with pytest.raises(InvalidInput, match="--in-process"):
        factory_of("engines_here:Shows", python=None)(
            SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL
        )


def test_a_harness_whose_engine_exits_has_decided_nothing(here: Path) -> None:
    """A harness whose engine ends the process has status 3 and one line on stderr."""
    (here / "ends_here.py").write_text("import os\n\ndef make(*_):\n    os._exit(0)\n")
    done = subprocess.run(
        [sys.executable, "-m", "conformance.harnesses.requests", "ends_here:make"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert 3 == done.returncode
    assert "kvspec: the process ended with status 0 before there was a verdict\n" == done.stderr


def test_an_engine_that_hangs_ends_with_the_kit(here: Path) -> None:
    """If all processes of kvspec are killed, no process of the engine is left behind."""
    words = [sys.executable, "-m", "kvspec", "fuzz", "--engine", "engines_here:Hangs"]
    paths = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "tools")}
    process = subprocess.Popen(words, env=paths, start_new_session=True)
    _until((here / "hanging").exists)
    engine = Path("/proc") / (here / "hanging").read_text()

    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _until(lambda: not (engine / "cwd").exists())


def _until(holds: Callable[[], bool]) -> None:
    """Wait for a condition, at most a minute."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
