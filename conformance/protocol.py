"""What an engine must offer to be tested: apply an action, and show what can be observed.

An adapter is an object with a `profile`, `apply` and `observe`; nothing is inherited. It translates
the specification's actions to its engine's calls and the engine's refusals to `Refused`. What it
cannot show it leaves None in the View, and the clauses that need it are reported as not checked. A
factory takes (geometry, limits, cleanup) and returns an adapter whose engine is in its initial
state. Source: docs/sources.md, "Adapters".
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, Literal, Protocol, get_args, runtime_checkable

from attrs import Attribute, field, frozen

from spec import ladder
from spec.fields import OutputEntry, QueueEntry
from spec.machines import actions
from spec.rung import Machine
from spec.table import BatchPlan
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, InvalidInput, Limits, Reason

Action = actions.Action
CALLS: Final = ladder.whole().calls
"""Every action that an engine may offer."""
Refuses = Literal["exact", "may_refuse_more"]
Policy = Literal["lowest", "any"]
_WORDS: Final = {"refuses": get_args(Refuses), "policy": get_args(Policy)}


@frozen
class Rounds:
    """What Generate did. refused: the reason of the first refused round, if one was."""

    done: int
    refused: Reason | None


Result = None | int | BatchPlan | tuple[QueueEntry, ...] | tuple[OutputEntry, ...] | Rounds
"""What `apply` may return; None where there is nothing to say, or the engine does not say it.

Reserve, Clone: the slot. Allocate: the plan. Pack: (token, slot, position), by slot and position.
TakeOutputs: the outputs in order of finishing. Generate: the rounds done and why no more.
"""


def _known_word(_profile: "Profile", attribute: "Attribute[Any]", value: object) -> None:
    """A word that is misspelt would switch comparisons off."""
    allowed = _WORDS[attribute.name]
    if value not in allowed:
        raise InvalidInput(
            f"Profile.{attribute.name}",
            seen=value,
            allowed=" or ".join(map(repr, allowed)),
            remedy="Correct the adapter's profile.",
        )


def _known_actions(_profile: "Profile", _attribute: "Attribute[Any]", value: object) -> None:
    if not isinstance(value, frozenset) or not value <= CALLS:
        raise InvalidInput(
            "Profile.actions",
            seen=value,
            allowed="a frozenset of classes of spec.machines.actions",
            remedy="Correct the adapter's profile.",
        )


@frozen(kw_only=True)
class Profile:
    """What an adapter declares.

    actions: the classes of action it accepts; the others are not tried. refuses: whether it refuses
    exactly when the specification does, or sometimes more often. policy: whether it takes the
    lowest free page, slots ascending, or any. Raises InvalidInput for other words or actions.
    """

    name: str
    geometry: Geometry
    limits: Limits
    cleanup: CleanupMode
    actions: frozenset[type] = field(validator=_known_actions)
    refuses: Refuses = field(default="exact", validator=_known_word)
    policy: Policy = field(default="lowest", validator=_known_word)

    @property
    def machine(self) -> Machine:
        """The machine that the engine is held to: what every engine is, and the rungs it offers."""
        return ladder.machine_for(self.actions)


class Engine(Protocol):
    """An engine under test."""

    @property
    def profile(self) -> Profile:
        """What it can do; constant."""
        ...

    def apply(self, action: Action) -> Result:
        """Do an action, or raise `spec.vocabulary.Refused` and change nothing."""
        ...

    def observe(self) -> View:
        """What the engine holds now. Reading must not change it."""
        ...


class Factory(Protocol):
    """Makes an engine in its initial state."""

    def __call__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Engine:
        """Make an engine."""
        ...


class EngineFailed(Exception):
    """The engine did something other than its work: its process ended, it did not answer.

    An adapter raises it to say so in its own words; clause: the one that is violated.
    """

    def __init__(self, wrong: str, *, clause: str = "ATOMIC") -> None:
        super().__init__(wrong)
        self.clause = clause


class Unsendable(InvalidInput):
    """The adapter shows or returns what another process cannot send: that is no finding."""


class Poison(Enum):
    """What the harness puts into dead cells: what a cell held before must never matter."""

    NAN = "nan"
    INFINITY = "infinity"
    LIVE = "live"
    STALE = "stale"


@runtime_checkable
class Poisonable(Protocol):
    """An engine whose dead cells the harness can overwrite."""

    def poison(self, kind: Poison) -> None:
        """Overwrite every dead cell; LIVE: with what a live cell holds; STALE: leave them."""
        ...


@runtime_checkable
class Compiles(Protocol):
    """An engine that counts its compilations."""

    def compilations(self) -> Mapping[str, int]:
        """For each entry point that was called: how often it was compiled."""
        ...


@runtime_checkable
class Attends(Protocol):
    """An engine whose attention can be driven so that the cells it reads are recovered."""

    def attend(self) -> Mapping[int, Mapping[int, int]]:
        """For each slot with written cells, queried at its last one: destination to times read."""
        ...
