"""The persistent cache of compiled code, with which the next process starts in seconds.

There is one folder for each user and each set of versions. It can be deleted at any time. Several
processes may use it at once. This module does not import jax before `keep` is called.
"""

import gc
import os
import platform
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from attrs import frozen

VARIABLE: Final = "JAX_COMPILATION_CACHE_DIR"
"""The variable of jax with which the user chooses a folder."""
LEAST_SECONDS: Final = 0.1
"""Programs that compile in less time are not kept."""
MOST_ENTRIES: Final = 4000
"""The number of entries that are kept, about 150 MB; older ones are removed."""
DAMAGED: Final = "Error (reading|writing) persistent compilation cache"
"""The beginning of jax's warning of an unusable entry. It then compiles again."""


@frozen
class Place:
    """The cache folder. path: None if nothing is kept. why: the reason."""

    path: Path | None
    why: str


def place(environment: Mapping[str, str] | None = None, *, system: str = sys.platform) -> Place:
    """The cache folder. It is created if it is missing."""
    known = os.environ if environment is None else environment
    if known.get(VARIABLE):
        return Place(Path(known[VARIABLE]), f"{VARIABLE} is set")
    home = _caches(known, system)
    if home is None:
        return Place(None, f"no absolute path in {' or '.join(_variables(system))}")
    folder = home / "kvspec" / _versions()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return Place(folder, "one folder for each user")
    except OSError as error:
        return Place(None, f"{folder} cannot be written: {error.strerror or type(error).__name__}")


def keep() -> None:
    """Turn on jax's cache of compiled code, unless the user has configured one."""
    import jax

    ignore_damage()
    if jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        return
    folder = place().path
    if folder is None:
        return
    _remove_oldest(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))  # type: ignore[no-untyped-call]
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)  # type: ignore[no-untyped-call]


def release() -> None:
    """Let go of every program that jax has compiled in this process; later calls get them again."""
    if "jax" not in sys.modules:
        return
    import jax

    jax.clear_caches()  # type: ignore[no-untyped-call]
    gc.collect()


def ignore_damage() -> None:
    """Let jax compile again, without a warning, what it cannot read from the folder.

    A filter that turns warnings into errors would make an engine fail because of a file that
    another process has not finished. Such filters come and go, so this is called for each engine.
    """
    warnings.filterwarnings("ignore", message=DAMAGED, category=UserWarning)


def _variables(system: str) -> tuple[str, ...]:
    if system == "win32":
        return ("LOCALAPPDATA",)
    return ("HOME",) if system == "darwin" else ("XDG_CACHE_HOME", "HOME")


def _caches(known: Mapping[str, str], system: str) -> Path | None:
    """The platform's folder for caches; None if the user has none."""
    below = {"HOME": "Library/Caches" if system == "darwin" else ".cache"}
    for name in _variables(system):
        if Path(known.get(name, "")).is_absolute():
            return Path(known[name], below.get(name, ""))
    return None


def _versions() -> str:
    """The versions on which compiled code depends, as the name of a folder."""
    found = [f"python-{platform.python_version()}"]
    for name in ("jax", "jaxlib"):
        with suppress(PackageNotFoundError):
            found.append(f"{name}-{version(name)}")
    return "_".join(found)


def _remove_oldest(folder: Path) -> None:
    """Remove entries beyond MOST_ENTRIES. Another process may do the same at this moment."""
    with suppress(OSError):
        entries = list(folder.glob("*-cache"))
        if len(entries) > MOST_ENTRIES:
            entries.sort(key=lambda entry: entry.stat().st_mtime)
            for entry in entries[: len(entries) - MOST_ENTRIES]:
                entry.unlink(missing_ok=True)
