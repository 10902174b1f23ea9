"""Drift detection: whether an installed package still has the calls that an adapter makes.

An adapter is written against one release. In another release a call may be gone or, worse, an
argument may mean something else. So names and parameters are compared before the first call, and
each difference is named.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module, metadata
from operator import attrgetter
from typing import Final

from spec.vocabulary import InvalidInput

UNKNOWN: Final = "of unknown version"
Calls = Mapping[str, Sequence[str]]
"""`module:dotted.name` of a function or class to its parameters, in order."""


def require(package: str, calls: Calls, *, remedy: str) -> None:
    """Raise InvalidInput unless every call exists with these parameters.

    package: the distribution, for the version in the message. The modules are imported.
    """
    differences = list(_differences(calls))
    if differences:
        raise InvalidInput(
            f"{package} {version(package)}",
            seen="; ".join(differences),
            allowed="the calls that the adapter was written for",
            remedy=remedy,
        )


def require_installed(package: str, module: str, *, allowed: str, remedy: str) -> None:
    """Raise InvalidInput unless a module of the distribution can be imported."""
    try:
        import_module(module)
    except ImportError as error:
        raise InvalidInput(package, seen=str(error), allowed=allowed, remedy=remedy) from None


def installed(package: str) -> bool:
    """Whether a distribution of this name is installed."""
    return version(package) != UNKNOWN


def version(package: str) -> str:
    """The installed version of a distribution."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return UNKNOWN


def _differences(calls: Calls) -> Iterator[str]:
    for call, wanted in calls.items():
        module, _, name = call.partition(":")
        try:
            found = list(inspect.signature(attrgetter(name)(import_module(module))).parameters)
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            yield f"no {call}: {error}"
            continue
        if found != list(wanted):
            yield f"{call} takes {', '.join(found)} instead of {', '.join(wanted)}"
