"""The client side of an engine in another process, under this Python or another.

One process serves many engines, one after the other, so that it starts only once. A process that
ends or does not answer is a finding; the next engine gets a new process. See `wire` for the
protocol.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Final

import spec
from conformance.files.geometries import geometry_to_data
from conformance.files.histories import step_to_data
from conformance.files.serialisation import encode
from conformance.history import Attend, PoisonDead
from conformance.isolation.wire import (
    VERSION,
    Answer,
    Seen,
    failed_from_data,
    invalid_from_data,
    profile_from_data,
    result_from_data,
)
from conformance.lockstep.called import ASKED
from conformance.protocol import Action, EngineFailed, Poison, Result, Unsendable
from conformance.recordings.format import reasons_from_data
from spec.fields import OutputEntry
from spec.machines.actions import TakeOutputs
from spec.view import View, plain
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    InvalidInput,
    Limits,
    Refusal,
    Refused,
    Request,
    Tokens,
)

START_SECONDS: Final = 120.0
"""Time limit for the import of the engine's module, and for making an engine."""
END_SECONDS: Final = 1.0
"""Time limit for the end of a process that has closed its output."""
PACKAGES: Final = ("spec", "impl", "conformance")
BEGIN: Final = """\
import sys
sys.path.insert(0, sys.argv[1])
import {packages}
sys.path.remove(sys.argv[1])
sys.path.extend(path for path in sys.argv[4:] if path not in sys.path)
from conformance.isolation.serve import main
main(sys.argv[2], starter=int(sys.argv[3]))
"""
"""Imports our packages from our folder, and nothing else that is installed there.

A process of this Python also finds what this one finds.
"""


class RemoteFactory:
    """Makes engines of this name in a process; see `conformance.protocol.Factory`.

    python: the path of its interpreter; None: this one. Raises InvalidInput if the process cannot
    serve them.
    """

    def __init__(self, name: str, *, python: str | None) -> None:
        self._name, self._python = name, python or sys.executable
        self._paths = sys.path if python is None else []
        self._process: subprocess.Popen[str] | None = None
        self._current: Remote | None = None
        self._start()

    def __call__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> "Remote":
        """Make an engine; the one before is gone. Raises EngineFailed."""
        if self._process is None:
            self._start()
        given = {
            "geometry": geometry_to_data(geometry),
            "limits": encode(limits),
            "cleanup": cleanup.value,
        }
        made = _done(self._exchange({"new": given}, seconds=START_SECONDS))
        self._current = Remote(self, geometry, limits, cleanup, made)
        return self._current

    def ask(self, engine: "Remote", data: Mapping[str, object]) -> Answer:
        """The answer of the process to a line for this engine; it may be `failed`.

        Raises EngineFailed if there is no answer.
        """
        if self._current is not engine:
            raise RuntimeError("this engine is gone: a process serves one at a time")
        return self._exchange(data)

    def _exchange(self, data: Mapping[str, object], *, seconds: float | None = None) -> Answer:
        if self._process is None:
            raise EngineFailed("the engine's process has ended before")
        try:
            _send(self._process, data)
            answer = _answer(self._process, seconds)
        except BaseException:  # an alarm too: what it answers later would answer something else
            self._stop()
            raise
        self._require_engine(answer)
        if "unsendable" in answer:
            raise self._unsendable(answer["unsendable"])
        return answer

    def _start(self) -> None:
        packages = ", ".join(PACKAGES)
        home = str(Path(spec.__file__).parents[1])
        begin = BEGIN.format(packages=packages)
        ended, alive = os.pipe()  # closed when this process ends, however that comes about
        words = [self._python, "-c", begin, home, self._name, str(ended), *self._paths]
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                words,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                encoding="utf-8",
                errors="backslashreplace",
                start_new_session=True,
                pass_fds=[ended],
            )
        except OSError as error:
            os.close(alive)
            raise self._unusable(f"{self._python}: {error.strerror}") from None
        finally:
            os.close(ended)
        self._process, said = process, _Said(process)
        self._end = weakref.finalize(self, _kill, process, alive)
        try:
            hello = _answer(process, START_SECONDS)
        except EngineFailed as error:
            self._stop()
            raise self._unusable(f"{error}{said.last()}") from None
        self._require_engine(hello)
        theirs = (hello.get("kvspec"), hello.get("version"), hello.get("spec_version"))
        if theirs != ("engine", VERSION, spec.SPEC_VERSION):
            self._stop()
            raise self._unusable(f"first line {dict(hello)}")
        said.pass_on()

    def _require_engine(self, answer: Answer) -> None:
        """Raise InvalidInput if the answer says that there is no engine."""
        if "invalid" in answer:
            self._stop()
            raise invalid_from_data(answer["invalid"])
        if "missing" in answer:
            self._stop()
            raise self._unusable(answer["missing"])

    def _stop(self) -> None:
        self._end()
        self._process = self._current = None

    def _unsendable(self, seen: str) -> Unsendable:
        return Unsendable(
            f"--engine {self._name}",
            seen=seen,
            allowed="numbers, texts, lists, tuples and arrays in what an engine shows and returns, "
            "as they come from another process",
            remedy="Show such values, or run the engine in this process: --in-process.",
        )

    def _unusable(self, seen: str) -> InvalidInput:
        return InvalidInput(
            f"--python {self._python} --engine {self._name}",
            seen=seen,
            allowed="a Python of version 3.11 or newer that can import the adapter and attrs, and "
            f"speaks version {VERSION} of the line protocol",
            remedy=f"Install what is missing there: {self._python} -m pip install attrs.",
        )


class Remote:
    """One engine in the other process; see `conformance.protocol.Engine`.

    It has those of the optional methods that the adapter there has.
    """

    def __init__(
        self,
        home: RemoteFactory,
        geometry: Geometry,
        limits: Limits,
        cleanup: CleanupMode,
        made: Answer,
    ) -> None:
        self.profile = profile_from_data(
            made["profile"], geometry=geometry, limits=limits, cleanup=cleanup
        )
        self._home, self._cells = home, dict[Tokens, object]()
        self._seen = Seen(geometry, self._expected)
        self._view = self._seen.take(made)
        for name in made["offers"]:  # what it does not have must not be found on it
            own = partial(self._show, name) if name in ASKED else getattr(self, f"_{name}")
            setattr(self, name, own)

    def apply(self, action: Action) -> Result:
        """Apply an action there; raise Refused if it was refused, or EngineFailed."""
        answer = self._take(step_to_data(action))
        result: Result = result_from_data(action, answer.get("result"))
        return result

    def observe(self) -> View:
        """The view after the last step."""
        return self._view

    def _take(self, data: Mapping[str, object]) -> Answer:
        answer = self._home.ask(self, data)
        try:
            self._view = self._seen.take(answer)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise EngineFailed(f"the engine shows a malformed view: {error!r}") from error
        if "refused" in _done(answer):
            reasons = reasons_from_data(answer["refused"])
            raise Refused(Refusal(reason, None, None) for reason in reasons)
        return answer

    def _poison(self, kind: Poison) -> None:
        self._take(step_to_data(PoisonDead(kind)))

    def _serve(self, requests: Sequence[Request]) -> Sequence[OutputEntry]:
        answer = self._take({"serve": [encode(request) for request in requests]})
        served: Sequence[OutputEntry] = result_from_data(TakeOutputs(), answer["value"])
        return served

    def _attend(self) -> dict[int, dict[int, int]]:
        read = _done(self._home.ask(self, step_to_data(Attend())))["value"]
        return {
            int(slot): {int(cell): times for cell, times in cells.items()}
            for slot, cells in read.items()
        }

    def _show(self, name: str) -> object:
        return _done(self._home.ask(self, {"show": name}))["value"]

    def _expected(self, prefix: Tokens) -> object:
        if prefix not in self._cells:
            answer = _done(self._home.ask(self, {"expected": prefix}))
            self._cells[prefix] = plain(answer["value"])
        return self._cells[prefix]


def _done(answer: Answer) -> Answer:
    """The answer, if the engine has not failed. Raises EngineFailed."""
    if "failed" in answer:
        raise failed_from_data(answer["failed"])
    return answer


class _Said:
    """The standard error of a process, held back until it is needed."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._lines: list[str] = []
        self._held, self._lock = True, threading.Lock()
        assert process.stderr is not None
        self._thread = threading.Thread(target=self._read, args=(process.stderr,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._take(line)

    def _take(self, line: str) -> None:
        with self._lock:
            if self._held:
                self._lines.append(line)
            else:
                _print(line)

    def pass_on(self) -> None:
        """Print the text so far, and all that follows."""
        with self._lock:
            self._held = False
            for line in self._lines:
                _print(line)

    def last(self) -> str:
        """The last line of a process that has ended, for a message; empty if there is none."""
        self._thread.join(END_SECONDS)
        lines = [line.strip() for line in self._lines if line.strip()]
        return f": {lines[-1]}" if lines else ""


def _print(line: str) -> None:
    with suppress(OSError, AttributeError):  # there may be no standard error
        sys.stderr.write(line)


def _send(process: "subprocess.Popen[str]", data: Mapping[str, object]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(data) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        raise EngineFailed(f"the engine's process ended {_how(process)}") from None


def _answer(process: "subprocess.Popen[str]", seconds: float | None) -> Answer:
    """The next line. seconds: the time limit, None if there is none or an alarm is set."""
    assert process.stdout is not None
    if seconds is not None and not select.select([process.stdout], [], [], seconds)[0]:
        wrong = f"the engine's process does not answer within {seconds:g} seconds"
        raise EngineFailed(wrong, clause="PROG")
    text = process.stdout.readline()
    if not text.endswith("\n"):
        raise EngineFailed(f"the engine's process ended {_how(process)}")
    try:
        answer: Answer = json.loads(text)
    except ValueError as error:
        raise EngineFailed(f"the engine's process sent no JSON: {error}") from None
    return answer


def _how(process: "subprocess.Popen[str]") -> str:
    """How a process ended that has closed its output."""
    try:
        status = process.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        return "its answers"
    if status < 0:
        return f"with signal {signal.Signals(-status).name}"
    return f"with status {status}"


def _kill(process: "subprocess.Popen[str]", alive: int) -> None:
    os.close(alive)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # a session of its own: what it started ends too
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()
