"""Histories with every action, and engines that are the specification but for one thing."""

from collections.abc import Callable, Iterator
from copy import copy
from functools import cache, partial
from random import Random
from typing import Any, Final

from attrs import evolve
from index_draws import drawn as indexing
from spec_draws import propose, request_of
from spec_engine import SpecEngine, small

from conformance.lockstep.lockstep import Lockstep
from conformance.protocol import Action, Engine, Result
from conformance.rungs.chunks import unread
from conformance.rungs.registry import legal_results
from spec import ladder
from spec.cells import POISON
from spec.machines.actions import (
    Admit,
    Deliver,
    Dispatch,
    Generate,
    MixedRound,
    Preempt,
    Release,
    Replay,
    Retire,
    Submit,
)
from spec.machines.flights import reach
from spec.machines.pages import used
from spec.state import State
from spec.view import View
from spec.vocabulary import INVALID, STANDARD, Capacity, CleanupMode, Geometry, default_limits

MACHINE: Final = ladder.whole()
ROOMY: Final = small(pages=12, page_size=2, slots=4, pages_per_seq=5)
"""Sizes without a window."""
WINDOWED: Final = evolve(ROOMY, window=3)
"""The same sizes, where pages are released."""
TIGHT: Final = small(pages=6, page_size=3, slots=3, pages_per_seq=3)
"""A pool that three sequences fill."""


def engine_of(
    sizes: Geometry,
    kind: type[SpecEngine] = SpecEngine,
    *,
    cleanup: CleanupMode = CleanupMode.NONE,
    capacity: Capacity = STANDARD,
) -> SpecEngine:
    """A new engine; by default what has finished stays until it is freed."""
    return kind(sizes, default_limits(sizes), cleanup, capacity=capacity)


@cache
def drawn(
    sizes: Geometry,
    seed: int,
    steps: int = 50,
    *,
    cleanup: CleanupMode = CleanupMode.NONE,
    capacity: Capacity = STANDARD,
) -> tuple[Action, ...]:
    """A random history near boundary cases: every action, and sometimes one that is illegal.

    Every third one is around the index of prefixes.
    """
    rng, history = Random(seed), list[Action]()
    state = MACHINE.initial(sizes, default_limits(sizes), cleanup, capacity)
    for number in range(0, 3 * steps, 3):
        step = _drawn(state, rng, number, seed)
        if isinstance(step, Release) and sizes.window is None:
            continue
        history.append(step)
        if not MACHINE.refusals(state, step):
            state = MACHINE.effect(state, step)
    return tuple(history)


def _drawn(state: State, rng: Random, number: int, seed: int) -> Action:
    """One action; `seed` says what the whole history is about."""
    step, other = propose(state, rng, number), rng.randrange(12)
    if other == 0:
        return Submit(request_of(state, rng, number))
    if other == 1 and state.waiting:
        return Admit()
    if other == 2 and state.queue:
        return Generate()
    if other == 3 and seed % 3 < 2 and unread(state):
        return MixedRound(((unread(state)[0], 1),))
    if seed % 3 == 2:
        return indexing(state, rng, number) if other > 3 else step
    own = again if other == 4 else ahead
    return (own(state, rng) if other in (4, 5, 6, 7) else None) or step


def again(state: State, rng: Random) -> Preempt | Replay | None:
    """A replayed token where a slot waits for chunks; else, now and then, a request preempted."""
    waiting = unread(state)
    if waiting:
        return Replay(waiting[0], (rng.randrange(2),))
    live = [one.request for one in state.details if one is not None and one.finished is None]
    return Preempt(rng.choice(live)) if live and rng.randrange(3) == 0 else None


def ahead(state: State, rng: Random) -> Dispatch | Retire | Deliver | None:
    """The oldest step goes on; or, now and then or if there is none, another one is dispatched."""
    ready = [
        slot
        for slot in state.live
        if state.details[slot] is not None
        and not state.proposed[slot]
        and used(state, slot).allocated < reach(state, slot)
    ]
    if ready and (not state.flights or rng.randrange(4) == 0):
        return Dispatch(((rng.choice(ready), 1),))
    if not state.flights:
        return None
    return Deliver() if state.flights[0].retired else Retire()


class Wrapped:
    """An engine whose answers or views are changed by a function.

    apply: takes the inner engine and an action, in its place. more: other methods that it then has,
    which take the inner engine first.
    """

    def __init__(
        self,
        inner: Engine,
        *,
        apply: Callable[[Engine, Action], Result] = lambda inner, action: inner.apply(action),
        view: Callable[[View], View] = lambda view: view,
        **more: Callable[..., Any],
    ) -> None:
        self.profile, self.inner, self._apply, self._view = inner.profile, inner, apply, view
        for name, method in more.items():
            setattr(self, name, partial(method, inner))

    def apply(self, action: Action) -> Result:
        """The changed answer of the inner engine."""
        return self._apply(self.inner, action)

    def observe(self) -> View:
        """The changed view of the inner engine."""
        return self._view(self.inner.observe())


def after_each(engine: SpecEngine, history: tuple[Action, ...]) -> Iterator[tuple[Any, Action]]:
    """The lockstep before each step of a history, and that step."""
    lockstep = Lockstep(engine)
    for step in history:
        yield lockstep, step
        lockstep.do(step)


def trial(lockstep: Lockstep, **changed: Any) -> Any:
    """A lockstep in the same state, with an engine of its own that `Wrapped` changes."""
    other = copied(lockstep)
    other.engine = Wrapped(other.engine, **changed)
    return other


def copied(lockstep: Lockstep) -> Any:
    """A lockstep in the same state, with an engine of its own."""
    other = copy(lockstep)
    other.engine, other._told = copy(lockstep.engine), copy(lockstep._told)
    if isinstance(other.engine, SpecEngine):
        other.engine.untold = list(other.engine.untold)
    if isinstance(other.engine, Renaming):
        other.engine.names = list(other.engine.names)
        other.engine.rng = copy(other.engine.rng)
    return other


class Renaming(SpecEngine):
    """The specification, which names pages as it likes: another name each time one is taken.

    It offers all that an engine may, and its plans, read sets and cells are in its own names.
    """

    def __init__(self, *given: Any, **policy: Any) -> None:
        super().__init__(*given, **policy)
        self.profile = evolve(self.profile, policy="any")
        self.rng = Random(0)
        self.names = list(range(self.profile.geometry.pages))
        self.rng.shuffle(self.names)

    def apply(self, action: Action) -> Result:
        """Take the action; name the pages that it takes; a plan has the new names."""
        before = self.state
        super().apply(action)
        self._rename(before)
        own = self.state._replace(sequences=self._own())
        return next(iter(legal_results(self.machine, before, action, own)), None)

    def serve(self, requests: Any) -> Any:
        """Serve to the end, with other names for all pages that were free."""
        before = self.state
        outputs = super().serve(requests)
        self._rename(before)
        return outputs

    def _rename(self, before: State) -> None:
        was, now = rows_of(before), rows_of(self.state)
        kept = {
            page
            for old, new in zip(was, now, strict=True)
            for page, still in zip(old, new, strict=False)
            if page == still
        }
        pairs = enumerate(zip(before.indexed, self.state.indexed, strict=True))
        kept |= {page for page, (old, new) in pairs if old and new and old.chain == new.chain}
        kept |= before.held & self.state.held
        free = [page for page in range(len(self.names)) if page not in kept]
        names = [self.names[page] for page in free]
        self.rng.shuffle(names)
        for page, name in zip(free, names, strict=True):
            self.names[page] = name

    def _own(self) -> Any:
        return tuple(
            one and evolve(one, row=tuple(map(self._name, one.row))) for one in self.state.sequences
        )

    def _name(self, page: int) -> int:
        return page if page == INVALID else self.names[page]

    def observe(self) -> View:
        """The view of the specification in its own names."""
        seen = super().observe()
        size, cells = seen.geometry.page_size, list[Any]([POISON] * len(seen.cells or ()))
        counts, ranks, held = ([0] * seen.geometry.pages for _ in range(3))
        indexed = list[tuple[int, ...]]([()] * seen.geometry.pages)
        for page, name in enumerate(self.names):
            assert seen.cells is not None
            assert seen.counts is not None
            counts[name] = seen.counts[page]
            indexed[name], ranks[name] = (seen.indexed or ())[page], (seen.idle_ranks or ())[page]
            held[name] = (seen.held or ())[page]
            cells[name * size : (name + 1) * size] = seen.cells[page * size : (page + 1) * size]
        rows = tuple(tuple(map(self._name, row)) for row in seen.rows)
        seen = evolve(seen, indexed=indexed, idle_ranks=ranks)
        return evolve(seen, rows=rows, counts=counts, cells=cells, held=held)

    def attend(self) -> Any:
        """The read sets in its own names."""
        below, self.state = self.state, self.state._replace(sequences=self._own())
        read = super().attend()
        self.state = below
        return read


def rows_of(state: State) -> tuple[tuple[int, ...], ...]:
    """The row of each slot; empty where there is no sequence."""
    return tuple(one.row if one else () for one in state.sequences)
