"""Processes that run our modules: the sources that they import, and their end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
from process_tools import naming, until

from conformance.kernels.batches import SIZES
from conformance.runtime import processes


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ended(process: processes.Process) -> tuple[int, str]:
    """The exit status, and the text on stderr."""
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    status = process.wait()
    processes.end(process)
    process.stderr.close()
    return status, errors


def test_our_packages_are_ours_whatever_lies_in_the_folder(here: Path) -> None:
    """Modules in the current folder that are named like ours or Python's own are not imported."""
    for name in ("spec", "conformance", "impl", "json"):
        (here / name).mkdir()
        (here / name / "__init__.py").write_text("raise SystemExit(77)\n")
    (here / "runpy.py").write_text("raise SystemExit(77)\n")

    status, errors = ended(processes.start("conformance.seeded_bugs.scoring.worker", errors=PIPE))

    assert 1 == status
    assert "IndexError" in errors  # it has started and asks for its job


def test_a_kernel_beside_the_caller_is_found(here: Path) -> None:
    """A module in the current folder is found, after all other places."""
    (here / "mine.py").write_text("raise SystemExit(5)\n")
    process = processes.start(
        "conformance.kernels.trials",
        json.dumps([{"kernel": "mine:kernel", "sizes": SIZES[0].name, "results": "r"}]),
        errors=PIPE,
    )
    status, errors = ended(process)

    assert 5 == status, errors


def test_it_ends_with_its_starter_however_that_ends() -> None:
    """A process ends when its starter is killed, even while it works."""
    script = (
        "import time\n"
        "from conformance.runtime import processes\n"
        "one = processes.start('timeit', '-n1', '-r1', 'import time; time.sleep(6041)')\n"
        "print(flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=PIPE) as starter:
        assert starter.stdout is not None
        starter.stdout.readline()
        assert until(
            lambda: [one for one in naming("sleep(6041)") if one != starter.pid], seconds=30
        )
        starter.kill()

    assert until(lambda: not naming("sleep(6041)"), seconds=20)


def test_ctrl_c_does_not_reach_it() -> None:
    """A process has its own group, which Ctrl-C does not reach, and an empty standard input."""
    process = processes.start("timeit", "-n1", "-r1", "input()", errors=PIPE)

    assert os.getpgid(process.pid) == process.pid
    assert "EOFError" in ended(process)[1]


def test_what_takes_too_long_is_ended_with_what_it_has_started() -> None:
    """A process that exceeds its time is killed with its children, and has no status."""
    child = "import subprocess; subprocess.run(['sleep', '6042'])"
    process = processes.start("timeit", "-n1", "-r1", child)
    assert until(lambda: naming("sleep 6042"), seconds=5)

    assert processes.finish(process, seconds=0.1) is None
    assert -signal.SIGKILL == process.returncode
    assert until(lambda: not naming("sleep 6042"), seconds=3)


def test_all_are_ended_at_once() -> None:
    """All processes are ended, including those that other threads wait for."""
    two = [processes.start("timeit", "-n1", "-r1", "import time; time.sleep(99)") for _ in range(2)]
    processes.end_all()

    assert [-signal.SIGKILL] * 2 == [process.returncode for process in two]
