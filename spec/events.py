"""Events of the index: what enters and leaves it, for those who follow it from outside.

A router learns from them what an engine can find again. Folding all events over the empty index
gives the keys of the index (EVT), and after each of them these are closed under prefix. An engine
may keep a key in several pages: then each of them is stored, and each removed. Source:
docs/sources.md, "Prefix cache".
"""

from collections import Counter

from spec.fields import index_entry
from spec.index import Index
from spec.vocabulary.events import Event, PageKey

Keys = Counter[PageKey]
"""The keys that are stored, and in how many pages each."""


def keys(index: Index) -> frozenset[PageKey]:
    """The keys of an index."""
    return frozenset(index_entry(entry) for entry in index if entry)


def unfit(held: Keys, event: Event, page_size: int) -> str:
    """What must hold before an event and does not; empty if it may follow."""
    word, key = event
    pages, rest = divmod(len(key) - 1, page_size)
    if rest or pages < 1:
        return f"its key is a context and then the tokens of whole pages of {page_size}"
    if word == "stored":
        before = key[:-page_size]
        return "" if pages == 1 or held[before] else "the page before it is stored"
    if not held[key]:
        return "it is stored"
    next_end = len(key) + page_size  # the keys are closed under prefix
    extended = any(len(one) == next_end and one[: len(key)] == key for one in held)
    return "none that extends it is stored" if extended and held[key] == 1 else ""


def fold(held: Keys, event: Event) -> Keys:
    """The keys that are stored after an event that may follow."""
    word, key = event
    after = Keys(held)
    after[key] += 1 if word == "stored" else -1
    if not after[key]:
        del after[key]
    return after
