"""The numbers of pages in a state: which pages a step keeps, and how two exchange their numbers.

Free pages differ in nothing but their number. So an engine that takes any free page is in the state
of the specification, but for the numbers of the pages that it took.
"""

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from spec import index, pool
from spec.state import PER_PAGE, InFlight, State


def is_free(state: State, page: int) -> bool:
    """Whether no row and no step in flight names the page, and the index does not have it."""
    return pool.is_free(state.in_use, page) and not index.has(state.indexed, page)


def in_use(state: State) -> frozenset[int]:
    """The pages that some row or step in flight names, or the index has."""
    return frozenset(page for page in range(len(state.counts)) if not is_free(state, page))


def kept_in_rows(before: State, after: State) -> set[int]:
    """The pages that a row names in one place in both states."""
    kept = set[int]()
    for old, new in zip(before.sequences, after.sequences, strict=True):
        if old and new:
            pairs = zip(old.row, new.row, strict=False)
            kept.update(page for page, still in pairs if page == still)
    return kept


def kept_in_index(before: State, after: State) -> set[int]:
    """The pages that the index has under one key in both states."""
    pairs = enumerate(zip(before.indexed, after.indexed, strict=True))
    return {page for page, (old, new) in pairs if old and new and _key(old) == _key(new)}


def exchanged(state: State, page: int, other: int) -> State:
    """The state in which two pages have each other's number."""
    numbers = {page: other, other: page}
    changed: dict[str, Any] = {}
    for name in PER_PAGE:
        entries = list(getattr(state, name))
        if entries:
            entries[page], entries[other] = entries[other], entries[page]
        changed[name] = tuple(entries)
    sequences = tuple(
        one and evolve(one, row=tuple(numbers.get(entry, entry) for entry in one.row))
        for one in state.sequences
    )
    flights = tuple(
        evolve(flight, parts=tuple(_named_anew(part, numbers) for part in flight.parts))
        for flight in state.flights
    )
    return state._replace(sequences=sequences, flights=flights, **changed)


def _named_anew(part: InFlight, numbers: Mapping[int, int]) -> InFlight:
    return evolve(part, pages=tuple(numbers.get(page, page) for page in part.pages))


def _key(entry: index.Indexed) -> tuple[int, tuple[int, ...]]:
    return entry.context, entry.chain
