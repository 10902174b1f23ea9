"""A plain allocator, its adapter, ten mistakes of the adapter and ten bugs of the allocator.

Allocator and adapter are in one module, as in docs/adapters.md, so the name of a file tells nobody
whose code raised an exception.
"""

from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from attrs import evolve

from conformance.protocol import Action, Poison, Profile, Result
from spec.machines.actions import Allocate, Assign, Free, Reserve, Reset
from spec.table import by_slot
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, Limits, Reason, Refused, refused


class Full(Exception):
    """No page is free."""


class Pool:
    """Free pages, and the pages and lengths of sequences."""

    def __init__(self, pages: int, size: int) -> None:
        self.pages, self.size, self.free = pages, size, list(range(pages))
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def open(self, slot: int) -> None:
        """Begin a sequence."""
        self.tables[slot], self.lengths[slot] = [], 0

    def missing(self, slot: int, more: int) -> int:
        """The pages that a sequence lacks."""
        return -(-(self.lengths[slot] + more) // self.size) - len(self.tables[slot])

    def extend(self, slot: int, more: int) -> None:
        """Cover more positions."""
        wanted = self.missing(slot, more)
        self.check(wanted)
        self.tables[slot] += [self.free.pop() for _ in range(wanted)]
        self.lengths[slot] += more

    def check(self, wanted: int) -> None:
        """Raise Full."""
        if wanted > len(self.free):
            raise Full

    def release(self, slot: int) -> None:
        """End a sequence."""
        del self.lengths[slot]
        self.free += self.tables.pop(slot)

    def reset(self) -> None:
        """Forget everything."""
        self.tables, self.lengths, self.free = {}, {}, list(range(self.pages))


class Adapter:
    """The adapter without a mistake."""

    Pool: Any = Pool

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        self.pool = self.Pool(geometry.pages, geometry.page_size)
        self.profile = Profile(name="pool", geometry=geometry, limits=limits, cleanup=cleanup,
            policy="any", actions={Reserve, Allocate, Free, Reset}, batches="one slot",
            guarded=set(Reason) - {Reason.OUT_OF_PAGES})  # fmt: skip

    def apply(self, action: Action) -> Result:
        """Translate an action to a call."""
        match action:
            case Reserve(int(slot)):
                self.pool.open(slot)
            case Allocate(batch):
                for slot, positions in by_slot(batch).items():
                    self.extend(slot, len(positions))
            case Free(int(slot)):
                self.pool.release(slot)
            case Reset():
                self.pool.reset()
        return None

    def extend(self, slot: int, more: int) -> None:
        """Extend a sequence; a full pool is a refusal."""
        try:
            self.pool.extend(slot, more)
        except Full:
            raise refused(Reason.OUT_OF_PAGES) from None

    def observe(self) -> View:
        """The rows, the counts and the lengths."""
        pool, sizes, slots = self.pool, self.profile.geometry, range(self.profile.geometry.slots)
        return View(geometry=sizes, used=[slot in pool.tables for slot in slots],
            rows=[pool.tables.get(slot, []) for slot in slots],
            counts=[page not in pool.free for page in range(sizes.pages)],
            allocated=[pool.lengths.get(slot, 0) for slot in slots])  # fmt: skip


class FactoryRaises(Adapter):
    """The factory reads an attribute that is not there."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        self.blocks = geometry.blocks  # type: ignore[attr-defined]


class ApplyRaises(Adapter):
    """A call with a wrong argument."""

    def apply(self, action: Action) -> Result:
        """Free without the slot."""
        if isinstance(action, Free):
            self.pool.release()
        return super().apply(action)


class ObserveRaises(Adapter):
    """A view that is right as long as nothing is used."""

    def observe(self) -> View:
        """A key that is not there."""
        for slot in self.pool.tables:
            assert self.pool.lengths[slot + 100] is not None
        return super().observe()


class ShowsTooFew(Adapter):
    """A field with an entry for each used slot."""

    def observe(self) -> View:
        """Allocated of used slots alone."""
        return evolve(super().observe(), allocated=list(self.pool.lengths.values()))


class ShowsWords(Adapter):
    """A field with other values."""

    def observe(self) -> View:
        """Texts as counts."""
        return evolve(super().observe(), counts=["free"] * self.profile.geometry.pages)


class ShowsNothing(Adapter):
    """An observe without a return."""

    def observe(self) -> Any:
        """None."""
        super().observe()


class Restless(Adapter):
    """A field that is sometimes hidden."""

    def observe(self) -> View:
        """Hide the counts while something is used."""
        view = super().observe()
        return evolve(view, counts=None) if self.pool.tables else view


class Untranslated(Adapter):
    """A refusal of the allocator that is not translated."""

    def extend(self, slot: int, more: int) -> None:
        """Let Full through."""
        self.pool.extend(slot, more)


class Misnames(Adapter):
    """A profile with an action by its name."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        self.profile = evolve(self.profile, actions={"Reserve"})


class ReturnsWords(Adapter):
    """A result of another type."""

    def apply(self, action: Action) -> Any:
        """The slot as text."""
        super().apply(action)
        return "slot 0" if isinstance(action, Reserve) else None


class PoisonsNothing(Adapter):
    """A poison that leaves the cells that it shows as they were."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        self.profile = evolve(self.profile, actions=self.profile.actions | {Assign})

    def poison(self, kind: Poison) -> None:
        """Do nothing."""

    def observe(self) -> View:
        """Cells that never change."""
        view = super().observe()
        sizes = view.geometry
        return evolve(view, cells=list(np.zeros(sizes.pages * sizes.page_size)))


class Idle(Adapter):
    """A profile that offers what the allocator never needs: a pool as large as all rows."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        self.profile = evolve(self.profile, actions={Allocate})


class Counting(Adapter):
    """An observe that changes what it shows."""

    looks = 0

    def observe(self) -> View:
        """A count more at each look."""
        self.looks += 1
        return evolve(super().observe(), counts=[self.looks] * self.profile.geometry.pages)


class Shared(Adapter):
    """A factory whose engines share a pool."""

    pools: ClassVar[list[Any]] = []

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        self.pools.append(self.pool)
        self.pool = self.pools[0]


class Forgetful(Adapter):
    """No case for an action that is offered."""

    def apply(self, action: Action) -> Result:
        """Ignore Free."""
        return None if isinstance(action, Free) else super().apply(action)


class Negative(Adapter):
    """Another value for no page."""

    def observe(self) -> View:
        """Rows that end with -1."""
        view = super().observe()
        return evolve(view, rows=[[*self.pool.tables.get(0, []), -1], *view.rows[1:]])


class Lowest(Adapter):
    """A policy that the allocator does not have."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        self.profile = evolve(self.profile, policy="lowest")


class Misleading(Adapter):
    """A refusal by another name."""

    def extend(self, slot: int, more: int) -> None:
        """Say that the row is too long."""
        try:
            self.pool.extend(slot, more)
        except Full:
            raise refused(Reason.TOO_LONG) from None


class Unguarded(Adapter):
    """A check that is the caller's, and not declared as such."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        guarded = self.profile.guarded - {Reason.SLOT_USED}
        self.profile = evolve(self.profile, guarded=guarded)


class Unchosen(Adapter):
    """A slot that the engine does not choose, and no caller either."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        guarded = self.profile.guarded - {Reason.NO_FREE_SLOT}
        self.profile = evolve(self.profile, guarded=guarded)


class Unknown(Adapter):
    """A lookup of its own that fails on a call that is illegal and not declared as guarded."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        guarded = self.profile.guarded - {Reason.SLOT_UNUSED} | {(Allocate, Reason.SLOT_UNUSED)}
        self.profile = evolve(self.profile, guarded=guarded)
        self.names: dict[object, int] = {}

    def apply(self, action: Action) -> Result:
        """Translate the slot first."""
        match action:
            case Reserve(slot):
                self.names[slot] = 1
            case Free(slot):
                del self.names[slot]
        return super().apply(action)


def of_functions(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Any:
    """An adapter of functions, with a name that is not there in one of them."""
    inner = Adapter(geometry, limits, cleanup)

    def apply(action: Action) -> Result:
        if isinstance(action, Free):
            return inner.pool.freed[action.slot]  # type: ignore[no-any-return]
        return inner.apply(action)

    return SimpleNamespace(profile=inner.profile, observe=inner.observe, apply=apply)


class Wordless(Adapter):
    """An exception whose text raises."""

    def apply(self, _action: Action) -> Result:
        """Raise it."""
        raise Unprintable


class Unprintable(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise ZeroDivisionError


class Reasonless(Adapter):
    """A refusal for no reason."""

    def extend(self, _slot: int, _more: int) -> None:
        """Refuse without a reason."""
        raise Refused([])


MISTAKES = {
    Unknown: (
        "KeyError",
        "where the specification refuses: SLOT_UNUSED",
        "declare it in Profile.guarded: (Free, Reason.SLOT_UNUSED)",
        "del self.names[slot]",
    ),
    of_functions: ("apply(Free", "AttributeError", "inner.pool.freed"),
    Wordless: (
        "apply(Reserve",
        "Unprintable: whose text raises ZeroDivisionError",
        "Wordless.apply",
    ),
    Reasonless: ("apply(Allocate", "Refused without a reason", "a Reason that holds"),
    FactoryRaises: ("factory", "AttributeError", "self.blocks = geometry.blocks"),
    ApplyRaises: ("apply(Free", "TypeError", "self.pool.release()"),
    ObserveRaises: ("observe()", "KeyError", "self.pool.lengths[slot + 100]"),
    ShowsTooFew: ("View.allocated", "0 entries", "allocated=list(self.pool.lengths"),
    ShowsWords: ("View.counts", "free", 'counts=["free"]'),
    ShowsNothing: ("observe()", "None", "View"),
    Restless: ("View.counts", "None in another", "Show it always"),
    Untranslated: ("apply(Allocate", "Full", "OUT_OF_PAGES"),
    Misnames: ("Profile.actions", "Reserve", "evolve(self.profile, actions="),
    ReturnsWords: ("apply(Reserve", "slot 0", "int"),
}
"""Each mistake, with texts of the message and its notes."""


class Leaks(Pool):
    """A release that keeps the last page."""

    def release(self, slot: int) -> None:
        """Return all but one."""
        self.tables[slot] = self.tables[slot][:-1]
        super().release(slot)


class Raises(Pool):
    """A failed lookup in the third cell."""

    def extend(self, slot: int, more: int) -> None:
        """Raise for long batches."""
        if more > 2:
            assert [][more]
        super().extend(slot, more)


class RaisesInside(Pool):
    """An exception out of a comprehension of the engine."""

    def missing(self, slot: int, more: int) -> int:
        """Look at lengths that are not there."""
        if len(self.tables) > 1:
            assert sum(self.lengths[one + 50] for one in self.tables)
        return super().missing(slot, more)


class Changes(Pool):
    """A refusal after a change."""

    def check(self, wanted: int) -> None:
        """Lose a page, then refuse."""
        if wanted > len(self.free) > 0:
            self.free.pop()
        super().check(wanted)


class Halfway(Pool):
    """No check: a full pool is noticed when some pages are taken."""

    def extend(self, slot: int, more: int) -> None:
        """Take page after page."""
        for _ in range(self.missing(slot, more)):
            self.check(1)
            self.tables[slot].append(self.free.pop())
        self.lengths[slot] += more


class Taking(Pool):
    """No check: a full pool is an error of the list, with the last pages lost."""

    def check(self, wanted: int) -> None:
        """Check nothing."""


class Refuses(Pool):
    """A check that is off by one."""

    def check(self, wanted: int) -> None:
        """The last page is never given out."""
        if wanted and wanted >= len(self.free):
            raise Full


class Twice(Pool):
    """A page that is returned twice."""

    def release(self, slot: int) -> None:
        """Return the first page once more."""
        self.free += self.tables[slot][:1]
        super().release(slot)


class Overruns(Pool):
    """A page too many at a boundary."""

    def missing(self, slot: int, more: int) -> int:
        """Round up past the boundary."""
        return (self.lengths[slot] + more) // self.size + 1 - len(self.tables[slot])


class Forgets(Pool):
    """A reset that keeps a sequence."""

    def reset(self) -> None:
        """Forget all but the name of the first."""
        kept = list(self.tables)[:1]
        super().reset()
        self.tables = {name: [] for name in kept}


class Exits(Pool):
    """An exit from the engine's code."""

    def release(self, slot: int) -> None:
        """Exit at a long sequence."""
        if self.lengths[slot] > 2:
            raise SystemExit(3)
        super().release(slot)


class Base:
    """An engine that its adapter inherits from."""

    lengths: ClassVar[dict[int, int]] = {}

    def extend_all(self) -> None:
        """Look at a length that is not there."""
        assert self.lengths[100]


class Inherits(Base, Adapter):
    """The adapter is an engine, whose own code raises at the first release."""

    def apply(self, action: Action) -> Result:
        """Let the engine raise."""
        if isinstance(action, Free):
            self.extend_all()
        return super().apply(action)


BUGS = {
    Leaks: "CONS",
    Raises: "ATOMIC",
    RaisesInside: "ATOMIC",
    Changes: "CONS",
    Halfway: "ROW",
    Refuses: "ATOMIC",
    Twice: "UAF",
    Overruns: "ROW",
    Forgets: "RESET",
    Exits: "ATOMIC",
}
"""Each bug of the allocator, with the clause of the finding."""


def with_bug(bug: type[Pool]) -> type[Adapter]:
    """The adapter without a mistake, of the allocator with a bug."""
    return type(f"Of{bug.__name__}", (Adapter,), {"Pool": bug, "__module__": __name__})


def __getattr__(name: str) -> type[Adapter]:
    """Make a factory for each bug, by the name of the class of the bug with `Of` before it."""
    for bug in BUGS:
        if name == f"Of{bug.__name__}":
            return with_bug(bug)
    raise AttributeError(name)
