"""The interface of an engine under test: apply an action, and observe the state.

An adapter is an object with a `profile`, `apply` and `observe`; nothing is inherited. It translates
the specification's actions to its engine's calls and the engine's refusals to `Refused`. A field
that it cannot show is None in the View, and the clauses that need that field are reported as not
checked. A factory takes (geometry, limits, cleanup) and returns an adapter of an engine in its
initial state. Source: docs/sources.md, "Adapters".
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
CALLS: Final = ladder.calls()
"""Every action that an engine may offer."""
Refuses = Literal["exact", "may_refuse_more"]
Policy = Literal["lowest", "any"]
_WORDS: Final = {"refuses": get_args(Refuses), "policy": get_args(Policy)}


@frozen
class Rounds:
    """The result of Generate.

    done: the number of rounds done. refused: why the next round was refused; None if none was.
    """

    done: int
    refused: Reason | None


Result = None | int | BatchPlan | tuple[QueueEntry, ...] | tuple[OutputEntry, ...] | Rounds
"""The result of `apply`; None if the action has no result, or if the engine does not report it.

Reserve, Clone: the slot. Allocate: the plan. Pack: (token, slot, position), by slot and position.
TakeOutputs: the outputs in order of finishing. Generate: `Rounds`.
"""


def _known_word(_profile: "Profile", attribute: "Attribute[Any]", value: object) -> None:
    """Refuse an unknown word: a misspelt one would switch comparisons off."""
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
    ladder.machine_for(value)


@frozen(kw_only=True)
class Profile:
    """The capabilities that an adapter declares.

    actions: the classes of action it accepts; the others are not tried. refuses: whether it refuses
    exactly when the specification does, or sometimes more often. policy: whether it takes the
    lowest free pages, slots in ascending order, or any free pages. Raises InvalidInput for another
    word, for an action that is not one of the specification, or for Append beside an action of a
    rung with a queue.
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
        """The machine that the engine is held to; see `spec.ladder.machine_for`."""
        return ladder.machine_for(self.actions)


class Engine(Protocol):
    """An engine under test."""

    @property
    def profile(self) -> Profile:
        """The declared capabilities; constant."""
        ...

    def apply(self, action: Action) -> Result:
        """Do an action, or raise `spec.vocabulary.Refused` and change nothing."""
        ...

    def observe(self) -> View:
        """The observable state of the engine. Observing must not change it."""
        ...


class Factory(Protocol):
    """Makes an engine in its initial state."""

    def __call__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Engine:
        """Make an engine."""
        ...


class EngineFailed(Exception):
    """The engine failed: for instance, its process ended, or it did not answer.

    An adapter raises it with a message of its own. clause: the violated clause.
    """

    def __init__(self, wrong: str, *, clause: str = "ATOMIC") -> None:
        super().__init__(wrong)
        self.clause = clause


class Unsendable(InvalidInput):
    """The adapter shows or returns a value that another process cannot send; not a finding."""


class Poison(Enum):
    """The contents that the harness writes into dead cells; no observation may depend on them."""

    NAN = "nan"
    INFINITY = "infinity"
    LIVE = "live"
    STALE = "stale"


@runtime_checkable
class Poisonable(Protocol):
    """An engine whose dead cells the harness can overwrite."""

    def poison(self, kind: Poison) -> None:
        """Overwrite every dead cell. LIVE: with the contents of a live cell. STALE: leave them."""
        ...


@runtime_checkable
class Compiles(Protocol):
    """An engine that counts its compilations."""

    def compilations(self) -> Mapping[str, int]:
        """The number of compilations of each entry point that was called."""
        ...


@runtime_checkable
class Attends(Protocol):
    """An engine whose attention can be driven so that the cells it reads are recovered."""

    def attend(self) -> Mapping[int, Mapping[int, int]]:
        """How many times each slot reads each destination: {slot: {destination: times}}.

        Each slot with written cells is queried at its last written position.
        """
        ...
