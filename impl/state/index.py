"""The index of pages by content: a page is found again by its context and all tokens up to its end.

The index is closed under prefix, and has one page for a key. So the key of a page is the page
before it, its own tokens and its context: two pages with equal keys have the same page before them.
Keys are compared token by token. A hash only says in which bucket a page is looked for. A bucket is
a doubly linked list, and a page that leaves the index stays in its list until it enters again: so
what an allocation takes out of the index costs it little, and no list has more than all pages.

A page of the index that no row names is idle. Which page that is, only `pages` says: it is not
taken while a step in flight names it. Source: docs/sources.md, "Prefix cache".
"""

from typing import Final, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Int32

from impl.setup import Setup
from impl.state.pages import Pages, in_use, is_free
from impl.status import target
from spec.vocabulary import INVALID

HITS: Final = 0
STORED: Final = 1
DROPPED: Final = 2
"""Places in `Index.totals`."""

Flag = Bool[Array, ""]
Number = Int32[Array, ""]
OUTSIDE: Final = -1
_NEVER: Final = 1
"""The age of a page that is not idle; that of an idle one is its release less the time, 0 at most.
"""
_BASE: Final = 0x01000193
_FACTOR: Final = 0x7FEB352D


class Index(NamedTuple):
    """The pages of the index; what the other fields say of a page that is not in it means nothing.

    contexts, parents, tokens: the key of each page; the parent is the page before it, INVALID for
    the first of a text, OUTSIDE if the page is not in the index. children: how many pages of the
    index have it as their parent. buckets: the first page of each of H buckets. after, before: the
    neighbours of a page in its list; before the first one is `~bucket`. INVALID: none. totals: the
    pages that were hit, that entered, and that left when the whole index was forgotten, since the
    last reset and modulo 2**32.
    """

    contexts: Int32[Array, " P"]
    parents: Int32[Array, " P"]
    tokens: Int32[Array, "P page_size"]
    children: Int32[Array, " P"]
    buckets: Int32[Array, " H"]
    after: Int32[Array, " P"]
    before: Int32[Array, " P"]
    totals: Int32[Array, "3"]

    @property
    def holds(self) -> Bool[Array, " P"]:
        """Whether each page is in the index."""
        return jnp.asarray(self.parents != OUTSIDE)  # also where the state is read back


def make(setup: Setup) -> Index:
    """An empty index."""
    pages, size = setup.geometry.pages, setup.geometry.page_size
    nothing = jnp.full((pages,), INVALID, jnp.int32)
    return Index(
        contexts=jnp.zeros((pages,), jnp.int32),
        parents=jnp.full((pages,), OUTSIDE, jnp.int32),
        tokens=jnp.zeros((pages, size), jnp.int32),
        children=jnp.zeros((pages,), jnp.int32),
        buckets=nothing,
        after=nothing,
        before=nothing,
        totals=jnp.zeros((3,), jnp.int32),
    )


def forgotten(index: Index, setup: Setup) -> Index:
    """An empty index, which goes on counting."""
    dropped = jnp.sum(index.holds, dtype=jnp.int32)
    return make(setup)._replace(totals=index.totals.at[DROPPED].add(dropped))


def with_hits(index: Index, pages: Number) -> Index:
    """The index after a slot began with so many pages of it."""
    return index._replace(totals=index.totals.at[HITS].add(pages))


def find(
    index: Index, context: Number, tokens: Int32[Array, " L"], count: Number
) -> Int32[Array, " M"]:
    """The pages with the first `count` keys of a text, INVALID from the first that is not there."""
    texts = tokens.reshape(-1, index.tokens.shape[1])

    def candidate(entry: Number, parent: Number) -> Number:
        bucket = bucket_of(index, context, parent, _row(texts, entry))
        return jnp.where(entry < count, index.buckets[bucket], INVALID)

    def goes_on(carry: tuple[Number, Number, Number, Array]) -> Flag:
        return carry[2] != INVALID

    def step(carry: tuple[Number, Number, Number, Array]) -> tuple[Number, Number, Number, Array]:
        entry, parent, page, found = carry
        same = (
            (index.parents[page] == parent)
            & (index.contexts[page] == context)
            & jnp.all(index.tokens[page] == _row(texts, entry))
        )
        found = found.at[jnp.where(same, entry, INVALID)].set(page, mode="drop")
        entry, parent = entry + same, jnp.where(same, page, parent)
        page = jnp.where(same, candidate(entry, parent), index.after[page])
        return entry, parent, page, found

    none = jnp.full(texts.shape[:1], INVALID, jnp.int32)
    begin = jnp.int32(0), jnp.int32(INVALID)
    *_, found = lax.while_loop(goes_on, step, (*begin, candidate(*begin), none))
    return found


def enter(
    index: Index,
    context: Number,
    tokens: Int32[Array, " L"],
    row: Int32[Array, " M"],
    count: Number,
) -> Index:
    """The index with the first `count` pages of a row; a key that it has already keeps its page."""
    texts = tokens.reshape(-1, index.tokens.shape[1])
    found = find(index, context, tokens, count)
    known = jnp.sum(found != INVALID, dtype=jnp.int32)
    row = jnp.where(found != INVALID, found, row)

    def step(entry: Array, index: Index) -> Index:
        parent = jnp.where(entry > 0, row[entry - 1], INVALID)
        return link(index, row[entry], context, parent, _row(texts, entry))

    entered: Index = lax.fori_loop(known, jnp.maximum(count, known), step, index)
    return entered


def without(index: Index, pages: Int32[Array, " N"], goes: Bool[Array, " N"]) -> Index:
    """The index without those of N pages that `goes` says, and without all that extend them."""
    gone = goes & index.holds.at[pages].get(mode="fill", fill_value=False)
    at = jnp.where(gone, pages, INVALID)
    above = index.parents.at[at].get(mode="fill", fill_value=INVALID)
    parents = index.parents.at[at].set(OUTSIDE, mode="drop")
    children = index.children.at[above].add(-1, mode="drop")
    is_extended = children.at[at].get(mode="fill", fill_value=0) > 0
    parents = _cut_off(parents, jnp.where(is_extended, at, INVALID))
    return index._replace(parents=parents, children=children)


def with_idle(
    index: Index, pages: Pages, free: Int32[Array, " N"], wanted: Number
) -> Int32[Array, " N"]:
    """The pages that are taken next: those `free`, then idle ones until there are `wanted`.

    The idle page goes first that was released first, of those that no page of the index extends; if
    there is none, of those that no idle page extends. Of several, the lowest. free: ids past the
    pool follow the free pages. Each idle page costs a pass over the pool. The index stays as it is,
    see `without`.
    """

    def goes_on(carry: tuple[Array, Number, Array, Array, Flag]) -> Flag:
        _, count, _, _, is_dry = carry
        return (count < jnp.minimum(wanted, free.shape[0])) & ~is_dry

    def step(
        carry: tuple[Array, Number, Array, Array, Flag],
    ) -> tuple[Array, Number, Array, Array, Flag]:
        taken, count, ages, children, _ = carry
        ends = jnp.where(children == 0, ages, _NEVER)
        none = jnp.all(ends == _NEVER)
        extended = _extended(index, none & (ages != _NEVER))
        ends = jnp.where(none & ~extended, ages, ends)
        page = jnp.argmin(ends).astype(jnp.int32)
        there = ends[page] != _NEVER
        taken = taken.at[jnp.where(there, count, INVALID)].set(page, mode="drop")
        children = children.at[index.parents[page]].add(-1, mode="drop")
        return taken, count + there, ages.at[page].set(_NEVER), children, ~there

    count = jnp.sum(free < index.parents.shape[0], dtype=jnp.int32)
    ages = jnp.where(idle_pages(index, in_use(pages)), pages.released - pages.clock, _NEVER)
    begin = free, count, ages, index.children, jnp.bool_(0)
    taken, *_ = lax.while_loop(goes_on, step, begin)
    return taken


def idle_pages(index: Index, counts: Int32[Array, " P"]) -> Bool[Array, " P"]:
    """Which pages are in the index and have count 0."""
    return index.holds & is_free(counts)


def _extended(index: Index, pages: Bool[Array, " P"]) -> Bool[Array, " P"]:
    """Which pages of the index some of these pages extend; without any, it costs no pass."""
    number = index.parents.shape[0]

    def parents_of(pages: Bool[Array, " P"]) -> Bool[Array, " P"]:
        at = target(index.holds & pages, index.parents, number)
        return jnp.zeros_like(pages).at[at].set(True, mode="drop")

    def step(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        extended, new = carry
        above = parents_of(new) & ~extended
        return extended | above, above

    begin = jnp.zeros_like(pages), pages
    extended, _ = lax.while_loop(lambda carry: jnp.any(carry[1]), step, begin)
    return extended


def _cut_off(parents: Int32[Array, " P"], pages: Int32[Array, " N"]) -> Int32[Array, " P"]:
    """Parents without all that extend N pages, which have left the index; INVALID is no page."""

    def step(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        parents, gone = carry
        extends = gone.at[parents].get(mode="fill", fill_value=False, wrap_negative_indices=False)
        return jnp.where(extends, OUTSIDE, parents), extends

    gone = jnp.zeros(parents.shape, jnp.bool_).at[pages].set(True, mode="drop")
    left, _ = lax.while_loop(lambda carry: jnp.any(carry[1]), step, (parents, gone))
    return left


def link(
    index: Index, page: Number, context: Number, parent: Number, tokens: Int32[Array, " page_size"]
) -> Index:
    """The index with a page that it does not have."""
    bucket = bucket_of(index, context, parent, tokens)
    index = _out_of_its_list(index, page)
    first = index.buckets[bucket]
    return Index(
        contexts=index.contexts.at[page].set(context, mode="drop"),
        parents=index.parents.at[page].set(parent, mode="drop"),
        tokens=index.tokens.at[page].set(tokens, mode="drop"),
        children=index.children.at[page].set(0, mode="drop").at[parent].add(1, mode="drop"),
        buckets=index.buckets.at[bucket].set(page),
        after=index.after.at[page].set(first, mode="drop"),
        before=index.before.at[page].set(~bucket, mode="drop").at[first].set(page, mode="drop"),
        totals=index.totals.at[STORED].add(1),
    )


def _out_of_its_list(index: Index, page: Number) -> Index:
    """The index without a page in the list of the bucket that it was entered in, if it was."""
    before, after = index.before[page], index.after[page]
    is_first, is_later = before < 0, (before >= 0) & (before != INVALID)
    there = is_first | is_later
    return index._replace(
        buckets=index.buckets.at[jnp.where(is_first, ~before, INVALID)].set(after, mode="drop"),
        after=index.after.at[jnp.where(is_later, before, INVALID)].set(after, mode="drop"),
        before=index.before.at[jnp.where(there, after, INVALID)].set(before, mode="drop"),
    )


def bucket_of(
    index: Index, context: Number, parent: Number, tokens: Int32[Array, " page_size"]
) -> Number:
    """The bucket of a key."""
    words = jnp.concatenate([jnp.stack([context, parent]), tokens]).astype(jnp.uint32)
    powers = [pow(_BASE, power, 2**32) for power in range(words.shape[0])]
    hashed = jnp.sum(words * np.array(powers, np.uint32), dtype=jnp.uint32)
    hashed = (hashed ^ hashed >> 15) * jnp.uint32(_FACTOR)
    bucket: Number = ((hashed ^ hashed >> 16) % index.buckets.shape[0]).astype(jnp.int32)
    return bucket


def _row(texts: Int32[Array, "M page_size"], entry: Number) -> Int32[Array, " page_size"]:
    """The tokens of a page of a text."""
    return texts.at[entry].get(mode="clip")
