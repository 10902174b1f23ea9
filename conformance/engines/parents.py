"""Empty parent packages: one module of a library is imported without all that its packages load."""

from collections.abc import Iterable
from pathlib import Path
from sys import modules
from types import ModuleType


def register(root: Path, names: Iterable[str]) -> None:
    """Register an empty package for each dotted name. root: the folder of the first part.

    Their submodules are found as before, and only those that are asked for are imported.
    """
    for name in names:
        module = ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        modules[name] = module
