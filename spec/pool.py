"""Reference counts: which page is free, and the only code that changes a count.

A page is free when its count is 0. Nothing is clamped: a count below zero is a bug of the engine
that shows it. Source: seed 000, section 3.2; seed 001, "Clone/Refcount Invariants".
"""

from collections.abc import Iterable

Counts = tuple[int, ...]
"""`counts[page]` is the number of row entries that name the page."""


def free_pages(counts: Counts) -> tuple[int, ...]:
    """The free pages, lowest first."""
    return tuple(page for page, count in enumerate(counts) if count == 0)


def lowest_free(counts: Counts, wanted: int) -> tuple[int, ...]:
    """The `wanted` lowest free pages (fewer if there are not so many)."""
    found: list[int] = []
    page = -1
    while len(found) < wanted and 0 in counts[page + 1 :]:
        page = counts.index(0, page + 1)
        found.append(page)
    return tuple(found)


def hold(counts: Counts, pages: Iterable[int]) -> Counts:
    """One more row entry names each of these pages."""
    return _add(counts, pages, 1)


def release(counts: Counts, pages: Iterable[int]) -> Counts:
    """One row entry fewer names each of these pages."""
    return _add(counts, pages, -1)


def _add(counts: Counts, pages: Iterable[int], change: int) -> Counts:
    changed = list(counts)
    for page in pages:
        changed[page] += change
    return tuple(changed)
