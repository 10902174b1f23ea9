"""Seeded bugs: bugs that really happened, planted in the reference engine at run time.

A plant replaces functions of the engine while a block runs; it is no part of the engine's code.
`catalogue` lists the plants, each with the public thread that it is modelled on; `scoring` measures
how well the kit catches them.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Final, Literal, Never, TypeVar

from attrs import field, frozen

from conformance.runtime.unoptimised import compiler_options
from spec.vocabulary import InvalidInput

F = TypeVar("F", bound=Callable[..., object])

Change = Callable[[Never], Callable[..., object]]
"""Makes a wrong function from the right one; the types of `patch` relate the two."""


KERNEL_ONLY: Final = frozenset({"fuzz", "invariants", "replay"})
"""Methods blind to bugs that only options of attention or unusual scores bring out."""
IDLE: Final = frozenset({"invariants", "replay"})
"""Methods blind to attention: they run the exact model, which has an attention of its own."""
NO_VIEW: Final = frozenset({"invariants", "refine", "vectors"})
"""Methods blind to a step that never returns, since it leaves no view to check or compare."""
FirstSight = Literal["caught", "missed", "not kept"]
"""What became of a bug when it was written; of the first ones that was not kept."""


@frozen(kw_only=True)
class Patch:
    """The module and the name of one function, and the change that makes it wrong."""

    module: str
    name: str
    change: Change


def patch(right: F, change: Callable[[F], Callable[..., object]]) -> Patch:
    """The patch that replaces an engine function with the one that `change` makes from it."""
    return Patch(module=right.__module__, name=right.__name__, change=change)


@frozen(kw_only=True)
class Plant:
    """One bug. thread: the public report it is modelled on. clause: the first clause it violates.

    blind: methods that cannot see it by construction; see `seeded_bugs.scoring.methods`.
    first_sight: whether the kit caught it when it was written, before anything was changed for it.
    It is never edited afterwards.
    """

    id: str
    thread: str
    mechanism: str
    clause: str
    patches: tuple[Patch, ...]
    blind: frozenset[str] = field(default=frozenset())
    first_sight: FirstSight = "not kept"


@contextmanager
def planted(identifier: str) -> Iterator[Plant]:
    """Plant a bug while the block runs. Raises InvalidInput for an id that is not listed.

    An engine with a bug takes few steps, so its entry points are compiled without optimisation.
    """
    from impl.engine import jitted

    plant = find(identifier)
    with ExitStack() as stack:
        for each in (*plant.patches, patch(jitted, _unoptimised)):
            stack.enter_context(replaced(each.module, each.name, each.change))
        forget_compiled()
        stack.callback(forget_compiled)
        yield plant


def find(identifier: str) -> Plant:
    """The plant with this id. Raises InvalidInput if there is none."""
    from conformance.seeded_bugs.catalogue import PLANTS

    if identifier not in PLANTS:
        raise InvalidInput(
            "plant",
            seen=identifier,
            allowed=", ".join(PLANTS),
            remedy="Choose one of them.",
        )
    return PLANTS[identifier]


@contextmanager
def replaced(module: str, name: str, change: Change) -> Iterator[None]:
    """Replace a function wherever the engine or its adapter has imported it by name."""
    right = getattr(sys.modules[module], name)
    wrong = change(right)
    holders = [holder for holder in _holders() if getattr(holder, name, None) is right]
    for holder in holders:
        setattr(holder, name, wrong)
    try:
        yield
    finally:
        for holder in holders:
            setattr(holder, name, right)


def _unoptimised(right: Callable[..., object]) -> Callable[..., object]:
    return partial(right, compiler_options=compiler_options())


def _holders() -> list[ModuleType]:
    """The modules of the engine and of its adapter."""
    return [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "impl" or name.startswith("conformance.engines.")
    ]


def forget_compiled() -> None:
    """Drop compiled functions: earlier ones lack the bug, and those compiled with it keep it."""
    for module in _holders():
        for held in vars(module).values():
            for forget in ("cache_clear", "clear_cache"):  # of functools, of jax
                if callable(held) and hasattr(held, forget):
                    getattr(held, forget)()
