"""The process that supervises a command: a verdict comes only from a run that reached its end.

The command runs in a child process. Through a pipe it sends its findings as they arise, and at the
end its exit status. If the child ends without one (an engine that calls `exit`, a crash of compiled
code, exhausted memory), this process reports that, writes the result of what is known, and returns
3, or 1 if a failure was found.

SIGINT and SIGTERM ask the child to stop. It stops at a safe point, see
`conformance.runtime.interrupts`. If it does not within `GRACE_SECONDS`, or a second signal arrives,
it is killed.
"""

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, Final, Protocol

from conformance.verdict import UNDECIDED

GRACE_SECONDS: Final = 8.0
"""Time limit of a child that is to stop: a compilation cannot be interrupted."""
END_SECONDS: Final = 10.0
"""Time limit of a child that has sent its exit status and is to end."""
POLL_SECONDS: Final = 0.2
SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGTERM})
SHOW_CURSOR: Final = "\x1b[?25h"

Tell = Callable[[Mapping[str, object]], None]
"""Sends the findings so far to the supervisor, as plain data."""


class Conclude(Protocol):
    """Finishes for a child that ended without a status."""

    def __call__(
        self, known: Mapping[str, Any] | None, *, process: int, error: str | None, interrupted: bool
    ) -> int:
        """Say what is known and return the exit status.

        known: what the child told last as `result`, None if it told nothing. process: its id.
        error: how it ended, None where a signal ended it.
        """
        ...


def supervised(run: Callable[[Tell], int], *, conclude: Conclude) -> int:
    """Call `run` in a child process and return its exit status.

    run: receives a function that sends plain data to the supervisor. `result`: what `Report` would
    write now; `status`: the exit status, sent last. This function returns in the child too, with
    the status of `run`. conclude: returns the exit status for a child that ended without one.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    news, told = os.pipe()
    ended, alive = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(news)
        os.close(alive)
        return _run(run, told, ended)
    os.close(told)
    os.close(ended)
    try:
        return _Watch(child, news, conclude).run()
    finally:
        _ignore_signals()
        os.close(alive)


def _run(run: Callable[[Tell], int], told: int, ended: int) -> int:
    """The child's side: run to the end, or until the supervisor is gone."""
    from conformance.runtime import interrupts

    interrupts.listen()
    threading.Thread(target=_end_with, args=(ended,), daemon=True).start()
    lock, own = threading.Lock(), os.getpid()

    def tell(what: Mapping[str, object]) -> None:
        if os.getpid() != own:  # an engine has forked this process: one of the two is watched
            return
        line = json.dumps(what).encode() + b"\n"
        with lock, suppress(OSError):  # nobody listens, or an engine has closed every file
            while line:
                line = line[os.write(told, line) :]

    status = UNDECIDED
    with suppress(KeyboardInterrupt):  # after `run` has handled its own, at most
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # a signal that waited arrives here
        status = run(tell)
    _ignore_signals()
    tell({"status": status})
    return status


def _ignore_signals() -> None:
    """Ignore signals once the exit status is settled: at exit, Python would let them change it."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _end_with(ended: int) -> None:
    """Wait until the supervisor is gone, and exit."""
    os.read(ended, 1)
    os._exit(UNDECIDED)


class _Watch:
    """One child, and the data it has sent."""

    def __init__(self, child: int, news: int, conclude: Conclude) -> None:
        self._child, self._news = child, news
        self._finish = conclude
        self._text = b""
        self._known: dict[str, Any] = {}
        self._signals = 0
        self._kill_at: float | None = None
        self._how: str | None = None

    def run(self) -> int:
        """Wait for the end; return the child's exit status, or our own."""
        for number in SIGNALS:
            signal.signal(number, self._interrupted)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        self._listen()
        how = self._ended()
        status: int | None = self._known.get("status")
        return self._conclude(how) if status is None else status

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        """Pass the signal on; kill the child at the second one, or if it does not react."""
        self._signals += 1
        self._kill_at = self._kill_at or time.monotonic() + GRACE_SECONDS
        if self._signals == 1:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGINT)
        else:
            self._kill_at = time.monotonic()

    def _listen(self) -> None:
        """Read data until the child has sent its status, or has ended."""
        while "status" not in self._known:
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill()
            over = self._over()
            while "status" not in self._known and self._readable(0.0 if over else POLL_SECONDS):
                chunk = os.read(self._news, 1 << 16)
                if not chunk:
                    return
                self._take(chunk)
            if over:  # the pipe may be held open by what the child has started
                return

    def _readable(self, seconds: float) -> bool:
        return bool(select.select([self._news], [], [], seconds)[0])

    def _take(self, chunk: bytes) -> None:
        *lines, self._text = (self._text + chunk).split(b"\n")
        for line in lines:
            self._known |= json.loads(line)

    def _over(self) -> bool:
        """Whether the child has ended; records how."""
        if self._how is None:
            done, status = os.waitpid(self._child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                self._how = f"status {code}" if code >= 0 else signal.Signals(-code).name
        return self._how is not None

    def _ended(self) -> str:
        """Wait for the end of the child, or kill it; return how it ended."""
        deadline = time.monotonic() + END_SECONDS
        while not self._over():
            if time.monotonic() > deadline:
                self._kill()
            time.sleep(0.005)
        return str(self._how)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL)

    def _conclude(self, how: str) -> int:
        """Report what is known of a child that ended without a status."""
        if sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write(SHOW_CURSOR)  # a progress bar hides it, and was not ended
        error = (
            None if self._signals else f"the process ended with {how} before there was a verdict"
        )
        return self._finish(
            self._known.get("result"),
            process=self._child,
            error=error,
            interrupted=self._signals > 0,
        )
