"""What a command prints, where standard output may be closed or its disk full.

The first line that cannot be printed ends the printing and not the work: nothing more is tried, and
`lost` says why, so that the command can say so on stderr and in its exit status.
"""

import os
import sys
from contextlib import suppress


class Output:
    """Standard output. lost: why it could not be written, None as long as it can."""

    def __init__(self) -> None:
        self.lost: str | None = None

    def say(self, text: str) -> None:
        """Print a line, if lines can be printed."""
        if self.lost is None:
            try:
                print(text)
            except OSError as error:
                self._lose(error)

    def flush(self) -> None:
        """See that what was printed has arrived."""
        if self.lost is None and sys.stdout is not None:
            try:
                sys.stdout.flush()
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        """What is still buffered goes nowhere: at its exit Python would fail at it once more."""
        self.lost = error.strerror or type(error).__name__
        with suppress(OSError, ValueError):  # ValueError: not a file, as in a test
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


def complain(command: str, message: str) -> None:
    """Print one line on stderr, if there is anybody to read it."""
    name = f"kvspec {command}".strip()
    with suppress(OSError):
        print(f"{name}: {' '.join(message.split())}", file=sys.stderr, flush=True)
