"""Statistics for logs: the pages in use, by slot, in one state or over a run.

`NAMED` has those that an engine may show of itself. Source: docs/sources.md, "Decode statistics"
and "Page statistics".
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from attrs import frozen

from spec import index, pool
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
    counts, rows = state.counts, state.sequences
    unnamed, idle = pool.free_count(counts), len(index.idle(state.indexed, counts))
    return Stats(
        active=sum(sequence is not None for sequence in rows),
        pages_in_use=len(counts) - unnamed,
        free_pages=unnamed - idle,
        idle_pages=idle,
        largest_count=max(counts),
        pages_per_slot=tuple(len(sequence.pages) if sequence else 0 for sequence in rows),
    )


@frozen
class Statistic:
    """One statistic that an engine may show.

    meaning: in words. owner: the rung without which it means nothing. of: its value in a state, an
    integer or a tuple.
    """

    meaning: str
    owner: str
    of: Callable[[State], object]


def _occupants(state: State) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((one.request, one.choice) for one in state.details if one is not None))


def _untaken(state: State) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((output.request, output.choice) for output in state.outputs))


NAMED: Final[Mapping[str, Statistic]] = {
    "active": Statistic("slots in use", "pages", lambda state: of(state).active),
    "pages_in_use": Statistic(
        "pages that some row names", "pages", lambda state: of(state).pages_in_use
    ),
    "free_pages": Statistic(
        "pages that no row and no index names", "pages", lambda state: of(state).free_pages
    ),
    "idle_pages": Statistic(
        "pages of the index that no row names", "prefix", lambda state: of(state).idle_pages
    ),
    "largest_count": Statistic(
        "the largest count of a page", "pages", lambda state: of(state).largest_count
    ),
    "queued": Statistic("tokens in the queue", "scheduling", lambda state: len(state.queue)),
    "outputs": Statistic(
        "outputs that are not taken", "lifecycle", lambda state: len(state.outputs)
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
        lambda state: tuple(request.id for request in state.waiting),
    ),
    "admitted": Statistic(
        "the admitted requests that still hold a slot, by id, in order of admission",
        "admission",
        lambda state: tuple(request.id for request in state.admitted),
    ),
}
"""The statistics that an engine may show, by name."""


def timeline(states: Iterable[State]) -> tuple[Stats, ...]:
    """The statistics of a run, state by state."""
    return tuple(of(state) for state in states)
