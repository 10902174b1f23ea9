"""Differential testing: two engines take the same histories, each in lockstep with the spec.

A violation is the fault of one engine, and its history reproduces it on that engine alone. Two
engines that both satisfy the specification may still differ, and legally so: in the pages that they
take, and, where more than one answer is allowed, in the actions that they refuse or the reasons.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, get_args

from attrs import define, evolve, field

from conformance.history import History
from conformance.lockstep.lockstep import Lockstep, tells_events
from conformance.protocol import (
    Action,
    Attends,
    Batches,
    Compiles,
    Copies,
    Counts,
    Emits,
    Engine,
    Erases,
    Factory,
    Poison,
    Poisonable,
    Profile,
    Result,
    Scores,
)
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, Limits, Reason, Refused

PAGES: Final = "they take other pages"
REASONS: Final = "they refuse as something else"
REFUSES: Final = "one refuses what the other does"
"""The legal differences. After `REFUSES` the two states differ, and B takes no further actions."""


@define
class Differences:
    """The differences between two engines, collected over many histories.

    fault: the engine to blame if the current step goes wrong, "A" or "B". counts: the number of
    steps with each legal difference. first: for each legal difference, the profile of the engines
    and the first history that ends with it.
    """

    fault: str = "A"
    counts: Counter[str] = field(factory=Counter)
    first: dict[str, tuple[Profile, History]] = field(factory=dict)

    def note(self, kind: str, profile: Profile, history: History) -> None:
        """Count a step with this difference, and keep the first history that shows it."""
        self.counts[kind] += 1
        self.first.setdefault(kind, (profile, history))

    @contextmanager
    def blaming(self, name: str) -> Iterator[None]:
        """Blame the engine of this name, "A" or "B", for an error in the block."""
        before, self.fault = self.fault, name
        yield
        self.fault = before


class Pair:
    """Two engines as one `conformance.protocol.Engine`: it answers as A does, and B follows.

    It offers the actions that both offer. It is Poisonable, Compiles or Copies if either engine is
    or does, and Attends, Counts, Emits, Scores or Erases if A does. A violation by B is raised as
    `Violation`.
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
        if isinstance(a, Compiles) or isinstance(b, Compiles):
            self.compilations = self._compilations
        if isinstance(a, Copies) or isinstance(b, Copies):
            self.pool_copies = self._pool_copies
        if isinstance(a, Counts):
            self.statistics = self._statistics
        if isinstance(a, Emits):
            self.events = a.events  # those of B are compared as it follows
        if isinstance(a, Scores):
            self.logprobs = a.logprobs  # those of B are compared as it follows
        if isinstance(a, Erases):
            self.erased = a.erased

    @property
    def profile(self) -> Profile:
        """The profile of A, with the actions that both offer and the calls that both can take."""
        ours, theirs = self._a.profile, self._b.engine.profile
        return evolve(
            ours,
            actions=ours.actions & theirs.actions,
            guarded=ours.guarded | theirs.guarded,
            contexts=ours.contexts and theirs.contexts,
            batches=max(ours.batches, theirs.batches, key=get_args(Batches).index),
        )

    def apply(self, action: Action) -> Result:
        """Take an action on both engines.

        Raises whatever A raises, or Violation if B violates the specification.
        """
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
        """The view of A."""
        return self._a.observe()

    def settle(self) -> None:
        """Count the legal difference of the last step, since the step held no violation."""
        if self._pending is not None:
            self._seen.note(self._pending, self.profile, tuple(self._history))
            self._pending = None

    def _follow(self, action: Action, reasons: frozenset[Reason]) -> None:
        """Take the same action on B, and remember any legal difference."""
        if not self._together:
            return
        with self._seen.blaming("B"):
            theirs = self._b.do(action)
            if tells_events(action):
                self._b.compare_events(action)
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

    def _compilations(self) -> Mapping[str, int]:
        """The counts of each engine, by its name and that of the entry point."""
        found: dict[str, int] = {}
        for name, engine in (("A", self._a), ("B", self._b.engine)):
            counts = engine.compilations() if isinstance(engine, Compiles) else {}
            found |= {f"{name}: {entry}": times for entry, times in counts.items()}
        return found

    def _pool_copies(self) -> Mapping[str, Sequence[str]]:
        """The copies of each engine, by its name and that of the entry point."""
        found: dict[str, Sequence[str]] = {}
        for name, engine in (("A", self._a), ("B", self._b.engine)):
            copies = engine.pool_copies() if isinstance(engine, Copies) else {}
            found |= {f"{name}: {entry}": wrong for entry, wrong in copies.items()}
        return found

    def _statistics(self) -> Mapping[str, object]:
        assert isinstance(self._a, Counts)
        self._seen.fault = "A"
        if self._together and self._history:
            with self._seen.blaming("B"):
                self._b.compare_statistics(self._history[-1])
        return self._a.statistics()

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
    """A `conformance.protocol.Factory` of pairs. seen: the differences over all of its pairs."""

    a: Factory
    b: Factory
    seen: Differences = field(factory=Differences)

    def __call__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Pair:
        """A pair of two new engines."""
        with self.seen.blaming("A"):
            one = self.a(geometry, limits, cleanup)
        with self.seen.blaming("B"):
            return Pair(one, self.b(geometry, limits, cleanup), self.seen)

    @property
    def at_fault(self) -> Factory:
        """The factory of the engine that went wrong."""
        return self.a if self.seen.fault == "A" else self.b
