"""Progress on stderr: a bar on a terminal, a line every ten seconds elsewhere, nothing if quiet."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Final, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

BAR_SECONDS: Final = 0.1
"""The interval between updates of a bar."""


class Update(Protocol):
    """Reports progress; cheap enough to call at every step."""

    def __call__(self, done: float, note: str = "") -> None:
        """`done` is the total amount so far, in the unit of `total`; `note` is a few words."""
        ...


@contextmanager
def progress(
    label: str,
    *,
    total: float | None,
    quiet: bool = False,
    stream: IO[str] | None = None,
    line_seconds: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Update]:
    """Show progress while the block runs; it yields the function that reports progress.

    total: the amount of all the work, in any unit, or None if unknown. stream: stderr by default.
    Print results after the block, not inside: they would garble the bar.
    """
    console = Console(file=stream or sys.stderr)
    if quiet:
        yield _silent
    elif console.is_terminal and not console.is_dumb_terminal:
        with _bar(console) as bar:
            task = bar.add_task(escape(label), total=total, note="")
            yield _sparse(
                lambda done, note: bar.update(task, completed=done, note=escape(note)),
                seconds=BAR_SECONDS,
                clock=clock,
            )
    else:
        yield _sparse(_lines(label, total, console.file), seconds=line_seconds, clock=clock)


def _silent(done: float, note: str = "") -> None:
    """Discard the update."""


def _bar(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    return Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    )


def _lines(label: str, total: float | None, stream: IO[str]) -> Callable[[float, str], None]:
    whole = "" if total is None else f" of {total:.12g}"

    def show(done: float, note: str) -> None:
        tail = f", {note}" if note else ""
        print(f"{label}: {round(done, 1):.12g}{whole}{tail}", file=stream, flush=True)

    return show


def _sparse(
    show: Callable[[float, str], None], *, seconds: float, clock: Callable[[], float]
) -> Update:
    """Pass on at most one update per `seconds`, the first after that long."""
    next_time = clock() + seconds

    def update(done: float, note: str = "") -> None:
        nonlocal next_time
        now = clock()
        if now >= next_time:
            next_time = now + seconds
            show(done, note)

    return update
