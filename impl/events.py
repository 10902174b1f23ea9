"""What entered and left the index, for the host to tell others who follow it.

Source: docs/sources.md, "Prefix cache".
"""

from collections import defaultdict
from collections.abc import Set

import jax
from jax import Array

from impl.setup import Setup
from impl.state.index import OUTSIDE
from impl.state.packing import Packed, unpack
from spec.vocabulary import INVALID
from spec.vocabulary.events import Event, PageKey


def between(before: Set[PageKey], after: Set[PageKey]) -> tuple[Event, ...]:
    """The events that lead from some keys to others.

    What extends a key is removed before it, and stored after it.
    """
    removed = sorted(before - after, key=lambda key: (-len(key), key))
    stored = sorted(after - before, key=lambda key: (len(key), key))
    return (*(("removed", key) for key in removed), *(("stored", key) for key in stored))


def keys(setup: Setup, packed: Packed) -> frozenset[PageKey]:
    """Every key of the index of a state."""
    contexts, parents, tokens = (field.tolist() for field in _compiled(setup, packed))
    children = defaultdict[int, list[int]](list)
    for page, parent in enumerate(parents):
        if parent != OUTSIDE:
            children[parent].append(page)
    found, ends = set[PageKey](), [(INVALID, PageKey())]
    for parent, text in ends:
        for page in children[parent]:
            key = (*(text or (contexts[page],)), *tokens[page])
            found.add(key)
            ends.append((page, key))
    return frozenset(found)


def _keys(setup: Setup, packed: Packed) -> tuple[Array, Array, Array]:
    index = unpack(setup, packed).indexed
    return index.contexts, index.parents, index.tokens


_compiled = jax.jit(_keys, static_argnums=0)
