"""Rungs, the machines that they compose, and the one check of the edges between machines.

A rung is one record: what it adds to the rungs below it, and its edges to lower machines. A machine
is a set of rungs that is closed under `requires`, composed in the order of the registry
(`spec.ladder`). The refusals of an action are found by the checks of its own rule, and then by
those of every rung that guards it. Its effect is that of its own rule, which every rung that
follows it then extends.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from attrs import field, frozen

from spec.machines.actions import Action, Name
from spec.state import State
from spec.vocabulary import (
    STANDARD,
    Capacity,
    CleanupMode,
    Geometry,
    InvalidInput,
    Limits,
    Reason,
    Refusal,
    Refused,
    Tokens,
    refused,
)
from spec.vocabulary.rules import a

Pages = tuple[int, ...]
Part = tuple[Action, Pages | None]
"""An action, and the pages that it takes; None: the lowest free ones."""

A = TypeVar("A")
A_contra = TypeVar("A_contra", contravariant=True)


Faults = Iterator[tuple[object, object]]
"""What a check finds: for each thing that is wrong, the value seen and the values allowed."""


@frozen
class Check(Generic[A_contra]):
    """One reason to refuse an action; docs/actions.md lists the checks of every action.

    when: the condition in words. faults: what is wrong, if anything is.
    """

    reason: Reason
    when: str
    faults: Callable[["Machine", State, A_contra], Faults]

    def refusals(self, machine: "Machine", state: State, action: A_contra) -> Iterable[Refusal]:
        """A refusal for each thing that is wrong."""
        found = tuple(self.faults(machine, state, action))
        return [Refusal(self.reason, *fault) for fault in found] if found else ()


def check(
    reason: Reason,
) -> Callable[[Callable[["Machine", State, A], Faults]], Check[A]]:
    """Make a check of a function. The docstring of the function is the condition in words."""
    return lambda faults: Check(reason, inspect.getdoc(faults) or "", faults)


@frozen(kw_only=True)
class ChecksOf(Generic[A_contra]):
    """The checks of another action, since this one contains it.

    kind, action: its class, and how it is made. below: only what the rungs below this one check.
    never: reasons of that action that cannot hold here, or single checks of it, and why.
    """

    kind: type
    action: Callable[["Machine", State, A_contra], Action]
    below: str | None = None
    never: Mapping[Reason | Check[Any], str] = field(factory=dict)

    def machine(self, machine: "Machine") -> "Machine":
        """The machine that checks the other action."""
        return machine if self.below is None else machine.below(self.below)

    def refusals(self, machine: "Machine", state: State, action: A_contra) -> Iterable[Refusal]:
        """The refusals of the other action."""
        return self.machine(machine).refusals(state, self.action(machine, state, action))


@frozen
class Stage(Generic[A_contra]):
    """Checks that are made together.

    unless: they are not made if one of these reasons was found before. first: what they find
    replaces what was found before, as if they had been made first.
    """

    checks: tuple[Check[A_contra] | ChecksOf[A_contra], ...]
    unless: frozenset[Reason] = frozenset(Reason)
    first: bool = False


Stages = tuple[Stage[A], ...]


def in_order(*checks: Check[A] | ChecksOf[A]) -> Stages[A]:
    """Checks, each of which is made only if nothing was found before it."""
    return tuple(Stage((one,)) for one in checks)


def _no_tokens(_machine: "Machine", _state: State, _action: object) -> Mapping[Name, Tokens]:
    return {}


def _no_pages(_machine: "Machine", _state: State, _action: object) -> int:
    return 0


@frozen(kw_only=True)
class Rule(Generic[A]):
    """One action of a rung.

    effect: the state after it, when nothing refuses it; `pages` are the pages to take, in order of
    taking. stages: the checks that refuse it, in order. pages_wanted: how many free pages it takes.
    appends: for each slot, the tokens that become known by it without being drawn. parts: if the
    action is a fold of other actions of this machine, those actions.
    """

    effect: Callable[["Machine", State, A, Pages | None], State]
    stages: Stages[A] = ()
    pages_wanted: Callable[["Machine", State, A], int] = _no_pages
    appends: Callable[["Machine", State, A], Mapping[Name, Tokens]] = _no_tokens
    parts: Callable[["Machine", State, A], tuple[Part, ...]] | None = None


Prepare = Callable[["Machine", State, A_contra], State]
"""The state in which another rung's action is judged and done. Refusals are not known yet."""

Follow = Callable[["Machine", State, A_contra, State], State]
"""The state after another rung's action, from the state before and the one reached so far."""


def _same(state: State) -> State:
    return state


def _itself(
    _machine: "Machine", _state: State, action: Action, pages: Pages | None
) -> tuple[Part, ...]:
    return ((action, pages),)


@frozen(kw_only=True)
class Edge:
    """A refinement edge, from a rung to a lower machine.

    to: the last rung of the lower machine; None: this machine without its last rung. abstract: the
    state for the lower machine, of which only that machine's components are used. lower: the
    actions of the lower machine that an action stands for. compared: the part of the lower state
    that must be equal.
    """

    to: str | None = None
    abstract: Callable[[State], State] = _same
    lower: Callable[["Machine", State, Action, Pages | None], tuple[Part, ...]] = _itself
    compared: Callable[[State], object] = _same


@frozen
class Meet:
    """How two rungs meet. clause: the invariant at stake. corner: the item that fuzzing must reach.

    A corner is an item of coverage: a state by its name, or an action with its outcome.
    """

    clause: str
    corner: str


Pair = Literal["independent"] | Meet


@frozen(kw_only=True)
class Rung:
    """A rung of the ladder.

    requires: rungs that its machine must contain. owns: components of the state. initial: sets them
    to their first values. rules: the actions that it adds. folds: actions of lower rungs that the
    caller of an engine no longer calls, since actions of this rung are folds of them. guards,
    follows: what it adds to checks and effects of other rungs' actions. prepares: what happens
    before another rung's action, as a part of it. known: tokens that follow a sequence's own tokens
    and may be written. clauses: the invariants that it adds, by id. edges: its refinements to lower
    machines. meets: an entry for each rung before it in the registry.
    """

    name: str
    requires: tuple[str, ...] = ()
    owns: tuple[str, ...] = ()
    initial: Callable[[State], State] = lambda state: state
    rules: Mapping[type, Rule[Any]] = field(factory=dict)
    folds: frozenset[type] = frozenset()
    guards: Mapping[type, Stages[Any]] = field(factory=dict)
    prepares: Mapping[type, Prepare[Any]] = field(factory=dict)
    follows: Mapping[type, Follow[Any]] = field(factory=dict)
    known: Callable[[State, int], Tokens] | None = None
    clauses: tuple[str, ...] = ()
    edges: tuple[Edge, ...] = ()
    meets: Mapping[str, Pair] = field(factory=dict)


class LadderBroken(AssertionError):
    """An edge does not hold: after the lowered actions the machine below is in another state."""

    def __init__(self, edge: str, action: object, above: object, below: object) -> None:
        super().__init__(f"{edge} on {action}:\n  above, abstracted: {above}\n  below: {below}")


class _Composed(NamedTuple):
    """The rule of an action, and what the other rungs of a machine add to it."""

    rule: Rule[Any]
    stages: Stages[Any]
    prepares: tuple[Prepare[Any], ...]
    follows: tuple[Follow[Any], ...]


@frozen(eq=False, slots=False)
class Machine:
    """Rungs in the order of the registry, closed under `requires`. registry: every rung."""

    rungs: tuple[Rung, ...]
    registry: tuple[Rung, ...] = field(repr=False)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the rungs, in order."""
        return tuple(rung.name for rung in self.rungs)

    @cached_property
    def rules(self) -> Mapping[type, Rule[Any]]:
        """The rule of each action."""
        return {kind: rule for rung in self.rungs for kind, rule in rung.rules.items()}

    @cached_property
    def calls(self) -> frozenset[type]:
        """The actions that a caller of an engine may call."""
        return frozenset(self.rules).difference(*(rung.folds for rung in self.rungs))

    @cached_property
    def components(self) -> tuple[str, ...]:
        """The components of the state that its rungs own."""
        return tuple(name for rung in self.rungs for name in rung.owns)

    @cached_property
    def edges(self) -> tuple[str, ...]:
        """The names of the edges that `climb` checks, as LadderBroken prints them."""
        top, named = self.rungs[-1], dict[str, None]()
        for edge in top.edges:
            named[self._name(edge)] = None
            named |= dict.fromkeys(self.target(edge).edges)
        return tuple(named)

    def _name(self, edge: Edge) -> str:
        return f"{self.rungs[-1].name} to {self.target(edge).rungs[-1].name}"

    @cached_property
    def _composed(self) -> Mapping[type, "_Composed"]:
        return {
            kind: _Composed(
                rule,
                tuple(stage for _, stage in self.stages(kind)),
                tuple(rung.prepares[kind] for rung in self.rungs if kind in rung.prepares),
                tuple(rung.follows[kind] for rung in self.rungs if kind in rung.follows),
            )
            for kind, rule in self.rules.items()
        }

    def stages(self, kind: type) -> tuple[tuple[str, Stage[Any]], ...]:
        """The stages of an action, in the order in which they are asked, each with its rung."""
        own = [(rung.name, rung.rules[kind].stages) for rung in self.rungs if kind in rung.rules]
        added = [(rung.name, rung.guards[kind]) for rung in self.rungs if kind in rung.guards]
        return tuple((name, stage) for name, found in own + added for stage in found)

    @cached_property
    def _known(self) -> tuple[Callable[[State, int], Tokens], ...]:
        return tuple(rung.known for rung in self.rungs if rung.known is not None)

    @cached_property
    def _below(self) -> dict[str, "Machine"]:
        return {}

    def below(self, name: str) -> "Machine":
        """This machine without the rung of this name and all rungs after it."""
        if name not in self._below:
            self._below[name] = Machine(self.rungs[: self.names.index(name)], self.registry)
        return self._below[name]

    def target(self, edge: Edge) -> "Machine":
        """The lower machine of an edge of the last rung."""
        if edge.to is None:
            return self.below(self.rungs[-1].name)
        if f"to {edge.to}" not in self._below:
            self._below[f"to {edge.to}"] = closure((edge.to,), self.registry)
        return self._below[f"to {edge.to}"]

    def reasons(self, kind: type) -> frozenset[Reason]:
        """Every reason for which an action may be refused, in some state."""
        found = set[Reason]()
        for _, stage in self.stages(kind):
            for one in stage.checks:
                if isinstance(one, Check):
                    found.add(one.reason)
                else:
                    found |= one.machine(self).reasons(one.kind) - one.never.keys()
        return frozenset(found)

    def initial(
        self,
        geometry: Geometry,
        limits: Limits,
        cleanup: CleanupMode = CleanupMode.INCREMENTAL,
        capacity: Capacity = STANDARD,
    ) -> State:
        """The initial state. Raises InvalidInput, also for limits too small for the geometry."""
        a(Geometry).require("geometry", geometry)
        a(Limits).require("limits", limits)
        a(CleanupMode).require("cleanup", cleanup)
        a(Capacity).require("capacity", capacity)
        limits.check(geometry)
        capacity.check(geometry)
        if capacity.ring and "window" not in self.names:
            raise InvalidInput(
                "capacity",
                seen=capacity,
                allowed="no ring in a machine that releases nothing",
                remedy="Take a machine with the rung window; see spec.ladder.",
            )
        state = State(geometry, limits, cleanup, capacity)
        for rung in self.rungs:
            state = rung.initial(state)
        return state

    def cleared(self, state: State) -> State:
        """The initial state with the configuration of this one."""
        return self.initial(state.geometry, state.limits, state.cleanup, state.capacity)

    def known(self, state: State, slot: int) -> Tokens:
        """The tokens of a used slot, final or proposed: what its cells may hold."""
        sequence = state.sequences[slot]
        tokens = () if sequence is None else sequence.tokens
        for further in self._known:
            tokens += further(state, slot)
        return tokens

    def rule(self, action: Action) -> Rule[Any]:
        """The rule of an action. Raises InvalidInput if no rung of this machine adds it."""
        return self._of(action).rule

    def _of(self, action: Action) -> "_Composed":
        found = self._composed.get(type(action))
        if found is None:
            raise InvalidInput(
                "action",
                seen=action,
                allowed=", ".join(sorted(kind.__name__ for kind in self.rules)),
                remedy="Take a machine with the rung that adds this action; see spec.ladder.",
            )
        return found

    def refusals(self, state: State, action: Action) -> frozenset[Refusal]:
        """Why the action cannot be done; empty exactly if it can."""
        state = self.prepared(state, action)
        found: frozenset[Refusal] = frozenset()
        for stage in self._of(action).stages:
            if any(refusal.reason in stage.unless for refusal in found):
                continue
            more: list[Refusal] = []
            for one in stage.checks:
                more += one.refusals(self, state, action)
            if more:
                found = frozenset(more) if stage.first else found.union(more)
        return found

    def pages_wanted(self, state: State, action: Action) -> int:
        """How many free pages an action takes."""
        return self.rule(action).pages_wanted(self, self.prepared(state, action), action)

    def prepared(self, state: State, action: Action) -> State:
        """The state in which an action is judged and done."""
        for prepare in self._of(action).prepares:
            state = prepare(self, state, action)
        return state

    def step(self, state: State, action: Action, pages: Pages | None = None) -> State:
        """Apply an action, or raise Refused. pages: the pages to take, in the order of taking."""
        found = self.refusals(state, action)
        if found:
            raise refused(found)
        return self.effect(state, action, pages)

    def effect(self, state: State, action: Action, pages: Pages | None = None) -> State:
        """The state after an action that nothing refuses; refusals are not checked."""
        rule, _, _, follows = self._of(action)
        state = self.prepared(state, action)
        after = rule.effect(self, state, action, pages)
        for follow in follows:
            after = follow(self, state, action, after)
        return after

    def fold(self, state: State, parts: Iterable[Part]) -> State:
        """Apply actions that nothing refuses, one after another."""
        for action, pages in parts:
            state = self.effect(state, action, pages)
        return state

    def parts(self, state: State, action: Action) -> Iterator[Part]:
        """The actions of which an action is a fold; the action itself if it is not a fold."""
        split = self.rule(action).parts
        yield from ((action, None),) if split is None else split(self, state, action)

    def project(self, state: State) -> State:
        """The state with the components of this machine's rungs, and defaults for all others."""
        kept = {name: getattr(state, name) for name in self.components}
        return State(state.geometry, state.limits, state.cleanup, state.capacity, **kept)

    def climb(self, state: State, action: Action, pages: Pages | None = None) -> State:
        """Step, and check every edge on the way down. Raises Refused, or LadderBroken.

        For each edge, `abstract(step(s, a)) == fold(lower.step, abstract(s), lower(s, a))`. What
        the last rung does before the action is invisible below.
        """
        after = self.step(state, action, pages)
        top = self.rungs[-1]
        prepare = top.prepares.get(type(action))
        ready = state if prepare is None else prepare(self, state, action)
        for edge in top.edges:
            lower, name = self.target(edge), self._name(edge)
            below = lower.project(edge.abstract(ready))
            if ready != state:
                still = edge.compared(lower.project(edge.abstract(state)))
                self._require(name, action, edge.compared(below), still)
            for part, taken in edge.lower(self, ready, action, pages):
                try:
                    below = lower.climb(below, part, taken)
                except Refused as refusal:
                    raise LadderBroken(name, action, "done", f"{part}: {refusal}") from refusal
            seen = edge.compared(lower.project(edge.abstract(after)))
            self._require(name, action, seen, edge.compared(below))
        return after

    def _require(self, name: str, action: Action, seen: object, wanted: object) -> None:
        if seen != wanted:
            raise LadderBroken(name, action, seen, wanted)


def closure(names: Iterable[str], registry: tuple[Rung, ...]) -> Machine:
    """The machine of these rungs and of all that they require. Raises InvalidInput."""
    known = {rung.name: rung for rung in registry}
    wanted, chosen = list(names), set[str]()
    while wanted:
        name = wanted.pop()
        if name not in known:
            raise InvalidInput(
                "rung", seen=name, allowed=", ".join(known), remedy="Name rungs of the ladder."
            )
        chosen.add(name)
        wanted += [other for other in known[name].requires if other not in chosen]
    return Machine(tuple(rung for rung in registry if rung.name in chosen), registry)
