"""Two engines on the same histories: each in lockstep with the specification, and side by side.

A violation is one engine's fault, and its history shows it on that engine alone. What differs
between two engines that both keep the specification is legal: the pages that they take, and what
they refuse or as what, where more than one answer is allowed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from attrs import define, evolve, field

from conformance.history import History
from conformance.lockstep.lockstep import Lockstep
from conformance.protocol import (
    Action,
    Attends,
    Engine,
    Factory,
    Poison,
    Poisonable,
    Profile,
    Result,
)
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, Limits, Reason, Refused

PAGES: Final = "they take other pages"
REASONS: Final = "they refuse as something else"
REFUSES: Final = "one refuses what the other does"
"""The legal differences. After the last the two are in different states, and B is left behind."""


@define
class Differences:
    """What was seen of two engines, over many histories.

    fault: whose step it was that went wrong last, "A" or "B". counts: steps with each legal
    difference. first: the first history that ends with each, and how its engines were made.
    """

    fault: str = "A"
    counts: Counter[str] = field(factory=Counter)
    first: dict[str, tuple[Profile, History]] = field(factory=dict)

    def note(self, kind: str, profile: Profile, history: History) -> None:
        """Count a step."""
        self.counts[kind] += 1
        self.first.setdefault(kind, (profile, history))

    @contextmanager
    def blaming(self, name: str) -> Iterator[None]:
        """What goes wrong in the block is the fault of this one."""
        before, self.fault = self.fault, name
        yield
        self.fault = before


class Pair:
    """Engine A, with B beside it: what A does and shows, unless B goes wrong.

    See `conformance.protocol.Engine`; also Poisonable if one of the two is, and Attends if A is.
    Offers the actions that both offer.
    """

    def __init__(self, a: Engine, b: Engine, seen: Differences) -> None:
        self._a, self._b = a, Lockstep(b)
        self._seen, self._together = seen, True
        self._pending: str | None = None
        self._history: list[Action] = []
        if isinstance(a, Poisonable) or isinstance(b, Poisonable):
            self.poison = self._poison
        if isinstance(a, Attends):
            self.attend = self._attend

    @property
    def profile(self) -> Profile:
        """That of A, with the actions that both offer."""
        ours, theirs = self._a.profile, self._b.engine.profile
        return evolve(ours, actions=ours.actions & theirs.actions)

    def apply(self, action: Action) -> Result:
        """Take an action on both; raises what A raises, or a Violation of B's."""
        self.settle()
        self._history.append(action)
        self._seen.fault = "A"
        try:
            result = self._a.apply(action)
        except Refused as refused:
            self._follow(action, refused.reasons)
            raise
        self._follow(action, frozenset())
        return result

    def observe(self) -> View:
        """What A shows."""
        return self._a.observe()

    def settle(self) -> None:
        """Note how the last step differed: nothing was wrong with it."""
        if self._pending is not None:
            self._seen.note(self._pending, self.profile, tuple(self._history))
            self._pending = None

    def _follow(self, action: Action, reasons: frozenset[Reason]) -> None:
        """The same on B."""
        if not self._together:
            return
        with self._seen.blaming("B"):
            theirs = self._b.do(action)
        if bool(theirs) != bool(reasons):
            self._together, self._pending = False, REFUSES
        elif theirs != reasons:
            self._pending = REASONS
        elif self._b.seen.rows != self._a.observe().rows:
            self._pending = PAGES

    def _poison(self, kind: Poison) -> None:
        self._seen.fault = "A"
        if isinstance(self._a, Poisonable):
            self._a.poison(kind)
        if self._together:
            with self._seen.blaming("B"):
                self._b.poison(kind)

    def _attend(self) -> Mapping[int, Mapping[int, int]]:
        assert isinstance(self._a, Attends)
        self._seen.fault = "A"
        read = self._a.attend()
        if self._together:
            with self._seen.blaming("B"):
                self._b.attend()
        return read


@define
class PairFactory:
    """Makes pairs; see `conformance.protocol.Factory`. seen: what all of them have shown."""

    a: Factory
    b: Factory
    seen: Differences = field(factory=Differences)

    def __call__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Pair:
        """Two new engines."""
        with self.seen.blaming("A"):
            one = self.a(geometry, limits, cleanup)
        with self.seen.blaming("B"):
            return Pair(one, self.b(geometry, limits, cleanup), self.seen)

    @property
    def at_fault(self) -> Factory:
        """Who made the engine that went wrong."""
        return self.a if self.seen.fault == "A" else self.b
