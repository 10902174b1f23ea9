"""Events of an index of prefixes: which keys entered and left it."""

from collections.abc import Set
from typing import Final, Literal

Word = Literal["stored", "removed"]
WORDS: Final[tuple[Word, ...]] = ("stored", "removed")
PageKey = tuple[int, ...]
"""The key of a page: its context, and then all tokens up to its end."""
Event = tuple[Word, PageKey]


def between(before: Set[PageKey], after: Set[PageKey]) -> tuple[Event, ...]:
    """The events that lead from some keys to others.

    What extends a key is removed before it, and stored after it.
    """
    removed = sorted(before - after, key=lambda key: (-len(key), key))
    stored = sorted(after - before, key=lambda key: (len(key), key))
    return (*(("removed", key) for key in removed), *(("stored", key) for key in stored))
