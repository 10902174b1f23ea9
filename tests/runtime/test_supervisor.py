"""The supervisor: a verdict needs a run that reached its end, however the process ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import pytest

COMMAND = """
import os, signal, sys, time, types
from conformance.cli.contract import conclude, execute
from conformance.verdict import Verdict
from conformance.runtime.supervisor import supervised

def run(arguments, report):
    report.count(steps=9)
    {body}
    return Verdict.HOLDS

fake = types.SimpleNamespace(
    NAME="fake", HELP="", EXAMPLES=(), run=run, add_arguments=lambda parser: None
)
sys.exit(supervised(lambda tell: execute(fake, ["--json", "out.json"], tell), conclude=conclude))
"""
READY = "print('ready', os.getpid(), flush=True)"


PATIENT = "from conformance.runtime import supervisor; supervisor.GRACE_SECONDS = 1000.0\n"


ENDS = """
import os, signal, sys
from conformance.runtime.supervisor import supervised

own = os.getpid()
status = supervised(lambda tell: {status}, conclude=lambda *_, **__: 9)
if os.getpid() != own:  # the child, which has sent its status
    {end}
sys.exit(status)
"""
"""A supervised command that sends an exit status and then ends in another way."""


def start(
    body: str, folder: Path, *, stdout: int | IO[Any] = subprocess.PIPE, before: str = ""
) -> "Process":
    """Start a supervised command with this body. before: code for the watching process."""
    return subprocess.Popen(
        [sys.executable, "-c", before + COMMAND.format(body=body)],
        cwd=folder,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


Process = subprocess.Popen[str]


def ended(process: Process) -> tuple[int, str, str]:
    """The exit status and the outputs of a process that ends within 20 seconds."""
    out, err = process.communicate(timeout=20)
    assert "Traceback" not in out + err
    return process.returncode, out, err


def result(folder: Path) -> dict[str, Any]:
    """The result file, which must be the only file in the folder."""
    assert ["out.json"] == [path.name for path in folder.iterdir()]
    found: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return found


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("os._exit(0)", "status 0"),
        ("os._exit(1)", "status 1"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("os.fork() or time.sleep(60); os._exit(0)", "status 0"),  # the pipe stays open
    ],
)
def test_a_process_that_ends_early_has_decided_nothing(body: str, how: str, tmp_path: Path) -> None:
    """The exit status is 3, and the result and one line on stderr say how the process ended."""
    process = start(body, tmp_path)

    status, out, err = ended(process) if "fork" not in body else _without_the_child(process)
    assert 3 == status
    why = f"the process ended with {how} before there was a verdict"
    assert f"kvspec fake: stopped by {why}\n" == err
    assert "kvspec fake: undecided" in out
    found = result(tmp_path)
    assert ("undecided", why, False, 9) == (
        found["verdict"],
        found["error"],
        found["interrupted"],
        found["steps"],
    )


@pytest.mark.parametrize("status", [0, 1, 3])
@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "os._exit(7)",
        "raise SystemExit(7)",
        "raise ValueError",
        "os.abort()",
        *(f"os.kill(os.getpid(), {number.value})" for number in (signal.SIGKILL, signal.SIGSEGV)),
    ],
)
def test_a_status_that_was_sent_is_that_of_the_command(status: int, end: str) -> None:
    """However a process ends after its verdict, the command has the exit status of the verdict."""
    code = ENDS.format(status=status, end=end)

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=20, check=False
    )

    assert status == done.returncode


def _without_the_child(process: Process) -> tuple[int, str, str]:
    """As `ended`, if a process that the command has started keeps the streams open."""
    status = process.wait(timeout=20)
    os.killpg(process.pid, signal.SIGKILL)
    out, err = process.communicate()
    return status, out, err


def test_a_failure_that_was_recorded_is_not_lost_with_the_process(tmp_path: Path) -> None:
    """A failure that was recorded before a crash is the verdict."""
    status, out, _ = ended(start("report.fail('RC at step 4'); os._exit(0)", tmp_path))

    assert 1 == status
    assert "FAILS: RC at step 4\n" in out
    assert ("fails", ["RC at step 4"]) == tuple(
        result(tmp_path)[key] for key in ("verdict", "failures")
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("group", [True, False])
def test_a_signal_asks_for_the_end(number: int, tmp_path: Path, *, group: bool) -> None:
    """SIGINT and SIGTERM, to the process or its group, give status 3 and a result."""
    process = start(f"{READY}; time.sleep(60)", tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready")

    (os.killpg if group else os.kill)(process.pid, number)
    status, out, err = ended(process)
    assert (3, "") == (status, err)
    assert "interrupted" in out.splitlines()[-1]
    found = result(tmp_path)
    assert ("undecided", True, None, 9) == tuple(
        found[key] for key in ("verdict", "interrupted", "error", "steps")
    )


@pytest.mark.parametrize(("failed", "status"), [("pass", 3), ("report.fail('RC')", 1)])
def test_the_second_signal_ends_what_does_not_listen(
    failed: str, status: int, tmp_path: Path
) -> None:
    """A command that ignores signals is killed at the second, with the failures found so far."""
    deaf = f"{failed}; signal.signal(signal.SIGINT, signal.SIG_IGN); {READY}; time.sleep(60)"
    process = start(deaf, tmp_path, before=PATIENT)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready")

    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert status == ended(process)[0]
    assert result(tmp_path)["interrupted"]


def test_what_a_killed_process_had_begun_to_write_is_removed(tmp_path: Path) -> None:
    """The partial file of a killed process, which has its number in the name, is removed."""
    begun = "open(f'.kvspec-{os.getpid()}.partial', 'w').close(); os._exit(0)"

    assert 3 == ended(start(begun, tmp_path))[0]
    assert "undecided" == result(tmp_path)["verdict"]


def test_the_command_ends_with_the_process_that_watches_it(tmp_path: Path) -> None:
    """If the watching process is killed, the command ends as well."""
    process = start(f"{READY}; time.sleep(60)", tmp_path)
    assert process.stdout is not None
    child = int(process.stdout.readline().split()[1])

    process.kill()
    process.communicate(timeout=20)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}/cwd").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="NOT CHECKED: there is no /dev/full")
@pytest.mark.parametrize(
    ("body", "status"), [("pass", 2), ("report.fail('RC at step 4')", 1), ("1 / 0", 3)]
)
def test_output_that_cannot_be_written_is_bad_usage(body: str, status: int, tmp_path: Path) -> None:
    """Output that cannot be written is one line of stderr, which also names any failure."""
    with Path("/dev/full").open("w") as full:
        process = start(body, tmp_path, stdout=full)
        _, err = process.communicate(timeout=20)

    assert status == process.returncode
    last = err.splitlines()[-1]
    assert last.startswith("kvspec fake: standard output cannot be written: No space left")
    assert (status == 1) == ("RC at step 4" in last)
    assert 9 == result(tmp_path)["steps"]


@pytest.mark.parametrize(("body", "status"), [("pass", 2), ("report.fail('RC at step 4')", 1)])
def test_a_result_that_cannot_be_written_is_bad_usage(
    body: str, status: int, tmp_path: Path
) -> None:
    """If the disk is full at the end, a failure is still a failure, and is printed."""
    full = "atomic.write = lambda *_: (_ for _ in ()).throw(OSError(28, 'No space left on device'))"
    process = start(f"from conformance.files import atomic; {full}; {body}", tmp_path)
    found, out, err = ended(process)

    assert status == found
    where = tmp_path / "out.json"
    assert f"kvspec fake: --json {where}: cannot be written: No space left on device\n" == err
    assert (status == 1) == ("FAILS: RC at step 4" in out)
    assert [] == list(tmp_path.iterdir())


def test_a_reader_who_has_gone_is_no_failure(tmp_path: Path) -> None:
    """If the reader of standard output has gone, the status is 2, and the result is complete."""
    reads, writes = os.pipe()
    os.close(reads)
    process = start("[report.say('x' * 4096) for _ in range(50)]", tmp_path, stdout=writes)
    os.close(writes)
    _, err = process.communicate(timeout=20)

    assert 2 == process.returncode
    assert 1 == err.count("\n")
    assert "standard output cannot be written: Broken pipe; holds" in err
    assert "holds" == result(tmp_path)["verdict"]
