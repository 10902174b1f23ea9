"""An engine in a process of its own: reads steps from standard input, answers on standard output.

`remote` starts it, under the Python of the environment in which the engine lives. It needs attrs
and nothing else there. What the engine prints goes to standard error; what it would read is empty.
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

    starter: a pipe that is closed when the process that has started this one is gone.
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
    """Also in the middle of a step: end with the starter, and what the engine has started too."""
    os.read(starter, 1)
    os.killpg(0, signal.SIGKILL)  # this process leads a session of its own


class _Missing(Exception):
    """What this environment lacks."""


def _own_streams() -> tuple[IO[str], IO[str]]:
    """The two pipes, out of the engine's reach: the numbers 0 and 1 then mean something else."""
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
