"""Atomic writes:

a file is written beside its place and moved, so it appears whole or not at all.
"""

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

NAME_BYTES: Final = 255
"""The length limit of a file name, unless the system has another."""
WRITABLE: Final = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Replace the content of a file; folders are created. Raises OSError.

    The old content stays until the new one is on the disk. Links are followed, and permissions are
    kept. Text is UTF-8.
    """
    target = Path(os.path.realpath(path))
    data = content.encode() if isinstance(content, str) else content
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = beside(target)
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            partial.chmod(stat.S_IMODE(target.stat().st_mode))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def beside(target: Path, *, process: int | None = None) -> Path:
    """The temporary name of a process in the same folder; None: of this process."""
    return target.with_name(f".kvspec-{process or os.getpid()}.partial")


def clear(path: Path, *, process: int) -> None:
    """Remove the temporary file that a killed process has left beside this file."""
    with suppress(OSError):
        beside(Path(os.path.realpath(path)), process=process).unlink(missing_ok=True)


def check_file(path: Path) -> str | None:
    """The reason why `write` could not write this file, or None. Nothing is left behind."""
    try:
        if os.path.islink(os.path.realpath(path)):  # noqa: PTH114 - what is left of such a path
            return "a link that leads back to itself"
        if path.exists() and not path.is_file():
            return "a folder" if path.is_dir() else "something that is not a regular file"
        if path.exists() and not path.stat().st_mode & WRITABLE:
            return "a file that is write-protected"
        target = Path(os.path.realpath(path))
        return check_folder(target.parent) or _check_names([target.name], target.parent)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        return _strerror(error)


def check_folder(folder: Path) -> str | None:
    """The reason why no file could be written in this folder, or None. Nothing is left behind."""
    try:
        absolute = folder.absolute()
        nearest = next(path for path in (absolute, *absolute.parents) if path.exists())
        if not nearest.is_dir():
            return f"{nearest}, which is not a folder"
        unnamed = beside(nearest / "file")
        unnamed.touch()
        unnamed.unlink()
        return _check_names(absolute.relative_to(nearest).parts, nearest)
    except (OSError, ValueError) as error:
        return _strerror(error)


def _check_names(names: Sequence[str], folder: Path) -> str | None:
    """Check the names of missing folders and files: the system does not until they are created."""
    longest = max((len(os.fsencode(name)) for name in names), default=0)
    most = os.pathconf(folder, "PC_NAME_MAX") if folder.exists() else NAME_BYTES
    return f"a name of {longest} bytes, more than {most}" if longest > most else None


def _strerror(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
