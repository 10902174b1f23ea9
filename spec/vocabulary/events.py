"""Events of an index of prefixes: which keys entered and left it."""

from typing import Final, Literal

Word = Literal["stored", "removed"]
WORDS: Final[tuple[Word, ...]] = ("stored", "removed")
PageKey = tuple[int, ...]
"""The key of a page: its context, and then all tokens up to its end."""
Event = tuple[Word, PageKey]
