"""The specification behind the engine protocol: every action, exact refusals, no jax."""

from collections.abc import Mapping

from attrs import evolve

from conformance.protocol import Action, Poison, Profile, Result
from conformance.rungs.registry import legal_results
from spec import ladder, table, view
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, Limits

MACHINE = ladder.whole()
ACTIONS = MACHINE.calls


def small(
    *, pages: int = 16, page_size: int = 4, slots: int = 4, pages_per_seq: int = 4
) -> Geometry:
    """The default sizes of `kvspec fuzz`, or others."""
    return Geometry(pages=pages, page_size=page_size, slots=slots, pages_per_seq=pages_per_seq)


class SpecEngine:
    """The specification as a `conformance.protocol.Engine`, also Poisonable and Attends."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        self.profile = Profile(
            name="the specification",
            geometry=geometry,
            limits=limits,
            cleanup=cleanup,
            actions=ACTIONS,
        )
        self.state = MACHINE.initial(geometry, limits, cleanup)

    def apply(self, action: Action) -> Result:
        """Take the action by the specification."""
        before = self.state
        self.state = MACHINE.step(before, action)
        return next(iter(legal_results(MACHINE, before, action, self.state)), None)

    def observe(self) -> View:
        """The specification's own view."""
        return view.of(MACHINE, self.state)

    def poison(self, kind: Poison) -> None:
        """Do nothing: a dead cell of the specification is POISON already."""
        del kind

    def attend(self) -> Mapping[int, Mapping[int, int]]:
        """The read set of each slot's last query."""
        below = self.state
        size = below.geometry.page_size
        return {
            slot: dict.fromkeys(table.read_set(sequence, sequence.written - 1, size), 1)
            for slot, sequence in enumerate(below.sequences)
            if sequence and sequence.written
        }


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
