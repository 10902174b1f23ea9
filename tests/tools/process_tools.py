"""The processes of this machine, by their command lines."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path


def command_lines() -> Iterator[tuple[int, str]]:
    """The processes of this machine: number and command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
            yield int(folder.name), text.decode(errors="replace")


def naming(word: str) -> list[int]:
    """The numbers of running processes with this word in their command line."""
    return [number for number, text in command_lines() if word in text]


def until(condition: object, *, seconds: float) -> bool:
    """Whether a condition becomes true within this time."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not (held := bool(condition())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return held
