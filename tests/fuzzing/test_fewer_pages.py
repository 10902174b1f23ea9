"""A history that has to fill the pool shrinks at a smaller one."""

from functools import partial

import pytest
from attrs import evolve
from spec_engine import SpecEngine, small

from conformance.fuzzing import settings
from conformance.fuzzing.settings import Setting
from conformance.fuzzing.shrinking import LONG, shrink_at
from conformance.history import History
from conformance.lockstep.run import Finding, replay
from conformance.protocol import Action, Factory, Result, Unsupported
from spec import pool
from spec.machines.actions import Allocate, Free, Reserve
from spec.vocabulary import CleanupMode, Geometry, Limits, default_limits

SIZES = small(pages=12, slots=12, page_size=1, pages_per_seq=1)
LIMITS = default_limits(SIZES)


class KeepsAll(SpecEngine):
    """An adapter that frees nothing while no page is free."""

    def apply(self, action: Action) -> Result:
        """Take the action, or do nothing."""
        if isinstance(action, Free) and not pool.free_count(self.state.counts):
            return None
        return super().apply(action)


class OfOneSize(KeepsAll):
    """The same, at one geometry alone."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        if geometry.pages != SIZES.pages:
            raise Unsupported("pages", seen=geometry.pages, allowed="12", nearest=SIZES)
        super().__init__(geometry, limits, cleanup)


def history(pages: int) -> History:
    """So many sequences with a page each, of which one is freed."""
    filled: list[Action] = [Reserve() for _ in range(pages)]
    filled += [Allocate(((slot, 0),)) for slot in range(pages)]
    return (*filled, Free(0))


def together(pages: int) -> History:
    """The same with all pages in one batch."""
    cells = tuple((slot, 0) for slot in range(pages))
    return (*(Reserve() for _ in range(pages)), Allocate(cells), Free(0))


def least(kind: Factory, pages: int) -> tuple[Setting, Finding]:
    """The finding of a pool with so many pages, shrunk."""
    setting = Setting(evolve(SIZES, pages=pages), CleanupMode.END, LIMITS)
    found = replay(partial(settings.make, kind, *setting), history(pages))
    assert found is not None
    assert found.history == history(pages)
    smaller, finding = shrink_at(kind, setting, found, seconds=60)
    assert setting == smaller._replace(geometry=setting.geometry)
    assert finding.clause == found.clause
    return smaller, finding


def test_a_history_that_fills_the_pool_is_that_of_a_pool_with_one_page() -> None:
    """It fails there as the finding says, and the sizes but for the pages stay."""
    setting, finding = least(KeepsAll, SIZES.pages)

    assert evolve(SIZES, pages=1) == setting.geometry
    assert history(1) == finding.history
    again = replay(partial(settings.make, KeepsAll, *setting), finding.history)
    assert again is not None
    assert (finding.clause, finding.message) == (again.clause, again.message)


@pytest.mark.parametrize(("kind", "pages"), [(OfOneSize, 12), (KeepsAll, LONG - 2)])
def test_the_pool_stays_where_no_other_can_be_made_or_the_history_is_short(
    kind: Factory, pages: int
) -> None:
    """The history shrinks at the sizes at which it was found."""
    setting, finding = least(kind, pages)

    assert pages == setting.geometry.pages
    assert together(pages) == finding.history
