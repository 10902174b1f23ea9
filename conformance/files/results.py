"""A results file: JSON Lines, appended as results arrive, so that a run can be resumed.

Every line has the `stamp` of everything on which its result depends. Lines are never removed.
Unreadable lines are counted; a file of another kind is refused.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

from conformance.files.jsonl import MAX_LINE, object_of
from spec.vocabulary import InvalidInput

BEGIN: Final = b'{"stamp": "'
"""The beginning of every line that this module writes."""


class Results:
    """The lines of one file. key: a field that every line has. command: the writer.

    damaged: numbers of the unusable lines. cut: whether the last line is incomplete, as after a
    process was killed while it wrote.
    """

    def __init__(self, path: Path, *, key: str, command: str) -> None:
        self.path, self.damaged, self.cut = path, list[int](), False
        self._key, self._command = key, command
        self._known = self._read_to = self._number = 0

    def read(self) -> Iterator[dict[str, object]]:
        """The lines added since the last call. Raises InvalidInput if the file is not ours."""
        try:
            with self.path.open("rb") as file:
                yield from self._rows(file)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unusable(error.strerror or type(error).__name__) from None

    def add(self, stamp: str, row: Mapping[str, object]) -> None:
        """Append a line; it is on the disk when this returns. Raises InvalidInput."""
        text = json.dumps({"stamp": stamp, **row}) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write((b"\n" if self._cut_off() else b"") + text.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unusable(error.strerror or type(error).__name__) from None

    def spoilt(self) -> None:
        """Count the last line read as unusable."""
        self.damaged.append(self._number)

    def notes(self) -> Iterator[tuple[str, str]]:
        """The unused parts of the file, with reasons: for a report."""
        if self.damaged:
            lines = f"{len(self.damaged)} lines of {self.path}, line {self.damaged[0]} the first"
            yield lines, "they are damaged; their work is repeated"
        if self.cut:
            yield f"the last line of {self.path}", "it is incomplete; its work is repeated"

    def _rows(self, file: BinaryIO) -> Iterator[dict[str, object]]:
        file.seek(self._read_to)
        self.cut = False
        while line := file.readline(MAX_LINE + 1):
            if not line.endswith(b"\n") and len(line) <= MAX_LINE:  # being written, or cut off
                self._require_ours(line, ours=BEGIN.startswith(line[: len(BEGIN)]))
                self.cut = True
                return
            self._read_to += len(line)
            self._number += line.endswith(b"\n")
            row = self._row(line)
            if row is not None:
                yield row
        if self._read_to:
            self._require_ours(b"blank lines alone", ours=bool(self._known))

    def _row(self, line: bytes) -> dict[str, object] | None:
        if not line.strip():
            return None
        try:
            row = object_of(line)
        except (ValueError, TypeError, RecursionError):
            self._require_ours(line, ours=line.startswith(BEGIN))
            self.spoilt()
            return None
        ours = isinstance(row.get("stamp"), str) and self._key in row
        self._require_ours(line, ours=ours)
        if not ours:
            self.spoilt()
        return row if ours else None

    def _require_ours(self, line: bytes, *, ours: bool) -> None:
        """Raises InvalidInput unless the first line shows that the file is ours."""
        if not ours and not self._known:
            raise self._unusable(line[:60].decode(errors="replace"))
        self._known += 1

    def _cut_off(self) -> bool:
        """Whether the last line is incomplete: a new line must not be joined to it."""
        with self.path.open("rb") as file:
            if not file.seek(0, os.SEEK_END):
                return False
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"

    def _unusable(self, seen: str) -> InvalidInput:
        return InvalidInput(
            f"--results {self.path}",
            seen=seen,
            allowed=f"a new file, or one that kvspec {self._command} has written",
            remedy="Name another; this one is left as it is.",
        )
