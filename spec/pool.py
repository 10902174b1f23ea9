"""Reference counts: the definition of a free page, and the only code that changes a count.

Counts are reference counts: a page's count is the number of row entries that name it. Nothing is
clamped: a count below zero is a bug of the engine that shows it. Source: docs/sources.md, "Page
counts" and "Count invariants".
"""

from collections.abc import Iterable

Counts = tuple[int, ...]
"""`counts[page]` is the number of row entries that name the page."""

_FREE = 0
"""The count of a page that no row entry names."""


def is_free(counts: Counts, page: int) -> bool:
    """Whether a page may be allocated."""
    return counts[page] == _FREE


def is_shared(counts: Counts, page: int) -> bool:
    """Whether more than one row entry names a page."""
    return counts[page] > 1


def free_count(counts: Counts) -> int:
    """The number of free pages."""
    return counts.count(_FREE)


def free_pages(counts: Counts) -> tuple[int, ...]:
    """The free pages, lowest first."""
    return tuple(page for page, count in enumerate(counts) if count == _FREE)


def lowest_free(counts: Counts, wanted: int) -> tuple[int, ...]:
    """The `wanted` lowest free pages; all free pages if they are fewer."""
    found: list[int] = []
    page = -1
    while len(found) < wanted and _FREE in counts[page + 1 :]:
        page = counts.index(_FREE, page + 1)
        found.append(page)
    return tuple(found)


def hold(counts: Counts, pages: Iterable[int]) -> Counts:
    """The counts after one more row entry names each of these pages."""
    return _add(counts, pages, 1)


def release(counts: Counts, pages: Iterable[int]) -> Counts:
    """The counts after one row entry fewer names each of these pages."""
    return _add(counts, pages, -1)


def _add(counts: Counts, pages: Iterable[int], change: int) -> Counts:
    changed = list(counts)
    for page in pages:
        changed[page] += change
    return tuple(changed)
