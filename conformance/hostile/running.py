"""The execution of one call: perhaps interrupted, and everything observable recorded."""

import hashlib
import os
import random
import signal
import stat
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import IO, Final

from attrs import frozen

from conformance.hostile.calls import Call, shell_line

MARK: Final = "KVSPEC_HOSTILE"
"""A variable that marks the processes of a call and all their descendants."""
LEFT_SECONDS: Final = 3.0
"""Time limit of a process that outlives its call."""
MOST_TEXT: Final = 1_000_000
"""How many bytes of each stream are kept, from its end."""
GAP_SECONDS: Final = 0.3
"""The longest gap between two signals."""
POLL_SECONDS: Final = 0.02


class How(Enum):
    """The signal to send, and its target."""

    PROCESS = "SIGINT to the process"
    GROUP = "SIGINT to its group"
    TERM = "SIGTERM to the process"
    TWICE = "SIGINT twice"


@frozen
class Moment:
    """The time and kind of an interrupt. cold: with an empty cache of compiled code."""

    seconds: float
    how: How
    cold: bool


@frozen(kw_only=True)
class Outcome:
    """The observations of a call.

    status: as a shell shows it; negative: the signal that ended the process. seconds: of the whole
    call; after: from the signal to the end, None if it had ended before. listening: whether the
    process handled signals when it received one. timed_out: whether we killed it. left: processes
    that outlived it. before, files: snapshots of the folder.
    """

    status: int
    out: str
    err: str
    seconds: float
    after: float | None
    listening: bool
    timed_out: bool
    left: tuple[str, ...]
    before: Mapping[str, str]
    files: Mapping[str, str]


def run(call: Call, folder: Path, *, moment: Moment | None = None, most: float) -> Outcome:
    """Run a call in its prepared folder. most: the time limit in seconds."""
    before, mark = snapshot(folder), uuid.uuid4().hex
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.monotonic()
        process = subprocess.Popen(
            ["bash", "-c", os.fsencode(shell_line(call, folder))],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=_environ(mark),
            start_new_session=True,
        )
        try:
            sent, listening = _interrupt(process, moment, started)
            timed_out = _wait(process, most=started + most)
            ended = time.monotonic()
            left = _left(mark, process.pid)
        finally:
            _end_all(mark, process.pid)
            process.wait()
        return Outcome(
            status=process.returncode,
            out=_text(out),
            err=_text(err),
            seconds=ended - started,
            after=None if sent is None else ended - sent,
            listening=listening,
            timed_out=timed_out,
            left=left,
            before=before,
            files=snapshot(folder),
        )


def snapshot(folder: Path) -> dict[str, str]:
    """The contents of a folder, by path: a digest of each file, the kind of anything else."""
    found = {}
    for path in sorted(folder.rglob("*")):
        found[os.fsdecode(os.path.relpath(path, folder))] = _state(path)
    return found


def _state(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISREG(mode):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return f"link to {path.readlink()}" if stat.S_ISLNK(mode) else f"kind {stat.S_IFMT(mode):o}"


def _environ(mark: str) -> dict[str, str]:
    """Our environment, without variables that would influence a call."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX", "PY"))}
    return {**kept, MARK: mark}


def _interrupt(
    process: "subprocess.Popen[bytes]", moment: Moment | None, started: float
) -> tuple[float | None, bool]:
    """Wait for the moment; return when the signal was sent, and whether it was handled."""
    if moment is None:
        return None, True
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=max(0.0, started + moment.seconds - time.monotonic()))
        return None, True
    listening = listens(process.pid)
    sent = time.monotonic()
    _send(process, moment)
    if moment.how is How.TWICE:
        time.sleep(random.Random(moment.seconds).uniform(0.0, GAP_SECONDS))
        _send(process, moment)
    return sent, listening


def _send(process: "subprocess.Popen[bytes]", moment: Moment) -> None:
    if process.poll() is not None:
        return
    if moment.how is How.GROUP:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGTERM if moment.how is How.TERM else signal.SIGINT)


def listens(pid: int) -> bool:
    """Whether a process handles, blocks or ignores SIGTERM, which Python by itself does not."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    masks = [line.split()[1] for line in lines if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]
    return any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)


def _wait(process: "subprocess.Popen[bytes]", *, most: float) -> bool:
    """Wait for the end; return whether the process had to be killed."""
    try:
        process.wait(timeout=max(0.0, most - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    return False


def _left(mark: str, session: int) -> tuple[str, ...]:
    deadline = time.monotonic() + LEFT_SECONDS
    while (found := _running(mark, session)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return tuple(_name(pid) for pid in found)


def _end_all(mark: str, session: int) -> None:
    for pid in _running(mark, session):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _running(mark: str, session: int) -> list[int]:
    """The running processes of a call: those that carry its mark or are of its session.

    A process that is just being replaced by another program shows no variables, and one that called
    setsid has a session of its own. One that has neither is not found.
    """
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if _marked(pid, mark) or _of_session(pid, session)]


def _marked(pid: int, mark: str) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{MARK}={mark}".encode() in variables.split(b"\0")


def _of_session(pid: int, session: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    words = fields.rpartition(b")")[2].split()
    threads = int(words[17])  # the first one may end before the others
    ended = words[0] in (b"Z", b"X") and threads <= 1
    return int(words[3]) == session and not ended


def _name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return str(pid)
    return words.decode(errors="replace").strip()


def _text(file: "IO[bytes]") -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MOST_TEXT))
    return file.read().decode(errors="replace")
