"""The types of command line options: each refuses what it cannot take, and says why."""

import argparse
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from attrs import frozen

from conformance import files
from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.geometry import INT32_MAX


@frozen
class File:
    """A file that the command reads, or writes; it can be opened as a path can.

    path: absolute, since an engine may change the current folder. name: as it was given.
    """

    path: Path
    name: str
    written: bool

    def __fspath__(self) -> str:
        """The path, for the system."""
        return str(self.path)

    def __str__(self) -> str:
        return self.name


def integer(*, least: int) -> Callable[[str], object]:
    """The type of an option that is an integer, `least` or more."""

    def parse(text: str) -> int:
        digits = text.isascii() and text.isdigit() and len(text.lstrip("0")) <= len(str(INT32_MAX))
        if not digits or not least <= int(text) <= INT32_MAX:
            allowed = f"an integer from {least} to {INT32_MAX}"
            raise InvalidInput("number", seen=text, allowed=allowed, remedy="Change it.")
        return int(text)

    return argument(parse)


def number(*, least: float) -> Callable[[str], object]:
    """The type of an option that is a finite number, `least` or more."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= least):
            allowed = f"a finite number, {least:g} or more"
            raise InvalidInput("number", seen=text, allowed=allowed, remedy="Change it.")
        return value

    return argument(parse)


def input_file(text: str) -> File:
    """The type of an option that names a file to read. It is opened later, and can be missing."""
    return File(Path(text).absolute(), text, written=False)


def output_file(text: str) -> File:
    """The type of an option that names a file to write after the work; nothing is made yet."""
    _require_writable(text, files.check_file)
    return File(Path(text).absolute(), text, written=True)


def output_folder(text: str) -> Path:
    """The type of an option that names a folder to write to after the work, made then."""
    _require_writable(text, files.check_folder)
    return Path(text)


def check_distinct(values: Iterable[object]) -> None:
    """Refuse a file that would be read and written, or written twice. Raises InvalidInput."""
    known: dict[object, File] = {}
    for value in values:
        if isinstance(value, File):
            earlier = known.setdefault(_identity(value.path), value)
            if earlier is not value and (earlier.written or value.written):
                raise InvalidInput(
                    str(value),
                    seen="one file for two purposes, and one of them overwrites it",
                    allowed="another file for each output",
                    remedy="Name another output.",
                )


def _identity(path: Path) -> object:
    """What two names of one file have in common, links of both kinds included."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def _require_writable(text: str, check: Callable[[Path], str | None]) -> None:
    """Refuse a path that cannot be written to: after the work the result would be lost."""
    wrong = check(Path(text))
    if wrong is not None:
        raise argparse.ArgumentTypeError(
            f"saw {text}: {wrong}, allowed: a path that can be written to. Name another."
        )


def argument(parse: Callable[[str], object]) -> Callable[[str], object]:
    """Parse an option so that argparse shows the reason: by itself it hides a ValueError's."""

    def convert(text: str) -> object:
        try:
            return parse(text)
        except InvalidInput as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert
