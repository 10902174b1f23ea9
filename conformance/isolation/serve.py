"""The server side of an engine in a process of its own: steps on stdin, answers on stdout.

`remote` starts it, under the Python of the engine's environment. It needs only attrs there. The
engine's own output goes to standard error; its input is empty.
"""

import contextlib
import json
import os
import platform
import signal
import sys
import threading
from collections.abc import Mapping
from typing import IO, Any, Final

LEAST: Final = (3, 11)
"""The oldest Python that can import the specification."""


def main(name: str, *, starter: int) -> None:
    """Serve the engine of this name until the input ends.

    starter: a pipe that closes when the starting process is gone.
    """
    threading.Thread(target=_end_with, args=(starter,), daemon=True).start()
    asked, answers = _own_streams()
    own = os.getpid()
    with contextlib.suppress(BrokenPipeError):
        try:
            served = _load(name)
        except _Missing as missing:
            _send(answers, {"kvspec": "engine", "missing": str(missing)})
            return
        hello = served.hello()
        _send(answers, hello)
        if served.lacks(hello):
            return
        for line in asked:
            answer = served.answer(json.loads(line))
            if os.getpid() != own:  # the engine has forked: one of the two answers
                os._exit(0)
            try:
                _send(answers, answer)
            except (TypeError, ValueError, RecursionError) as error:  # nothing of it was sent
                _send(answers, {"unsendable": str(error)})


def _end_with(starter: int) -> None:
    """End when the starter does, even in the middle of a step, with the engine's children."""
    os.read(starter, 1)
    os.killpg(0, signal.SIGKILL)  # this process leads a session of its own


class _Missing(Exception):
    """The environment lacks a requirement."""


def _own_streams() -> tuple[IO[str], IO[str]]:
    """The two pipes under new numbers, out of the engine's reach; 0 and 1 are redirected."""
    asked = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return asked, answers


def _send(answers: IO[str], data: Mapping[str, object]) -> None:
    text = json.dumps(data, default=_plain)
    answers.write(text + "\n")
    answers.flush()


def _plain(value: object) -> object:
    """A number or an array of numpy, jax or torch as JSON data."""
    if hasattr(value, "tolist"):
        data: object = value.tolist()
        return data
    raise TypeError(f"{value!r} is no number, text, list or array")


def _load(name: str) -> Any:
    if sys.version_info < LEAST:
        raise _Missing(f"Python {platform.python_version()} is older than {LEAST[0]}.{LEAST[1]}")
    try:
        from conformance.isolation.served import Served

        return Served(name)
    except ModuleNotFoundError as error:
        raise _Missing(f"no module {error.name}") from None
