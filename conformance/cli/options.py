"""Option types that validate their values, and options that commands share."""

import argparse
import math
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from attrs import frozen

from conformance.engines.registry import OUR_ENGINE
from conformance.files import atomic
from conformance.files.geometries import is_number, parse_geometry
from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.rules import INT32_MAX

MODULE: Final = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_]\w*")
"""The form of a name of a function in a module."""


@frozen
class File:
    """A file that the command reads or writes; it can be opened like a path.

    path: absolute, since an engine may change the current folder. name: as the user gave it.
    """

    path: Path
    name: str
    written: bool

    def __fspath__(self) -> str:
        """The path, for the operating system."""
        return str(self.path)

    def __str__(self) -> str:
        return self.name


def integer(*, least: int) -> Callable[[str], object]:
    """The type of an option that is an integer, at least `least`."""

    def parse(text: str) -> int:
        if not is_number(text) or not least <= int(text) <= INT32_MAX:
            allowed = f"an integer from {least} to {INT32_MAX}"
            raise InvalidInput("number", seen=text, allowed=allowed, remedy="Change it.")
        return int(text)

    return argument(parse)


def number(*, least: float) -> Callable[[str], object]:
    """The type of an option that is a finite number, at least `least`."""

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
    """The type of an option that names an input file. It is opened later, and may be missing."""
    return File(Path(text).absolute(), text, written=False)


def output_file(text: str) -> File:
    """The type of an option that names an output file; nothing is created yet."""
    _require_writable(text, atomic.check_file)
    return File(Path(text).absolute(), text, written=True)


def output_folder(text: str) -> Path:
    """The type of an option that names an output folder, created after the work."""
    _require_writable(text, atomic.check_folder)
    return Path(text)


def check_distinct(values: Iterable[object]) -> None:
    """Refuse an output that is also another file of this command. Raises InvalidInput.

    values: of all options. Inputs are also the source of a MODULE:FACTORY, everything in a named
    folder, and standard input; standard output may be a file too.
    """
    values = list(values)
    known = _standard_streams()
    known |= {_identity(path): "the source of the engine" for path in _sources(values)}
    known |= {
        _identity(file.path): f"{file}, which is read"
        for file in values
        if isinstance(file, File) and not file.written
    }
    for output in values:
        if isinstance(output, File) and output.written:
            place = _identity(output.path)
            seen = _folder_around(output, values) or known.get(place)
            if seen is not None:
                raise InvalidInput(
                    str(output),
                    seen=seen,
                    allowed="a file that is nothing else for this command",
                    remedy="Name another output.",
                )
            known[place] = f"{output}, which is written too"


def _folder_around(output: File, values: list[object]) -> str | None:
    """The named folder that would contain the output; its other files belong to it."""
    above = set(Path(os.path.realpath(output.path)).parents)
    folders = [value for value in values if isinstance(value, Path)]
    around = [folder for folder in folders if Path(os.path.realpath(folder)) in above]
    return f"a file in {around[0]}" if around else None


def _sources(values: list[object]) -> Iterator[Path]:
    """Where the modules among these values may lie; none is imported."""
    for value in values:
        module = MODULE.fullmatch(value) if isinstance(value, str) else None
        if module is not None:
            for base in ("", *sys.path):
                place = Path(base, *module[1].split("."))
                yield from (place.with_suffix(".py"), place / "__init__.py")


def _standard_streams() -> dict[object, str]:
    """The files behind standard input, output and error."""
    found: dict[object, str] = {}
    for number, name in enumerate(("input", "output", "error")):
        with suppress(OSError):
            status = os.fstat(number)
            if stat.S_ISREG(status.st_mode):
                found[status.st_dev, status.st_ino] = f"standard {name}"
    return found


def written(values: Iterable[object]) -> list[Path]:
    """The files among these values that the command writes."""
    return [value.path for value in values if isinstance(value, File) and value.written]


def _identity(path: Path) -> object:
    """A key that is equal for two names of one file, whether linked hard or symbolically."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def _require_writable(text: str, check: Callable[[Path], str | None]) -> None:
    """Refuse an unwritable path before the work: afterwards the result would be lost."""
    wrong = check(Path(text))
    if wrong is not None:
        raise argparse.ArgumentTypeError(
            f"saw {text}: {wrong}, allowed: a path that can be written to. Name another."
        )


def add_geometry(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Add `--geometry`; `arguments.geometry` is then a Geometry, and the JSON result has it."""
    parser.add_argument(
        "--geometry",
        type=argument(parse_geometry),
        default=default,
        metavar="SIZES",
        help=f"sizes of the engine under test (default {default})",
    )


def add_geometry_alone(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Add `--geometry` of a command that chooses sizes itself; None if it is not given."""
    parser.add_argument(
        "--geometry",
        type=argument(parse_geometry),
        metavar="SIZES",
        help=f"the sizes of the engine, and no others (default {default}, pages of one cell, and "
        "a pool too small for its rows; each at the nearest sizes that the engine has)",
    )


def add_engine(parser: argparse.ArgumentParser, *, default: str = OUR_ENGINE) -> None:
    """Add `--engine`, `--python` and `--in-process`: the arguments of `placement.factory_of`."""
    parser.add_argument(
        "--engine",
        default=default,
        metavar="ENGINE",
        help="the engine under test: MODULE:FACTORY, or the name by which an installed package "
        f"offers it (default {default})",
    )
    add_python(parser)


def add_python(parser: argparse.ArgumentParser) -> None:
    """Add `--python` and `--in-process`: where the engine runs."""
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="run the engine under this Python, with the packages installed there",
    )
    add_in_process(parser)


def add_in_process(parser: argparse.ArgumentParser) -> None:
    """Add `--in-process`, for engines that cannot run in a process of their own."""
    parser.add_argument(
        "--in-process",
        action="store_true",
        help="run the engine in the process of the kit, not in one of its own: faster, and what it "
        "shows can be of any type; but an engine that exits then ends the run without a history",
    )


def argument(parse: Callable[[str], object]) -> Callable[[str], object]:
    """Parse an option so that argparse shows the reason: it hides the text of a ValueError."""

    def convert(text: str) -> object:
        try:
            return parse(text)
        except InvalidInput as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert
