"""The registry of rungs, in the order in which a machine composes them.

The order is part of the semantics: a later rung guards and follows the actions of earlier ones.
"""

from functools import cache
from typing import Final

from spec.machines import (
    admission,
    chunks,
    flights,
    lifecycle,
    naive,
    pages,
    preemption,
    prefix,
    rollback,
    scheduling,
    sharing,
    window,
)
from spec.machines import cache as contiguous_cache
from spec.machines.actions import Append
from spec.rung import Machine, Rung, closure
from spec.vocabulary import InvalidInput

RUNGS: Final[tuple[Rung, ...]] = (
    naive.RUNG,
    contiguous_cache.RUNG,
    pages.RUNG,
    sharing.RUNG,
    rollback.RUNG,
    window.RUNG,
    prefix.RUNG,
    lifecycle.RUNG,
    scheduling.RUNG,
    chunks.RUNG,
    preemption.RUNG,
    admission.RUNG,
    flights.RUNG,
)

_OTHER_FORMS: Final = frozenset({"naive", "cache"})
"""Rungs that higher ones are lowered to; a machine with pages does not contain them."""

SERVING: Final = "admission"
"""An engine is held to this rung and those that it requires; a profile may add others."""

APPENDING: Final = "lifecycle"
"""The same for an engine that offers Append: the queue of tokens belongs to its caller."""

_QUEUE: Final = "scheduling"
"""The rung of the queue: it and the rungs that require it do not go with Append."""


@cache
def machine(*names: str) -> Machine:
    """The machine of these rungs and of all that they require. Raises InvalidInput."""
    return closure(names, RUNGS)


@cache
def machine_for(actions: frozenset[type]) -> Machine:
    """The machine that an engine with these actions is held to.

    Raises InvalidInput for Append beside an action of a rung with a queue.
    """
    queued = sorted(kind.__name__ for kind in actions & _queued())
    if queued and Append in actions:
        raise InvalidInput(
            "actions",
            seen=f"Append beside {', '.join(queued)}",
            allowed="Append, or actions of the queue, of requests and of rounds",
            remedy="Leave out Append or the others: with Append the caller has the queue.",
        )
    owners = {rung.name for rung in RUNGS for kind in rung.rules if kind in actions}
    top = APPENDING if Append in actions else SERVING
    return machine(top, *sorted(owners - _OTHER_FORMS))


@cache
def not_beside(actions: frozenset[type]) -> frozenset[type]:
    """The actions that an engine with these actions cannot offer too.

    Append appends a token without a queue; every action of a rung with a queue relies on it.
    """
    with_queue = frozenset({Append} if actions & _queued() else ())
    return with_queue | (_queued() if Append in actions else frozenset())


@cache
def _queued() -> frozenset[type]:
    """The actions of the rungs with a queue."""
    rungs = (rung for rung in RUNGS if _QUEUE in machine(rung.name).names)
    return frozenset(kind for rung in rungs for kind in rung.rules)


def calls() -> frozenset[type]:
    """Every action that some engine may offer."""
    return whole().calls | {Append}


def whole() -> Machine:
    """The machine of every rung above pages."""
    return machine(*(rung.name for rung in RUNGS if rung.name not in _OTHER_FORMS))


def whole_appending() -> Machine:
    """The machine of every rung above pages that goes with Append."""
    names = (name for name in whole().names if _QUEUE not in machine(name).names)
    return machine(*names)
