"""The record of a rung: all that the kit must know of the rung and of each of its actions."""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from random import Random
from typing import Any, Final, Generic, Protocol, TypeVar

from attrs import field, frozen

from conformance.history import History, Step
from conformance.protocol import Action, Result
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import Geometry, Limits, Reason

A = TypeVar("A")

SINGLE_CELLS: Final = "pages of one cell"
SEVERAL_CELLS: Final = "pages of several cells"
SEVERAL_SLOTS: Final = "several slots in a batch"
FULL_POOL: Final = "rows that fill the pool"
SHORT_POOL: Final = "rows that need more than the pool"
SEVERAL_PAGES: Final = "several pages"
ONE_SHORT: Final = "a row that can need one page more than is free"
TWO_SHORT: Final = "two rows that together can need one page more than is free"
SHARED_FULL: Final = "rows that fill the pool and share a partial page"
THREE_OWNERS: Final = "room for three owners of a partial page, and for their copies"
THREE_CHOICES: Final = "room for all but one page of three choices that share a partial page"
REFUSAL: Final = "a reason that is not guarded"
LAZY: Final = "lazy copies"
AHEAD: Final = "pages taken ahead"
RESERVED: Final = "pages reserved for a request"
EAGER_COPY: Final = "partial page that a clone copies"
TWO_SLOTS: Final = "second slot"
THREE_SLOTS: Final = "third slot"
KEEPS: Final = "cleanup that keeps finished sequences"
FREES: Final = "cleanup that frees finished sequences"
FULL_QUEUE: Final = "way to fill the queue with tokens that rows have room for"
FULL_BESIDE: Final = "way to fill the queue beside a slot that is not in use"
PART_ROUNDS: Final = "queue that takes more tokens of a slot than a round"
RELEASES: Final = "row with cells for a window and a page"
RELEASES_INSIDE: Final = "row with cells for a window and more than a page"
GROWS_RELEASED: Final = "row with a page more than a window and a page"
RINGS: Final = "ring that is shorter than a row"
LAPS: Final = "row of more than two rounds of a ring"
CHUNK_PAST_RING: Final = "chunk that is longer than a ring has room for"
QUEUE_PAST_RING: Final = "queued tokens of a slot that are more than a ring has room for"
WHOLE_PAGE: Final = "row with a page and a cell"
HITS: Final = "row with a page and two cells"
CHAINS: Final = "row with two pages and a cell"
MERGES_ASKED: Final = "merges that the caller asks for"
SHORT_ROUNDS: Final = "prompts of more tokens than a round"
WIDE_ROUNDS: Final = "round of several tokens"
FOUR_STEPS: Final = "slots with cells for a step more than may be in flight"
GIVES_BACK: Final = "row that can lose a page when it loses a cell"
LONG_ROWS: Final = "row for more rounds than one call of the loop has"
"""What a corner state may need beside actions: sizes, policies, and what an engine takes."""


class Session(Protocol):
    """A random history that is being drawn: see `conformance.fuzzing.state_machine.Session`."""

    @property
    def state(self) -> State:
        """The state of the specification."""
        ...

    def next_id(self) -> int:
        """A request id that no request of this history has."""
        ...

    @property
    def actions(self) -> AbstractSet[type[Action]]:
        """The classes of action that the engine takes."""
        ...

    def take(self, step: Step) -> None:
        """Take this step now, before the step that the rule returns."""
        ...

    @property
    def rules(self) -> Mapping[str, "DrawRule"]:
        """The rules of this history's level, by name."""
        ...

    @property
    def refused(self) -> Action | None:
        """The last action that was refused; None if none was."""
        ...

    @property
    def levels(self) -> Mapping[str, Mapping[str, "DrawRule"]]:
        """The rules of every level, by name, for an engine that has turns at it."""
        ...

    @property
    def drawn_by(self) -> dict[type, set[tuple[str, str]]]:
        """The rules, by level and name, that were seen to draw each class of step in this run."""
        ...

    @property
    def recent(self) -> Mapping[type, Action]:
        """The last action of each class that was taken or refused in this run."""
        ...

    def drawn_at(self, level: str, name: str, drawn: int) -> Step:
        """A step by a rule of a level, which may refer to other rules of that level."""
        ...

    def least_seen(self, rng: Random) -> type:
        """An action with an outcome that is possible here and that this run has seldom seen."""
        ...

    def least_seen_before(self, rng: Random, kind: type) -> type:
        """An action behind which this run has seldom seen another one done."""
        ...

    def is_done(self, step: Step) -> bool:
        """Whether the engine is asked for this action, and nothing refuses it now."""
        ...

    def times_seen(self, step: Step, then: Action | None = None) -> tuple[int, int]:
        """How often this run has seen what would come of a step now, the less the better.

        The times of the outcome or of its coming after the last step, whichever is less; and the
        times of the outcome. then: of this action after the step.
        """
        ...


DrawRule = Callable[[Session, int], Step]
"""One rule of the state machine: from a session and a drawn integer to a step."""


@frozen
class Move:
    """One entry of an alphabet. action: None in a state where the entry has no meaning."""

    name: str
    action: Callable[[State], Action | None]

    def __str__(self) -> str:
        return self.name


def _no_results(
    _machine: Machine, _before: State, _action: object, _after: State
) -> tuple[Result, ...]:
    return ()


def _not_simpler(_action: object) -> Iterator[Step]:
    return iter(())


def _no_corners(_before: State, _action: object, _after: State) -> Iterator[str]:
    return iter(())


def _not_refused(_state: State, _action: object, _reasons: frozenset[Reason]) -> Iterator[str]:
    return iter(())


def _as_it_is(_state: State, action: A) -> A:
    return action


def _whole(action: A) -> tuple[A, ...]:
    return (action,)


@frozen(kw_only=True)
class ActionKit(Generic[A]):
    """The kit's record of one action.

    corners: from the state before, an action that was done and the state after to the corner states
    reached.
    named: the action with a name for the slot that it leaves to the engine, if there is one: the
    lowest free slot. by_slot: an action for each slot, in the order in which the action names them.
    by_position: an action for each position of a slot, if it has cells already.
    simpler: smaller forms of the action, never larger ones, so that shrinking ends. results: the
    results that an engine may return, from the states before and after, that of our engine first;
    empty if the action has none. result_clause: the clause that another result violates.
    state_clause: the clause that any difference after this action violates; None for that of the
    field.
    """

    corners: Callable[[State, A, State], Iterator[str]] = _no_corners
    named: Callable[[State, A], A] = _as_it_is
    by_slot: Callable[[A], tuple[A, ...]] = _whole
    by_position: Callable[[A], tuple[A, ...]] = _whole
    simpler: Callable[[A], Iterator[Step]] = _not_simpler
    results: Callable[[Machine, State, A, State], tuple[Result, ...]] = _no_results
    result_clause: str = "DET"
    state_clause: str | None = None


@frozen(kw_only=True)
class RungKit:
    """The kit's record of one rung.

    rung: its name. actions: an entry for each action that it adds. corners: the corner states that
    fuzzing must reach, each with groups of words (`|` between them), of which one of each group
    must be true: actions that the engine offers, by name or as `name: outcome`, sizes, policies.
    always: as `corners` of an action, for a step of any action. refused: the corner states reached
    by an action that was refused, from the state, the action and the reasons. rules: the rules that
    it adds to the state machine of each level, by name. replaced: the rules that a machine with a
    later rung does not have, by name, with that rung. needs: the actions that an engine must offer
    for turns at the level of this rung; empty if it has no level. warmup: a short history from the
    initial state that calls each of its actions; some may be refused. alphabet: its moves for
    exploration at a geometry. explored: further rungs of the explored machine. driven: clauses that
    mean nothing unless an engine offers one of these actions, by id.
    """

    rung: str
    actions: Mapping[type, ActionKit[Any]]
    corners: Mapping[str, tuple[str, ...]] = field(factory=dict)
    always: Callable[[State, Any, State], Iterator[str]] = _no_corners
    refused: Callable[[State, Any, frozenset[Reason]], Iterator[str]] = _not_refused
    rules: Mapping[str, Mapping[str, DrawRule]] = field(factory=dict)
    replaced: Mapping[str, str] = field(factory=dict)
    needs: frozenset[type] = frozenset()
    warmup: History = ()
    alphabet: Callable[[Geometry, Limits], Iterator[Move]] | None = None
    explored: tuple[str, ...] = ()
    driven: Mapping[str, tuple[type, ...]] = field(factory=dict)
