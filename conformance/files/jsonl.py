"""A strict reader of JSON Lines that names the malformed line.

One object a line, UTF-8, no key twice, no NaN, no line above MAX_LINE, and a complete last line.
Lines are not kept after reading, so memory does not grow with the file.
"""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, Never, TypeVar

from conformance.files.serialisation import Malformed, clipped, shown
from spec.vocabulary import InvalidInput

T = TypeVar("T")

MAX_LINE: Final = 1 << 20
"""Bytes."""
ENDS: Final = frozenset({"\n", "", "\r\n"})


class Lines:
    """The objects of a file, one by one. name: of the file, for messages. written_by: the remedy.

    number: of the last line returned, from 1. offset: the byte after that line. cut: whether the
    last line read has no end.
    """

    def __init__(self, file: BinaryIO, *, name: str, written_by: str) -> None:
        self.number, self.offset = 0, file.tell() if file.seekable() else 0
        self.cut = False
        self._file, self._name, self._written_by = file, name, written_by

    def read(self, build: Callable[[dict[str, object]], T], *, ahead: int = 1) -> Iterator[T]:
        """The result of `build` for each following object. Raises InvalidInput with the line.

        ahead: lines that are read at a time. Reading and working in batches is quicker than in
        turns, since each pushes the other out of the processor's caches.
        """
        lines = iter(self._line, b"")
        while block := list(islice(lines, ahead)):
            values, problem = self._parsed(block, build)
            for line, value in zip(block, values, strict=False):
                self.number += 1
                self.offset += len(line)
                yield value
            if problem is not None:
                self.number += 1
                self.cut = not block[len(values)].endswith(b"\n")
                raise self.bad(*problem)

    def _line(self) -> bytes:
        try:
            return self._file.readline(MAX_LINE + 2)
        except OSError as error:  # of a disk, or of what is no file of lines
            raise InvalidInput(
                self._name,
                seen=error.strerror,
                allowed="a file that can be read to its end",
                remedy="Name another file.",
            ) from None

    def bad(self, seen: str, allowed: str) -> InvalidInput:
        """The error that names the last line read. seen and allowed: plain words."""
        where = f"{self._name} line {max(1, self.number)}"
        remedy = "Correct the file or record it again."
        return InvalidInput(where, seen=seen, allowed=allowed, remedy=remedy)

    def _parsed(
        self, block: list[bytes], build: Callable[[dict[str, object]], T]
    ) -> tuple[list[T], tuple[str, str] | None]:
        """The results for these lines, and the error of the first line that has none."""
        made = list[T]()
        try:
            for line in block:
                if len(line) > MAX_LINE and len(line.removesuffix(b"\n")) > MAX_LINE:
                    return made, (f"more than {MAX_LINE} bytes", f"at most {MAX_LINE} bytes")
                made.append(build(object_of(line)))
        except (ValueError, TypeError, RecursionError) as error:
            return made, told(error, self._written_by)
        return made, None


def object_of(line: bytes) -> dict[str, object]:
    """The object that makes up a whole line. Raises ValueError, TypeError or RecursionError."""
    try:
        text = line.decode("utf-8")
        data, end = _quick.raw_decode(text)
        if text.count(":") != _keys(data):  # one that stands twice, or colons elsewhere
            data, end = _careful.raw_decode(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"no UTF-8: {error.reason} at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        where = f"at character {error.pos + 1}"
        what = _plain(error.msg).removesuffix(" at")  # as one of them ends
        raise ValueError(f"no JSON: {what} {where}") from None
    rest = text[end:]
    if rest not in ENDS:
        raise ValueError("something follows the JSON object on its line")
    if type(data) is not dict:
        raise TypeError("not a JSON object")
    if not rest:
        raise ValueError("the line does not end: the file was cut")
    return data


def open_file(path: Path) -> BinaryIO:
    """The file, opened for reading. Raises InvalidInput."""
    try:
        return path.open("rb")
    except OSError as error:
        raise InvalidInput(
            str(path), seen=error.strerror, allowed="a readable file", remedy="Name another file."
        ) from None


def _keys(data: object) -> int:
    """The number of keys of an object, including those of nested objects."""
    if type(data) is not dict:
        return 0
    count = len(data)
    for value in data.values():
        if type(value) is dict:
            count += len(value)
            for inner in value.values():
                if type(inner) is dict:
                    count += len(inner)
    return count


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return data


def told(error: Exception, allowed: str) -> tuple[str, str]:
    """The value seen and the value allowed, in plain words."""
    if isinstance(error, Malformed):
        return clipped(error.what), clipped(error.allowed)
    if isinstance(error, InvalidInput):
        return clipped(f"{error.name} is {shown(error.seen)}"), clipped(error.allowed)
    if isinstance(error, RecursionError):
        return "lists or objects that are nested too deeply", allowed
    if "integer string conversion" in str(error):  # Python's advice is for programmers
        return "an integer of thousands of digits", allowed
    return clipped(str(error)), allowed


def _plain(message: str) -> str:
    """A message of the parser, in lower case for the middle of a sentence."""
    return message[:1].lower() + message[1:]


def no_number(text: str) -> Never:
    """Refuse NaN and infinities, which Python's parser accepts. Raises ValueError."""
    raise ValueError(f"{text} is not a number of JSON")


_quick: Final = json.JSONDecoder(parse_constant=no_number)
_careful: Final = json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_constant=no_number)
