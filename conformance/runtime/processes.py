"""Processes of our own modules: our sources, no signals of the terminal, and no life of their own.

A process that is started here takes our packages from where they are, whatever lies in the current
folder. Ctrl-C does not reach it: who started it ends it. It ends by itself when its starter is
gone, however that came about.
"""

import os
import runpy
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import spec

HOME: Final = Path(spec.__file__).parents[1]
BEGIN: Final = """\
import sys
home = sys.argv.pop(1)
sys.path.insert(0, home)
import spec, impl, conformance
sys.path.remove(home)
from conformance.runtime.processes import main
main(sys.argv.pop(1))
"""
"""Our packages are taken from our place, and nothing else that is installed there."""

Process = subprocess.Popen[bytes]
_running: Final = weakref.WeakSet[Process]()


def start(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    output: "IO[bytes] | int | None" = None,
    errors: "IO[bytes] | int | None" = None,
) -> Process:
    """Run a module of ours as a program. environment: None for that of this process.

    output, errors: where it prints; None: where this process does. It has no standard input.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", BEGIN, str(HOME), module, *arguments],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
        env=environment,
        start_new_session=True,
    )
    _running.add(process)
    return process


def finish(process: Process, *, seconds: float | None) -> int | None:
    """Wait for the end; returns the exit status, or None if it had to be ended.

    seconds: the longest that it may take; None: as long as it does.
    """
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end(process)


def end(process: Process) -> None:
    """End a process and what it has started, if they still run."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own
    process.wait()
    _running.discard(process)
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()


def end_all() -> None:
    """End every process that was started here, also by other threads, and still runs."""
    for process in list(_running):
        end(process)


def main(module: str) -> None:
    """The side of the process that was started: run the module until its starter is gone."""
    starter = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=_end_with, args=(starter,), daemon=True).start()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with(starter: int) -> None:
    """Wait for the end of the pipe that the starter holds, and end, with what was started here."""
    while os.read(starter, 1 << 10):
        pass
    os.killpg(0, signal.SIGKILL)
