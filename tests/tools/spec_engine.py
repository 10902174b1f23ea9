"""The specification behind the engine protocol: exact refusals, no jax.

It offers every action, but Release only if there is a window.
"""

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve

from conformance.lockstep import serving
from conformance.protocol import Action, EngineFailed, Poison, Profile, Result
from conformance.rungs.registry import legal_results
from spec import events, ladder, model, table, view
from spec.cells import POISON
from spec.fields import OutputEntry
from spec.machines.actions import Release, Submit, TakeOutputs
from spec.state import Output, State
from spec.stats import NAMED, Totals
from spec.view import View
from spec.vocabulary import STANDARD, Capacity, CleanupMode, Geometry, Limits, Request
from spec.vocabulary.events import Event

MACHINE = ladder.whole()
ACTIONS = MACHINE.calls


def small(
    *,
    pages: int = 16,
    page_size: int = 4,
    slots: int = 4,
    pages_per_seq: int = 4,
    window: int | None = None,
) -> Geometry:
    """The default sizes of `kvspec fuzz`, or others."""
    return Geometry(
        pages=pages, page_size=page_size, slots=slots, pages_per_seq=pages_per_seq, window=window
    )


class SpecEngine:
    """The specification as a `conformance.protocol.Engine`, with all that one may show."""

    def __init__(
        self,
        geometry: Geometry,
        limits: Limits,
        cleanup: CleanupMode,
        *,
        actions: frozenset[type] = ACTIONS,
        capacity: Capacity = STANDARD,
    ) -> None:
        self.profile = Profile(
            name="the specification",
            copy=capacity.copy,
            lookahead=capacity.lookahead,
            reserve=capacity.reserve,
            ring=capacity.ring,
            geometry=geometry,
            limits=limits,
            cleanup=cleanup,
            actions=actions if geometry.window else actions - {Release},
        )
        self.machine = self.profile.machine
        self.state = self.machine.initial(geometry, limits, cleanup, capacity)
        self.last_outputs: tuple[Output, ...] = ()
        self.totals, self.untold = Totals(), list[Event]()

    def apply(self, action: Action) -> Result:
        """Take the action by the specification."""
        before = self.state
        self._go(action, self.machine.step(before, action))
        if isinstance(action, TakeOutputs):
            self.last_outputs = before.outputs
        return next(iter(legal_results(self.machine, before, action, self.state)), None)

    def _go(self, action: Action | None, after: State) -> None:
        self.totals = self.totals.then(self.state, action, after)
        self.untold += step_events(self.state, after)
        self.state = after

    def observe(self) -> View:
        """The specification's own view."""
        return view.of(self.machine, self.state)

    def poison(self, kind: Poison) -> None:
        """Do nothing: a dead cell of the specification is POISON already."""
        del kind

    def serve(self, requests: Sequence[Request]) -> tuple[OutputEntry, ...]:
        """Serve these requests, and those that wait, to the end."""
        state = self.state
        for request in requests:
            state = self.machine.step(state, Submit(request))
        served = serving.serve_with(self.machine, self.state, tuple(requests))
        assert served is not None
        self._go(None, served.state)
        return served.outputs

    def statistics(self) -> Mapping[str, object]:
        """Every statistic of the state that has a meaning here."""
        names, run = self.machine.names, self.totals
        return {name: one.of(self.state, run) for name, one in NAMED.items() if one.owner in names}

    def events(self) -> Sequence[Event]:
        """What entered and left the index since the last call, step by step."""
        told, self.untold = self.untold, []
        return told

    def logprobs(self) -> tuple[tuple[float, ...], ...]:
        """Those of the outputs that were taken last."""
        window = self.state.geometry.window
        return tuple(model.logprobs(one.prompt, one.tokens, window) for one in self.last_outputs)

    def erased(self) -> object:
        """Every cell is dead after a reset."""
        return POISON

    def attend(self) -> Mapping[int, Mapping[int, int]]:
        """The read set of each slot's last query."""
        below = self.state
        size, window = below.geometry.page_size, below.geometry.window
        return {
            slot: dict.fromkeys(table.read_set(sequence, sequence.written - 1, size, window), 1)
            for slot, sequence in enumerate(below.sequences)
            if sequence and sequence.written
        }


def step_events(before: State, after: State) -> Iterator[Event]:
    """The events of one step: what extends a page leaves before it and enters behind it."""
    old, new = events.keys(before.indexed), events.keys(after.indexed)
    yield from (("removed", key) for key in sorted(old - new, key=len, reverse=True))
    yield from (("stored", key) for key in sorted(new - old, key=len))


def make(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> SpecEngine:
    """A factory for `--engine`."""
    return SpecEngine(geometry, limits, cleanup)


class Leaky(SpecEngine):
    """A page stays counted after its sequences are gone."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        self.leaked: int | None = None

    def observe(self) -> View:
        """The view with the leak in it."""
        seen = super().observe()
        assert seen.counts is not None
        if seen.outputs and not any(seen.used) and self.leaked is None:
            self.leaked = seen.counts.index(0)
        leaked = tuple(
            max(count, int(page == self.leaked)) for page, count in enumerate(seen.counts)
        )
        return evolve(seen, counts=leaked)


class Untold(SpecEngine):
    """What enters and leaves the index is not told."""

    def events(self) -> Sequence[Event]:
        """None."""
        return ()


class Recompiles(SpecEngine):
    """The specification as an engine with two entry points that are compiled badly."""

    def compilations(self) -> Mapping[str, int]:
        """One is compiled twice."""
        return {"round": 1, "clone": 2}

    def pool_copies(self) -> Mapping[str, Sequence[str]]:
        """The other copies its pool."""
        return {"round": ("copy of a whole pool",)}


class ForgetsCompilations(SpecEngine):
    """The specification as an engine that fails when it is asked what it has compiled."""

    def compilations(self) -> Mapping[str, int]:
        """It does not know."""
        raise EngineFailed("the counters are gone")


class WithoutCells(SpecEngine):
    """The specification with a view that hides the cells."""

    def observe(self) -> View:
        """The view without cells."""
        return evolve(super().observe(), cells=None)


def make_leaky(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Leaky:
    """A factory of leaky engines for `--engine`."""
    return Leaky(geometry, limits, cleanup)


def make_without_cells(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> WithoutCells:
    """A factory of engines without cells for `--engine`."""
    return WithoutCells(geometry, limits, cleanup)


class WithoutCounts(SpecEngine):
    """The specification as an engine that does not show how often its pages are named."""

    def observe(self) -> View:
        """The view without counts."""
        return evolve(super().observe(), counts=None)


def make_ring(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> SpecEngine:
    """A factory for `--engine`: with a window, rows are the shortest rings."""
    past = 0 if geometry.window is None else geometry.pages_for(geometry.window - 1)
    ring = 0 if geometry.window is None else min(geometry.pages_per_seq, past + 1)
    return SpecEngine(geometry, limits, cleanup, capacity=Capacity(ring=ring))
