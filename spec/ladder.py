"""The registry of rungs, in the order in which a machine composes them.

The order is part of the semantics: a later rung guards and follows the actions of earlier ones.
"""

from functools import cache
from typing import Final

from spec.machines import admission, lifecycle, naive, pages, rollback, scheduling, sharing, window
from spec.machines import cache as contiguous_cache
from spec.rung import Machine, Rung, closure

RUNGS: Final[tuple[Rung, ...]] = (
    naive.RUNG,
    contiguous_cache.RUNG,
    pages.RUNG,
    sharing.RUNG,
    rollback.RUNG,
    window.RUNG,
    lifecycle.RUNG,
    scheduling.RUNG,
    admission.RUNG,
)

_OTHER_FORMS: Final = frozenset({"naive", "cache"})
"""Rungs that higher ones are lowered to; a machine with pages does not contain them."""

SERVING: Final = "admission"
"""Every engine is held to this rung and those that it requires; a profile may add others."""


@cache
def machine(*names: str) -> Machine:
    """The machine of these rungs and of all that they require. Raises InvalidInput."""
    return closure(names, RUNGS)


@cache
def machine_for(actions: frozenset[type]) -> Machine:
    """The machine that an engine with these actions is held to."""
    owners = {rung.name for rung in RUNGS for kind in rung.rules if kind in actions}
    return machine(SERVING, *sorted(owners - _OTHER_FORMS))


def whole() -> Machine:
    """The machine of every rung above pages."""
    return machine(*(rung.name for rung in RUNGS if rung.name not in _OTHER_FORMS))
