"""Bugs that really happened, planted in a pristine engine at run time.

A plant replaces functions of the reference engine while a block runs; it never lives in the
engine's code path. `catalogue` lists them with the public thread each is modelled on.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from attrs import frozen

from spec.vocabulary import InvalidInput

Patch = tuple[str, str, Callable[[Any], Any]]
"""(module, function, what makes the wrong function from the right one)."""


@frozen(kw_only=True)
class Plant:
    """One bug. thread: the public report it is modelled on. clause: what it violates first."""

    id: str
    thread: str
    mechanism: str
    clause: str
    patches: tuple[Patch, ...]


@contextmanager
def planted(identifier: str) -> Iterator[Plant]:
    """Plant a bug while the block runs. Raises InvalidInput for an id that is not listed."""
    plant = find(identifier)
    with ExitStack() as stack:
        for module, name, make_wrong in plant.patches:
            stack.enter_context(_replaced(module, name, make_wrong))
        _forget_compiled()
        stack.callback(_forget_compiled)
        yield plant


def find(identifier: str) -> Plant:
    """The plant with this id. Raises InvalidInput if there is none."""
    from conformance.plants.catalogue import PLANTS

    if identifier not in PLANTS:
        raise InvalidInput(
            "plant",
            seen=identifier,
            allowed=", ".join(PLANTS),
            remedy="Choose one of them.",
        )
    return PLANTS[identifier]


@contextmanager
def _replaced(module: str, name: str, make_wrong: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a function wherever the engine has imported it by name."""
    right = getattr(sys.modules[module], name)
    wrong = make_wrong(right)
    holders = [
        holder
        for holder_name, holder in list(sys.modules.items())
        if holder_name.partition(".")[0] == "impl" and getattr(holder, name, None) is right
    ]
    for holder in holders:
        setattr(holder, name, wrong)
    try:
        yield
    finally:
        for holder in holders:
            setattr(holder, name, right)


def _forget_compiled() -> None:
    """What was compiled before does not have the bug, and what was compiled with it does."""
    sys.modules["impl.engine"].compiled.cache_clear()
