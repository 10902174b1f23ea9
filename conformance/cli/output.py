"""Standard output that tolerates a closed pipe and a full disk.

The first line that cannot be printed ends the printing and not the work. `lost` has the reason, so
that the command can report it on stderr and in its exit status.
"""

import os
import sys
from contextlib import suppress


class Output:
    """Standard output. lost: why it cannot be written, None as long as it can."""

    def __init__(self) -> None:
        self.lost: str | None = None

    def say(self, text: str) -> None:
        """Print a line, unless output is lost."""
        if self.lost is None:
            try:
                print(_encodable(text))
            except OSError as error:
                self._lose(error)

    def flush(self) -> None:
        """Flush, so that all output has arrived or is known to be lost."""
        if self.lost is None and sys.stdout is not None:
            try:
                sys.stdout.flush()
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        """Discard the buffered output: Python would fail to write it again at exit."""
        self.lost = error.strerror or type(error).__name__
        with suppress(OSError, ValueError):  # ValueError: not a file, as in a test
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


def _encodable(text: str) -> str:
    """The text with escapes for what standard output cannot encode, such as half a character."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def complain(command: str, message: str) -> None:
    """Print one line on stderr, if stderr is open."""
    name = f"kvspec {command}".strip()
    with suppress(OSError):
        print(f"{name}: {' '.join(message.split())}", file=sys.stderr, flush=True)
