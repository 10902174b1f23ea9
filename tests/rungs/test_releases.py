"""What the kit knows of the rung window: draws, corner states, exploration, and bugs it finds."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import pytest
from attrs import evolve
from explore_tools import silent, work_alone
from spec_engine import SpecEngine, small
from spec_tools import SERVING

from conformance.exploration.graph import Graph
from conformance.exploration.instances import instance
from conformance.exploration.search import Search
from conformance.fuzzing import campaign, settings
from conformance.fuzzing.state_machine import Campaign
from conformance.history import Attend, History
from conformance.lockstep.not_checked import not_checked
from conformance.lockstep.run import Finding, replay
from conformance.protocol import Action, Engine, Result
from conformance.rungs import registry
from conformance.rungs import window as kit
from conformance.rungs.shared_generators import spread
from spec.machines.actions import (
    Assign,
    Clone,
    Merge,
    Prefill,
    Publish,
    Release,
    Reserve,
    Round,
    Share,
)
from spec.machines.window import first_visible
from spec.state import State
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    InvalidInput,
    Params,
    Reason,
    Refused,
    Request,
    default_limits,
)

SIZES = small(pages=12, page_size=2, slots=3, pages_per_seq=6, window=3)
ONE = Params(max_new=1)
ASKED = Prefill((Request(id=1, prompt=(1, 2, 3, 4, 5), params=Params(max_new=6)),))


class TooMuch(SpecEngine):
    """An adapter that gives back a page more than it may, where there is one."""

    def apply(self, action: Action) -> Result:
        """Take the action; a release goes a page too far."""
        result = super().apply(action)
        sequence = self.state.sequences[action.slot] if isinstance(action, Release) else None
        if isinstance(action, Release) and sequence is not None and action.before:
            more = action.before + self.state.geometry.page_size
            if more <= sequence.written:
                rule = self.machine.rules[Release]
                self.state = rule.effect(self.machine, self.state, Release(action.slot, more), None)
        return result


class Forgetful(SpecEngine):
    """An adapter whose clones have released nothing, as far as they know."""

    def apply(self, action: Action) -> Result:
        """Take the action; the child of a clone forgets its first page."""
        result = super().apply(action)
        if isinstance(action, Clone):
            assert isinstance(result, int)
            first_page = self.state.first_page
            forgotten = (*first_page[:result], 0, *first_page[result + 1 :])
            self.state = self.state._replace(first_page=forgotten)
        return result


class FarSighted(SpecEngine):
    """An adapter whose attention reads one cell before the window, if there is one."""

    def attend(self) -> Mapping[int, Mapping[int, int]]:
        """The read sets with a window that is larger by one."""
        geometry = self.state.geometry
        assert geometry.window is not None
        here, self.state = (
            self.state,
            self.state._replace(geometry=evolve(geometry, window=geometry.window + 1)),
        )
        read = super().attend()
        self.state = here
        return read


class Lax(SpecEngine):
    """An adapter that does nothing where it must refuse to share or merge a released page."""

    kind: ClassVar[type]

    def apply(self, action: Action) -> Result:
        """Take the action, or do nothing."""
        try:
            return super().apply(action)
        except Refused as refused:
            lacks = {Reason.NOT_COMMON, Reason.NOT_INDEXED}
            if refused.reasons < lacks and self._meets(action):
                return None
            raise

    def _meets(self, action: Action) -> bool:
        match action:
            case Share(slot) | Merge(slot) if isinstance(action, self.kind):
                return self.state.first_page[slot] > 0
        return False


class Shares(Lax):
    """The same for shares."""

    kind = Share


class Merges(Lax):
    """The same for merges."""

    kind = Merge


BUGS: dict[str, tuple[type[SpecEngine], str, History]] = {
    "a page too many": (TooMuch, "WIN", (ASKED, Release(0, 2))),
    "a clone that forgets": (Forgetful, "ROW", (ASKED, Release(0, 2), Clone(0, 1, 1))),
    "a read past the window": (FarSighted, "READ", (ASKED, Attend())),
    "a share of what is released": (
        *(Shares, "ATOMIC"),
        (ASKED, Release(0, 2), Reserve(1), Assign(1, (1, 2, 3), ONE, 2), Share(0, 1, 2)),
    ),
    "a merge of what is released": (
        *(Merges, "ATOMIC"),
        (ASKED, Publish(0, 2), Release(0, 2), Merge(0, 0)),
    ),
}
"""For each planted bug the adapter, the clause that sees it, and a shortest history."""


def made(kind: type[SpecEngine]) -> Engine:
    """A new engine."""
    return kind(SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found_by_its_clause(name: str) -> None:
    """On a shortest history, with its last step; the specification itself passes."""
    kind, clause, history = BUGS[name]
    found = replay(lambda: made(kind), history)

    assert None is replay(lambda: made(SpecEngine), history)
    assert found is not None
    assert (clause, history) == (found.clause, found.history)


@pytest.mark.parametrize("name", BUGS)
def test_fuzzing_finds_a_planted_bug(name: str) -> None:
    """In a few turns at the levels of a run."""
    kind, clause, _ = BUGS[name]
    found = fuzzed(kind)

    assert found is not None
    assert clause == found.clause


def fuzzed(kind: type[SpecEngine]) -> Finding | None:
    """The finding of the first turns of a run, if they have one."""
    sizes = small(window=4)
    target = Campaign(
        make=partial(settings.make, kind, sizes, CleanupMode.INCREMENTAL),
        names=settings.make(kind, sizes, CleanupMode.INCREMENTAL).profile.machine.names,
    )
    for number, level in enumerate(campaign.TURNS * 8):
        report = campaign.Run()
        campaign._take_turn(target, level, number, report)
        if report.finding is not None:
            return report.finding
    return None


def released() -> State:
    """Five cells are written, and page 0 is given back."""
    state = SERVING.initial(SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)
    return SERVING.step(SERVING.step(state, ASKED), Release(0, 2))


def test_draws_of_releases_meet_the_limit_and_go_past_it() -> None:
    """Of a slot with a page to give back: nothing, all, and a cell or a page too many."""
    state = SERVING.step(SERVING.step(released(), Round()), Round())
    most = first_visible(state, 0)
    drawn = [kit.release(state, spread(number)) for number in range(300)]

    assert {2, 4, 5, 6} == {action.before for action in drawn if action.slot == 0}
    assert 5 == most
    assert {0, 1, 2, 3, -1} <= {action.slot for action in drawn}


@pytest.mark.parametrize(
    ("before", "steps", "corner"),
    [
        (0, (), None),
        (2, (), "release up to a page boundary"),
        (3, (Clone(0, 1, 1),), "release a page that is shared"),
        (3, (), "release up to inside a page"),
    ],
)
def test_a_corner_is_counted_where_it_is(
    before: int, steps: tuple[Action, ...], corner: str | None
) -> None:
    """A release that gives nothing back reaches none."""
    sizes = SIZES if before == 3 else evolve(SIZES, window=4)
    state = SERVING.initial(sizes, default_limits(sizes), CleanupMode.INCREMENTAL)
    for step in (ASKED, *steps):
        state = SERVING.step(state, step)
    action = Release(0, before)
    reached = [*registry.corners(state, action, SERVING.step(state, action))]

    assert [] == reached if corner is None else corner in reached


def test_a_simpler_release_gives_back_less() -> None:
    """And nothing is simpler than one that gives back nothing."""
    assert [Release(1, 2), Release(1, 3)] == [*registry.simpler_steps(Release(1, 4))]
    assert [] == [*registry.simpler_steps(Release(1, 0))]


def test_an_engine_without_release_is_held_to_the_machine_without_window() -> None:
    """It is said that WIN is not judged, and that Release is not offered."""
    sizes = evolve(SIZES, window=None)
    engine = SpecEngine(sizes, default_limits(sizes), CleanupMode.INCREMENTAL)

    assert "window" not in engine.profile.machine.names
    assert "window" in made(SpecEngine).profile.machine.names
    told = dict(not_checked(engine))
    assert "the engine does not offer Release" == told["WIN"]
    assert "the engine does not offer these actions" == told["Release"]
    assert "WIN" not in dict(not_checked(made(SpecEngine)))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("sizes", "states", "transitions", "illegal"),
    [
        (small(pages=3, slots=1, page_size=2, pages_per_seq=3, window=2), 749, 9_159, 11_064),
        pytest.param(
            *(small(pages=3, slots=2, page_size=1, pages_per_seq=3, window=2), 983, 16_816, 22_504),
            marks=pytest.mark.deep,
        ),
    ],
    ids=["one slot", "two slots"],
)
def test_exploration_is_complete_and_has_the_pinned_counts(
    monkeypatch: pytest.MonkeyPatch, sizes: Geometry, states: int, transitions: int, illegal: int
) -> None:
    """Releases are done, and refused where a query can still see the cells."""
    work_alone(monkeypatch)
    graph = Graph()

    assert None is Search(instance("window", sizes), graph).run(update=silent)
    assert graph.complete
    assert (states, transitions, illegal) == (graph.states, graph.transitions, graph.illegal)
    assert min(graph.outcomes[f"release: {how}"] for how in ("done", "WINDOW")) > 0


def test_exploration_needs_a_window() -> None:
    """Where nothing is ever released there is nothing to explore."""
    with pytest.raises(InvalidInput, match="allowed: sizes with a window"):
        assert instance("window", evolve(SIZES, window=None)).moves
