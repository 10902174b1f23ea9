"""The registry: from the name of an engine to its factory.

`isolation.placement` chooses where the engine runs. A name is MODULE:FACTORY, or that of an entry
point in the group `kvspec.engines`, with which an installed package offers its adapter. This module
needs only the standard library and attrs: it also runs in the environment of an engine that has its
own.
"""

import importlib
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from conformance.runtime.optional_dependencies import extra_of
from spec.vocabulary.errors import InvalidInput

OUR_ENGINE: Final = "conformance.engines.ours:make"
OUR_ENGINES: Final = frozenset({OUR_ENGINE, "conformance.engines.ours:make_without_cells"})
GROUP: Final = "kvspec.engines"
"""The group of entry points; each is MODULE:FACTORY."""


def is_ours(name: str) -> bool:
    """Whether this names our own engine, which runs without permission."""
    return name in OUR_ENGINES


def load_engine(name: str) -> Callable[..., Any]:
    """The factory of this name; modules in the current folder are found too.

    Raises InvalidInput if there is no such engine, or its module cannot be imported. A missing
    module that an extra of kvspec installs is left to the command, which names the extra.
    """
    module_name, _, factory_name = _written_out(name).partition(":")
    if not module_name or not factory_name:
        raise _no_engine(name, seen=name)
    if "" not in sys.path:
        sys.path.append("")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        parents = module_name.split(".")
        if error.name not in {".".join(parents[:end]) for end in range(1, len(parents) + 1)}:
            if extra_of(error) is not None:
                raise
            raise _no_engine(name, seen=f"{module_name} needs {error.name}") from None
        raise _no_engine(name, seen=f"no module {error.name}") from None
    except (Exception, SystemExit) as error:
        raise _no_engine(name, seen=f"importing it raised {_described(error)}") from None
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise _no_engine(name, seen=f"no callable {factory_name} in {module_name}")
    made: Callable[..., Any] = factory
    return made


def _described(error: BaseException) -> str:
    """An exception with the line that raised it, as one line of text."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename} line {last.lineno})"


def _written_out(name: str) -> str:
    """MODULE:FACTORY, looked up if the name is an entry point."""
    if ":" in name:
        return name
    found = [entry.value for entry in _installed() if entry.name == name]
    if len(set(found)) > 1:
        raise _no_engine(name, seen=f"{name} is offered as {' and as '.join(sorted(set(found)))}")
    return found[0] if found else name


def _installed() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


def _no_engine(name: str, *, seen: str) -> InvalidInput:
    names = ", ".join(sorted({entry.name for entry in _installed()})) or "none"
    return InvalidInput(
        f"--engine {name}",
        seen=seen,
        allowed="MODULE:FACTORY, a callable in a module that Python can import, or the name of an "
        f"installed engine (here: {names})",
        remedy=f"The default is {OUR_ENGINE}; docs/adapters.md says how to write one.",
    )
