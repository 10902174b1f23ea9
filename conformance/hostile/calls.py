"""One call of the command line as plain data, which can be repeated and shown as a shell line."""

import os
import shlex
import shutil
import stat
import sys
from collections.abc import Mapping
from enum import Enum
from itertools import zip_longest
from pathlib import Path
from typing import Final

from attrs import field, frozen

KVSPEC: Final = (str(Path(sys.executable).with_name("kvspec")),)
PYTEST: Final = (sys.executable, "-m", "pytest")
MOST_KIB: Final = 12 << 20
"""Memory limit of one process, which protects the machine from huge sizes."""
HOLDS, FAILS, BAD_INPUT, UNDECIDED = range(4)
STATUSES: Final = frozenset({HOLDS, FAILS, BAD_INPUT, UNDECIDED})
NOT_CLEAN: Final = STATUSES - {HOLDS}
CLEAN: Final = STATUSES - {FAILS}


class Special(Enum):
    """Paths that are no regular file."""

    FOLDER = "folder"
    FIFO = "fifo"
    NULL = "null"
    """A device like /dev/null, which may be destroyed."""


@frozen
class Link:
    """A link to another path of the call. hard: a hard link instead of a symbolic one."""

    to: str
    hard: bool = False


Content = bytes | Special | Link


@frozen(kw_only=True)
class Call:
    """One call. words: the arguments. files: the contents of its folder at the start, by path.

    about: the hostile part. environ: variables to set, or to remove if None; FOLDER in a value is
    the folder of the call. redirect: shell redirections, such as `>&-`. allowed: the exit statuses
    that are no violation. program: the program to call. traced: the traceback of an adapter may
    come before the line of bad input.
    """

    about: str
    words: tuple[str, ...]
    files: Mapping[str, Content] = field(factory=dict)
    environ: Mapping[str, str | None] = field(factory=dict)
    redirect: str = ""
    allowed: frozenset[int] = STATUSES
    program: tuple[str, ...] = KVSPEC
    traced: bool = False

    @property
    def json_path(self) -> str | None:
        """The path of the JSON result, as the last --json names it."""
        found = None
        for word, following in zip_longest(self.words, self.words[1:]):
            if word == "--json":
                found = following
            elif word.startswith("--json="):
                found = word.removeprefix("--json=")
        return found


def prepare(call: Call, folder: Path) -> None:
    """Make the folder of a call anew: `work`, in which it runs, `tmp` and `home`."""
    remove(folder)
    for name in ("work", "tmp", "home"):
        (folder / name).mkdir(parents=True)
    for name, content in call.files.items():
        path = folder / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _make(path, content)


def remove(folder: Path) -> None:
    """Remove the folder of a call."""
    shutil.rmtree(folder, ignore_errors=True)


def _make(path: Path, content: Content) -> None:
    match content:
        case bytes():
            path.write_bytes(content)
        case Special.FOLDER:
            path.mkdir()
        case Special.FIFO:
            os.mkfifo(path)
        case Special.NULL:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        case Link(to, hard=True):
            path.hardlink_to(path.parent / to)
        case Link(to):
            path.symlink_to(to)


def shell_line(call: Call, folder: Path) -> str:
    """The call as a command line for bash, from any folder."""
    quoted = shlex.join((*call.program, *call.words))
    return (
        f"cd {shlex.quote(str(folder / 'work'))} && ulimit -v {MOST_KIB} && "
        f"{_environ(call, folder)} {quoted} {call.redirect}".rstrip()
    )


def _environ(call: Call, folder: Path) -> str:
    unset = [name for name, value in call.environ.items() if value is None]
    values = {"TMPDIR": "FOLDER/tmp", "HOME": "FOLDER/home", "PYTHONDONTWRITEBYTECODE": "1"}
    values |= {name: value for name, value in call.environ.items() if value is not None}
    removed = [word for name in unset for word in ("-u", name)]
    pairs = [
        f"{name}={shlex.quote(value.replace('FOLDER', str(folder)))}"
        for name, value in values.items()
        if name not in unset
    ]
    return " ".join(("exec env", *removed, *pairs))
