"""The interface of an engine under test: apply an action, and observe the state.

An adapter is an object with a `profile`, `apply` and `observe`; nothing is inherited. It translates
the specification's actions to its engine's calls and the engine's refusals to `Refused`. A field
that it cannot show is None in the View, and the clauses that need that field are reported as not
checked. A factory takes (geometry, limits, cleanup) and returns an adapter of an engine in its
initial state. Source: docs/sources.md, "Adapters".
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args, runtime_checkable

from attrs import Attribute, asdict, evolve, field, frozen

from spec import ladder
from spec.fields import OutputEntry, QueueEntry
from spec.machines import actions
from spec.rung import Machine
from spec.table import BatchPlan
from spec.view import View
from spec.vocabulary import Capacity, CleanupMode, Geometry, InvalidInput, Limits, Reason, Request
from spec.vocabulary.capacity import COPIES, RESERVATIONS, Copy, Reservation
from spec.vocabulary.errors import shown
from spec.vocabulary.events import Event
from spec.vocabulary.rules import INT32

Action = actions.Action
CALLS: Final = ladder.calls()
"""Every action that an engine may offer."""
Refuses = Literal["exact", "may_refuse_more"]
Policy = Literal["lowest", "any"]
Batches = Literal["several slots", "one slot", "one position"]
UNASKED: Final = frozenset({actions.Publish, actions.Merge, actions.Evict})
"""The actions that an engine may take without being asked: those of its index of prefixes."""
_WORDS: Final = {
    "refuses": get_args(Refuses),
    "policy": get_args(Policy),
    "batches": get_args(Batches),
    "copy": COPIES,
    "reserve": RESERVATIONS,
}
Answer = tuple[type, Reason]
"""An action and a reason for refusing it."""
ANSWERS: Final = frozenset((kind, reason) for kind in CALLS for reason in Reason)
"""Every action with every reason."""


@frozen
class Rounds:
    """The result of Generate.

    done: the number of rounds done. refused: why the next round was refused; None if none was.
    """

    done: int
    refused: Reason | None


Result = None | int | BatchPlan | tuple[QueueEntry, ...] | tuple[OutputEntry, ...] | Rounds
"""The result of `apply`; None if the action has no result, or if the engine does not report it."""


class Returned(NamedTuple):
    """What an action returns: its type, and the value in words."""

    type: type
    words: str


RESULTS: Final[Mapping[type, Returned]] = {
    actions.Reserve: Returned(int, "the slot"),
    actions.Clone: Returned(int, "the slot of the child"),
    actions.Allocate: Returned(BatchPlan, "the `spec.table.BatchPlan` of the batch after it"),
    actions.Pack: Returned(tuple, "the tokens as (token, slot, position), by slot and position"),
    actions.TakeOutputs: Returned(
        tuple,
        "the outputs as (request, choice, generated tokens, reason), in order of finishing",
    ),
    actions.Generate: Returned(
        Rounds, "`conformance.protocol.Rounds`: the rounds done; why the next was refused"
    ),
}
"""The results that are compared, by action. No other action has one."""


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


def _flag(_profile: "Profile", attribute: "Attribute[Any]", value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidInput(
            f"Profile.{attribute.name}",
            seen=value,
            allowed="True or False",
            remedy="Correct the adapter's profile.",
        )


def _frozen(given: Any) -> Any:
    """Any collection as a set; another value as it is, for the validator."""
    return frozenset(given) if isinstance(given, Iterable) else given


def _known_actions(_profile: "Profile", _attribute: "Attribute[Any]", value: object) -> None:
    if not isinstance(value, frozenset) or not value <= CALLS:
        raise InvalidInput(
            "Profile.actions",
            seen=value,
            allowed="a set of classes of spec.machines.actions",
            remedy="Correct the adapter's profile.",
        )
    ladder.machine_for(value)


def _known_unasked(profile: "Profile", _attribute: "Attribute[Any]", value: object) -> None:
    if not isinstance(value, frozenset) or not value <= UNASKED - profile.actions:
        raise InvalidInput(
            "Profile.unasked",
            seen=value,
            allowed="a set of Publish, Merge and Evict, and none that is in Profile.actions",
            remedy="Correct the adapter's profile.",
        )


def _known_reasons(_profile: "Profile", _attribute: "Attribute[Any]", value: object) -> None:
    if not isinstance(value, frozenset) or not value <= ANSWERS.union(Reason):
        raise InvalidInput(
            "Profile.guarded",
            seen=value,
            allowed="a set of Reasons, or of pairs of a class of spec.machines.actions and a "
            "Reason",
            remedy="Correct the adapter's profile.",
        )


class Unsupported(InvalidInput):
    """The engine has no such size. nearest: the sizes that it has and that come nearest."""

    def __init__(self, name: str, *, seen: object, allowed: str, nearest: Geometry) -> None:
        remedy = "Name sizes that the engine has, or leave --geometry out: the kit then chooses."
        super().__init__(name, seen=seen, allowed=allowed, remedy=remedy)
        self.nearest = nearest


def _supported(profile: "Profile", _attribute: "Attribute[Any]", value: Any) -> None:
    """Refuse a geometry with a size that the engine does not have."""
    sizes = asdict(profile.geometry)
    if not isinstance(value, Mapping) or not value.keys() <= sizes.keys():
        raise InvalidInput(
            "Profile.sizes",
            seen=value,
            allowed="fields of Geometry, each with the sizes that the engine has",
            remedy="Correct the adapter's profile.",
        )
    for name, allowed in value.items():
        if not isinstance(allowed, Collection) or not allowed:
            raise InvalidInput(
                f"Profile.sizes[{name!r}]",
                seen=allowed,
                allowed="a tuple, set or range of the sizes that the engine has",
                remedy="Correct the adapter's profile.",
            )
        size = sizes[name]
        if size not in allowed:
            nearest = {field: _nearest(among, sizes[field]) for field, among in value.items()}
            raise Unsupported(
                f"Geometry.{name}",
                seen=size,
                allowed=f"{shown(allowed)}: Profile.sizes of {profile.name!r}",
                nearest=evolve(profile.geometry, **nearest),
            )


def _nearest(allowed: Iterable[int], size: int) -> int:
    """The allowed size nearest to this one; of two, the smaller."""
    return min(allowed, key=lambda one: (abs(one - size), one))


@frozen(kw_only=True)
class Profile:
    """The capabilities that an adapter declares.

    actions: the classes of action it accepts; the others are not tried. unasked: those of Publish,
    Merge and Evict that it takes by itself, by any policy; the kit reads them from `View.indexed`.
    contexts: whether its index tells contexts apart; without, every slot has context 0. refuses:
    whether it refuses exactly when the specification does, or sometimes more often. policy: whether
    it takes the lowest free pages, slots in ascending order, or any free pages. copy, lookahead,
    reserve, ring: when it takes pages and gives them up; see `spec.vocabulary.Capacity`. guarded:
    the reasons that the layer above the engine rules out, for every action or as a pair for one; a
    call that the specification refuses for one of them is not sent. batches: what one batch may
    have: the tokens of several slots; those of one slot; or, for a slot that has cells already, one
    token. A larger batch is sent as several. sizes: the values of fields of the geometry that the
    engine has, such as {"page_size": (16, 32)}; any value of other fields. Raises Unsupported if
    the geometry has another size, and InvalidInput for another word, for an action or a reason that
    is not one of the specification, or for Append beside an action of a rung with a queue.
    """

    name: str
    geometry: Geometry
    limits: Limits
    cleanup: CleanupMode
    actions: frozenset[type] = field(converter=_frozen, validator=_known_actions)
    unasked: frozenset[type] = field(
        default=frozenset(), converter=_frozen, validator=_known_unasked
    )
    contexts: bool = field(default=True, validator=_flag)
    refuses: Refuses = field(default="exact", validator=_known_word)
    policy: Policy = field(default="lowest", validator=_known_word)
    copy: Copy = field(default="eager", validator=_known_word)
    lookahead: int = field(default=0, validator=INT32)
    reserve: Reservation = field(default="none", validator=_known_word)
    ring: int = field(default=0, validator=INT32)
    guarded: frozenset[Reason | Answer] = field(
        default=frozenset(), converter=_frozen, validator=_known_reasons
    )
    batches: Batches = field(default="several slots", validator=_known_word)
    sizes: Mapping[str, Collection[int]] = field(factory=dict, validator=_supported, eq=False)

    @property
    def capacity(self) -> Capacity:
        """The capacity policy."""
        return Capacity(
            copy=self.copy, lookahead=self.lookahead, reserve=self.reserve, ring=self.ring
        )

    @property
    def machine(self) -> Machine:
        """The machine that the engine is held to; see `spec.ladder.machine_for`."""
        return ladder.machine_for(self.happening)

    @property
    def happening(self) -> frozenset[type]:
        """Every action that the engine takes, and Release for a ring, which releases by itself."""
        return self.taken | ({actions.Release} if self.ring else frozenset())

    @property
    def taken(self) -> frozenset[type]:
        """Every action that the engine takes, asked or unasked."""
        return self.actions | self.unasked

    def guards(self, action: type, reason: Reason) -> bool:
        """Whether the layer above the engine rules out this reason for this action."""
        return reason in self.guarded or (action, reason) in self.guarded


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
        """The observable state of the engine. Observing must not change it.

        An adapter may return the view that it returned last if nothing has changed since then, no
        cell either: what refuses and leaves that view is not judged again.
        """
        ...


class Factory(Protocol):
    """Makes an engine in its initial state."""

    def __call__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Engine:
        """Make an engine."""
        ...


class EngineFailed(Exception):
    """The engine failed: for instance, its process ended, or it did not answer.

    An adapter raises it with a message of its own. clause: the violated clause. raised: the
    exception out of the engine's code, if it was one.
    """

    def __init__(self, wrong: str, *, clause: str = "ATOMIC", raised: str | None = None) -> None:
        super().__init__(wrong)
        self.clause, self.raised = clause, raised


class AdapterMistake(InvalidInput):
    """The adapter itself went wrong; not a finding.

    call: what the kit called. wrong: what came of it. line: where in the adapter. allowed: what
    should have come of it.
    """

    def __init__(
        self,
        call: str,
        wrong: str,
        *,
        line: str | None,
        allowed: str = "no exception but Refused for a refusal, and EngineFailed for a failure of "
        "native code",
    ) -> None:
        mend = f"Mend the adapter{'' if line is None else ', ' + line}."
        super().__init__(f"the adapter's {call}", seen=wrong, allowed=allowed, remedy=mend)


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
        """The number of compilations of each entry point that was called, at this geometry.

        Engines of one geometry in one process share them. More than one is a finding.
        """
        ...


@runtime_checkable
class Counts(Protocol):
    """An engine that shows statistics of itself."""

    def statistics(self) -> Mapping[str, object]:
        """The statistics of the present state: some of `spec.stats.NAMED`, always the same ones.

        An integer; a list of request ids; or a set of (request, choice).
        """
        ...


@runtime_checkable
class Scores(Protocol):
    """An engine that keeps the log-probabilities of the tokens that it draws."""

    def logprobs(self) -> Sequence[Sequence[float]]:
        """Those of the generated tokens of each output that the last TakeOutputs took, in order.

        `spec.model.logprobs` has the right ones. A token that was enqueued, replayed, or committed
        as a draft, was not drawn: its entry may have any value.
        """
        ...


@runtime_checkable
class Emits(Protocol):
    """An engine that tells others, such as a router, what enters and leaves its index."""

    def events(self) -> Sequence[Event]:
        """The events since the last call, in order; at first, since the engine was made.

        Each is ("stored" or "removed", (context, *tokens up to the end of the page)). A key that
        several pages hold is stored for each of them, and removed for each.
        """
        ...


@runtime_checkable
class Serves(Protocol):
    """An engine that serves requests to the end in one call, beside Submit, Admit and so on."""

    def serve(self, requests: Sequence[Request]) -> Sequence[OutputEntry]:
        """Submit these requests; then Admit, Generate and TakeOutputs until none changes anything.

        Returns every output that was not taken before, in any order. Requests that cannot go on,
        as where no slot is ever freed, keep waiting. Raises Refused if Submit refuses one of these
        in its turn, and then none of them waits.
        """
        ...


@runtime_checkable
class Erases(Protocol):
    """An engine whose physical reset overwrites every cell."""

    def erased(self) -> object:
        """The content that every cell shows after `Reset(PHYSICAL)`; constant."""
        ...


@runtime_checkable
class Copies(Protocol):
    """An engine that tells which of its compiled entry points copy a pool of pages."""

    def pool_copies(self) -> Mapping[str, Sequence[str]]:
        """What is wrong, in words, with each entry point that copies a pool. Nothing is run."""
        ...


@runtime_checkable
class Attends(Protocol):
    """An engine whose attention can be driven so that the cells it reads are recovered."""

    def attend(self) -> Mapping[int, Mapping[int, int]]:
        """How many times each slot reads each destination: {slot: {destination: times}}.

        Each slot with written cells is queried at its last written position.
        """
        ...
