"""The types of command line options: each refuses what it cannot take, and says why."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile

from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.rules import INT32_MAX


def integer(*, least: int) -> Callable[[str], object]:
    """The type of an option that is an integer, `least` or more."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= INT32_MAX):
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


def output_file(text: str) -> str:
    """The type of an option that names a file to write after the work; nothing is made yet."""
    path = Path(text)
    if path.exists() and not path.is_file():
        raise argparse.ArgumentTypeError(f"saw {text}, allowed: a new or regular file")
    return _output(text, path.parent)


def output_folder(text: str) -> str:
    """The type of an option that names a folder to write to after the work, made then."""
    return _output(text, Path(text))


def _output(text: str, folder: Path) -> str:
    """Refuse a path below which nothing can be written: after the work it would be lost."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with TemporaryFile(dir=nearest):
            return text
    except OSError as error:
        seen = f"saw {text}: {nearest}: {error.strerror}"
        raise argparse.ArgumentTypeError(
            f"{seen}, allowed: a path that can be written to. Name another."
        ) from None


def argument(parse: Callable[[str], object]) -> Callable[[str], object]:
    """Parse an option so that argparse shows the reason: by itself it hides a ValueError's."""

    def convert(text: str) -> object:
        try:
            return parse(text)
        except InvalidInput as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert
