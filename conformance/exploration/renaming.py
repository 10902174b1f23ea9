"""Keys of states up to renaming of pages.

No guard of the specification depends on a page id, so states that differ in page ids alone have the
same refusals, and successors that differ in page ids alone.
"""

from collections.abc import Hashable
from typing import Final

from spec.rung import Machine
from spec.state import State
from spec.vocabulary import INVALID

_NAMING_PAGES: Final = frozenset({"sequences", "cells", "counts"})
"""Components that name pages. The rows in the key stand for them."""


def key(machine: Machine, state: State, *, texts: bool = True) -> Hashable:
    """A key that two states share exactly if they differ in page ids alone.

    texts: whether the values of tokens count, or their number alone.
    """
    names = {INVALID: INVALID}  # no page: it keeps its name
    rows = tuple(
        sequence
        and (
            tuple(names.setdefault(page, len(names)) for page in sequence.row),
            sequence.tokens if texts else len(sequence.tokens),
            sequence.allocated,
            sequence.written,
        )
        for sequence in state.sequences
    )
    others = (name for name in machine.components if name not in _NAMING_PAGES)
    return rows, tuple(getattr(state, name) for name in others)
