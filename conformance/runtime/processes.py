"""Child processes that run our own modules: with our sources, and no longer than their starter.

A child imports our packages from where they are, whatever lies in the current folder. Ctrl-C does
not reach it: its starter ends it. It ends by itself when its starter is gone, for whatever reason.
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
"""Imports our packages from our folder, and nothing else that is installed there."""

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

    output, errors: the streams it prints to; None: those of this process. It has no standard input.
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
    """Wait for the end; return the exit status, or None if the process had to be killed.

    seconds: the time limit; None: unlimited.
    """
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end(process)


def end(process: Process) -> None:
    """Kill a process and its descendants, if they still run."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own
    process.wait()
    _running.discard(process)
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()


def end_all() -> None:
    """Kill every running process that was started here, by any thread."""
    for process in list(_running):
        end(process)


def main(module: str) -> None:
    """The entry point of a started process: run the module until its starter is gone."""
    starter = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=_end_with, args=(starter,), daemon=True).start()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with(starter: int) -> None:
    """Wait until the starter closes its pipe, then end with all descendants."""
    while os.read(starter, 1 << 10):
        pass
    os.killpg(0, signal.SIGKILL)
