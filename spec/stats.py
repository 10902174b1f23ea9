"""Statistics for logs: the pages in use, by slot, in one state or over a run.

Source: docs/sources.md, "Decode statistics" and "Page statistics".
"""

from collections.abc import Iterable

from attrs import frozen

from spec import pool
from spec.state import State


@frozen
class Stats:
    """The statistics of one state.

    active: slots in use, finished ones included. pages_per_slot: length of each row.
    """

    active: int
    pages_in_use: int
    free_pages: int
    largest_count: int
    pages_per_slot: tuple[int, ...]


def of(state: State) -> Stats:
    """The statistics of one state."""
    counts, rows = state.counts, state.sequences
    free = pool.free_count(counts)
    return Stats(
        active=sum(sequence is not None for sequence in rows),
        pages_in_use=len(counts) - free,
        free_pages=free,
        largest_count=max(counts),
        pages_per_slot=tuple(len(sequence.pages) if sequence else 0 for sequence in rows),
    )


def timeline(states: Iterable[State]) -> tuple[Stats, ...]:
    """The statistics of a run, state by state."""
    return tuple(of(state) for state in states)
