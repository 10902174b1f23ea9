"""Statistics for logs: the pages in use, by slot, in one state or over a run.

`NAMED` has those that an engine may show of itself. Source: docs/sources.md, "Decode statistics"
and "Page statistics".
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from attrs import frozen

from spec import index, pool
from spec.machines.actions import Action, Drop, Hit, Reset
from spec.state import State


@frozen
class Stats:
    """The statistics of one state.

    active: slots in use, finished ones included. pages_per_slot: length of each row. idle_pages:
    pages of the index that no row names; they are not free.
    """

    active: int
    pages_in_use: int
    free_pages: int
    largest_count: int
    pages_per_slot: tuple[int, ...]
    idle_pages: int = 0


def of(state: State) -> Stats:
    """The statistics of one state."""
    return Stats(
        active=_active(state),
        pages_in_use=_in_use(state),
        free_pages=_free(state),
        idle_pages=_idle(state),
        largest_count=max(state.counts),
        pages_per_slot=tuple(
            len(sequence.pages) if sequence else 0 for sequence in state.sequences
        ),
    )


def _active(state: State) -> int:
    return sum(sequence is not None for sequence in state.sequences)


def _in_use(state: State) -> int:
    return len(state.counts) - pool.free_count(state.in_use)


def _free(state: State) -> int:
    return pool.free_count(state.in_use) - _idle(state)


def _idle(state: State) -> int:
    return len(index.idle(state.indexed, state.in_use))


@frozen
class Totals:
    """What the index of a run did since its last reset, in pages.

    hit: pages that sequences began with. stored, removed: pages that entered the index and left it.
    evicted: those of `removed` that did not leave it by Drop.
    """

    hit: int = 0
    stored: int = 0
    removed: int = 0
    evicted: int = 0

    def then(self, before: State, action: Action | None, after: State) -> "Totals":
        """The totals after a step; None: after several, of which none publishes."""
        if isinstance(action, Reset):
            return Totals()
        same = before.indexed is after.indexed
        more = 0 if same else _indexed(after) - _indexed(before)
        hit = action.length // before.geometry.page_size if isinstance(action, Hit) else 0
        removed, stored = max(0, -more), max(0, more)  # no action does both
        return Totals(
            hit=self.hit + hit,
            stored=self.stored + stored,
            removed=self.removed + removed,
            evicted=self.evicted + (0 if isinstance(action, Drop) else removed),
        )


def _indexed(state: State) -> int:
    return len(state.indexed) - state.indexed.count(None)


@frozen
class Statistic:
    """One statistic that an engine may show.

    meaning: in words. owner: the rung without which it means nothing. of: its value in a state, or
    over a run up to it, as an integer or a tuple.
    """

    meaning: str
    owner: str
    of: Callable[[State, Totals], object]


def _occupants(state: State, _: Totals) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((one.request, one.choice) for one in state.details if one is not None))


def _untaken(state: State, _: Totals) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((output.request, output.choice) for output in state.outputs))


NAMED: Final[Mapping[str, Statistic]] = {
    "active": Statistic("slots in use", "pages", lambda state, _: _active(state)),
    "pages_in_use": Statistic(
        "pages that some row or step in flight names", "pages", lambda state, _: _in_use(state)
    ),
    "free_pages": Statistic(
        "pages that no row and no index names", "pages", lambda state, _: _free(state)
    ),
    "idle_pages": Statistic(
        "pages of the index that no row names", "prefix", lambda state, _: _idle(state)
    ),
    "hit_pages": Statistic(
        "pages of the index that sequences began with", "prefix", lambda _, run: run.hit
    ),
    "stored_pages": Statistic("pages that entered the index", "prefix", lambda _, run: run.stored),
    "removed_pages": Statistic("pages that left the index", "prefix", lambda _, run: run.removed),
    "evicted_pages": Statistic(
        "pages that left the index, but not by Drop", "prefix", lambda _, run: run.evicted
    ),
    "largest_count": Statistic(
        "the largest count of a page", "pages", lambda state, _: max(state.counts)
    ),
    "queued": Statistic("tokens in the queue", "scheduling", lambda state, _: len(state.queue)),
    "outputs": Statistic(
        "outputs that are not taken", "lifecycle", lambda state, _: len(state.outputs)
    ),
    "occupants": Statistic(
        "the (request, choice) of each slot with a prompt, as a set", "lifecycle", _occupants
    ),
    "untaken": Statistic(
        "the (request, choice) of each output that is not taken, as a set", "lifecycle", _untaken
    ),
    "waiting": Statistic(
        "the requests that wait, by id, oldest first",
        "admission",
        lambda state, _: tuple(request.id for request in state.waiting),
    ),
    "admitted": Statistic(
        "the admitted requests that still hold a slot, by id, in order of admission",
        "admission",
        lambda state, _: tuple(request.id for request in state.admitted),
    ),
}
"""The statistics that an engine may show, by name. Those of a run count from its last reset."""


def timeline(states: Iterable[State]) -> tuple[Stats, ...]:
    """The statistics of a run, state by state."""
    return tuple(of(state) for state in states)
