"""Input that is read more than once: standard input and pipes are copied to a temporary file."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from conformance.cli.options import File
from spec.vocabulary import InvalidInput

STANDARD_INPUT = "-"


@contextmanager
def spooled(file: File) -> Iterator[tuple[Path, str]]:
    """The path of a file that can be read again, and its name; a copy is removed afterwards.

    Raises InvalidInput.
    """
    if str(file) != STANDARD_INPUT and not file.path.is_fifo():
        yield file.path, str(file)
        return
    with TemporaryDirectory(prefix="kvspec-") as folder:
        path = Path(folder) / "input.jsonl"
        name = "standard input" if str(file) == STANDARD_INPUT else str(file)
        _keep(file, path, name)
        yield path, name


def _keep(file: File, path: Path, name: str) -> None:
    try:
        with path.open("wb") as kept:
            if str(file) == STANDARD_INPUT:
                shutil.copyfileobj(sys.stdin.buffer, kept)
            else:
                with file.path.open("rb") as pipe:
                    shutil.copyfileobj(pipe, kept)
    except (OSError, AttributeError) as error:  # AttributeError: there is no standard input
        raise InvalidInput(
            name,
            seen=getattr(error, "strerror", None) or "no input",
            allowed="input that can be read, and room for it in the folder of temporary files",
            remedy="Name a file instead.",
        ) from None
