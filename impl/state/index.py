"""The index of pages by content: a page is found again by its context and all tokens up to its end.

The index is closed under prefix, and has one page for a key. So the key of a page is the page
before it, its own tokens and its context: two pages with equal keys have the same page before them.
Keys are compared token by token. A hash only says in which bucket a page is looked for. A bucket is
a doubly linked list, and a page that leaves the index stays in its list until it enters again: so
what an allocation takes out of the index costs it little, and no list has more than all pages.

A page of the index that no row names is idle. Which page that is, only `pages.counts` says. Source:
docs/sources.md, "Prefix cache".
"""

from typing import Final, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Int32

from impl.setup import Setup
from impl.state.pages import Pages, is_free
from impl.status import target
from spec.vocabulary import INVALID

HITS: Final = 0
STORED: Final = 1
DROPPED: Final = 2
"""Places in `Index.totals`."""

Flag = Bool[Array, ""]
Number = Int32[Array, ""]
OUTSIDE: Final = -1
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
    (at,) = jnp.nonzero(gone, size=pages.shape[0], fill_value=0)

    def step(turn: Array, keys: tuple[Array, Array]) -> tuple[Array, Array]:
        return _cut_off(*keys, pages[at[turn]])

    keys = index.parents, index.children
    parents, children = lax.fori_loop(0, jnp.sum(gone, dtype=jnp.int32), step, keys)
    return index._replace(parents=parents, children=children)


def with_idle(
    index: Index, pages: Pages, free: Int32[Array, " N"], wanted: Number
) -> Int32[Array, " N"]:
    """The pages that are taken next: those `free`, then idle ones until there are `wanted`.

    free: ids past the pool follow the free pages. Each idle page costs a pass over the pool. The
    index stays as it is, see `without`.
    """

    def goes_on(carry: tuple[Array, Number, Flag]) -> Flag:
        _, count, is_dry = carry
        return (count < jnp.minimum(wanted, free.shape[0])) & ~is_dry

    def step(carry: tuple[Array, Number, Flag]) -> tuple[Array, Number, Flag]:
        taken, count, _ = carry
        page, there = _first_idle(index, pages, taken)
        taken = taken.at[jnp.where(there, count, INVALID)].set(page, mode="drop")
        return taken, count + there, ~there

    count = jnp.sum(free < index.parents.shape[0], dtype=jnp.int32)
    taken, *_ = lax.while_loop(goes_on, step, (free, count, jnp.bool_(0)))
    return taken


def _first_idle(index: Index, pages: Pages, taken: Int32[Array, " N"]) -> tuple[Number, Flag]:
    """The idle page that goes first, once those `taken` are out of the index; whether there is one.

    The one that was released first, of those that no page of the index extends; if there is none,
    of those that no idle page extends. Of several, the lowest.
    """
    gone = index.holds.at[taken].get(mode="fill", fill_value=False)
    above = index.parents.at[jnp.where(gone, taken, INVALID)].get(mode="fill", fill_value=INVALID)
    children = index.children.at[above].add(-1, mode="drop")
    idle = idle_pages(index, pages.counts).at[taken].set(False, mode="drop")
    ends = _ends(index, idle, children)
    ages = jnp.where(ends, pages.released - pages.clock, 1)
    return jnp.argmin(ages).astype(jnp.int32), jnp.any(ends)


def idle_pages(index: Index, counts: Int32[Array, " P"]) -> Bool[Array, " P"]:
    """Which pages are in the index and named by no row."""
    return index.holds & is_free(counts)


def _ends(index: Index, idle: Bool[Array, " P"], children: Int32[Array, " P"]) -> Bool[Array, " P"]:
    """The idle pages that no page of the index extends; if there is none, that no idle one does."""
    number = index.parents.shape[0]
    last = idle & (children == 0)

    def parents_of(pages: Bool[Array, " P"]) -> Bool[Array, " P"]:
        at = target(index.holds & pages, index.parents, number)
        return jnp.zeros_like(pages).at[at].set(True, mode="drop")

    def step(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        extended, new = carry
        above = parents_of(new) & ~extended
        return extended | above, above

    nobody = jnp.zeros_like(idle)
    begin = nobody, jnp.where(jnp.any(last), nobody, idle)
    extended, _ = lax.while_loop(lambda carry: jnp.any(carry[1]), step, begin)
    return jnp.where(jnp.any(last), last, idle & ~extended)


def _cut_off(
    parents: Int32[Array, " P"], children: Int32[Array, " P"], page: Number
) -> tuple[Int32[Array, " P"], Int32[Array, " P"]]:
    """Parents and children without a page and all that extend it."""
    number = parents.shape[0]

    def step(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        gone, _ = carry
        more = gone.at[parents].get(mode="fill", fill_value=False, wrap_negative_indices=False)
        return gone | more, jnp.any(more & ~gone)

    only = jnp.zeros((number,), jnp.bool_).at[page].set(True)
    gone, _ = lax.while_loop(lambda carry: carry[1], step, (only, children[page] > 0))
    above = target(gone, parents, number)
    return jnp.where(gone, OUTSIDE, parents), children.at[above].add(-1, mode="drop")


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
