"""The index of pages by content: which page holds the cells of a prefix, and which one goes first.

The key of a page is a context and all tokens up to the end of the page, never a hash of them: an
engine that compares hashes alone differs at their first collision. A page of the index that no row
names is idle: it can be found, and taken for other tokens. The index holds no count. In a machine
without the rung prefix it is empty, and every page that no row names is free. Source:
docs/sources.md, "Prefix cache".
"""

from collections.abc import Iterable

from attrs import evolve, frozen

from spec import pool
from spec.pool import Counts
from spec.vocabulary import Tokens


@frozen
class Indexed:
    """One page of the index.

    context, chain: its key, the tokens up to the end of the page. rank: 0 while some row names it;
    else the rank of its last release among those of the idle pages, from 1 on, the oldest first.
    """

    context: int
    chain: Tokens
    rank: int = 0


Index = tuple[Indexed | None, ...]
"""`index[page]`; None if the page is not in the index; () in a machine without the rung."""


def has(index: Index, page: int) -> bool:
    """Whether the index has a page."""
    return bool(index) and index[page] is not None


def find(index: Index, context: int, chain: Tokens) -> int | None:
    """The page with this key; None if the index has none."""
    for page, entry in enumerate(index):
        if entry is not None and entry.context == context and entry.chain == chain:
            return page
    return None


def extensions(index: Index, page: int) -> tuple[int, ...]:
    """The pages whose key extends that of a page of the index."""
    assert index[page] is not None
    return tuple(sorted(_beyond(_children(index), page)))


def _children(index: Index) -> dict[int, list[int]]:
    """For each page of the index, the pages whose key has one page more.

    The index is closed under prefix, so that its shortest key has one page, and all that extends a
    page is found over its children.
    """
    pages = {(entry.context, entry.chain): page for page, entry in enumerate(index) if entry}
    size = min((len(chain) for _, chain in pages), default=0)
    children = {page: list[int]() for page in pages.values()}
    for (context, chain), page in pages.items():
        before = pages.get((context, chain[:-size]))
        if before is not None:
            children[before].append(page)
    return children


def _beyond(children: dict[int, list[int]], page: int) -> list[int]:
    """The children of a page, their children, and so on."""
    found = list(children[page])
    for child in found:
        found += children[child]
    return found


def idle(index: Index, counts: Counts) -> tuple[int, ...]:
    """The pages of the index that no row names, lowest first."""
    return tuple(page for page in pool.free_pages(counts) if has(index, page)) if index else ()


def enter(index: Index, page: int, context: int, chain: Tokens) -> Index:
    """The index with a page that some row names."""
    return _replace(index, {page: Indexed(context, chain)})


def without(index: Index, pages: Iterable[int]) -> Index:
    """The index without these pages, and without all that extend them."""
    gone = {page for page in pages if has(index, page)}
    if not gone:
        return index
    children = _children(index)
    for page in tuple(gone):
        gone.update(_beyond(children, page))
    return _dense(_replace(index, dict.fromkeys(gone)))


def held(index: Index, pages: Iterable[int]) -> Index:
    """The index after rows name these pages of it."""
    return _dense(_ranked(index, pages, 0))


def released(index: Index, pages: Iterable[int]) -> Index:
    """The index after the last rows that name these pages of it have let go of them, at once."""
    if not index:
        return index
    newest = max((entry.rank for entry in index if entry), default=0) + 1
    return _ranked(index, pages, newest)


def next_pages(index: Index, counts: Counts, wanted: int) -> tuple[int, ...]:
    """The `wanted` pages that are taken next; fewer if there are fewer.

    First the lowest free pages. Then the idle page that was released first, of those that no page
    of the index extends; if there is none, of those that no idle page extends, so that only live
    pages leave the index with it. Of several, the lowest.
    """
    if not index:
        return pool.lowest_free(counts, wanted)
    free = [page for page in pool.lowest_free(counts, len(counts)) if not has(index, page)]
    if wanted <= len(free):
        return tuple(free[:wanted])
    return (*free, *_next_idle(index, counts, wanted - len(free)))


def _next_idle(index: Index, counts: Counts, wanted: int) -> list[int]:
    """The `wanted` idle pages that are taken next; fewer if there are fewer."""
    oldest_first = sorted(idle(index, counts), key=lambda page: (_rank(index, page), page))
    left, taken = dict.fromkeys(oldest_first), list[int]()
    children = _children(index)
    parents = {child: page for page, more in children.items() for child in more}
    while len(taken) < wanted and left:
        page = next((page for page in left if not children[page]), None)
        if page is None:
            page = next(page for page in left if left.keys().isdisjoint(_beyond(children, page)))
        taken.append(page)
        del left[page]
        gone = (page, *_beyond(children, page))
        if page in parents:
            children[parents[page]].remove(page)
        for one in gone:
            del children[one]
    return taken


def _rank(index: Index, page: int) -> int:
    entry = index[page]
    assert entry is not None
    return entry.rank


def _ranked(index: Index, pages: Iterable[int], rank: int) -> Index:
    entries = {page: index[page] for page in pages if has(index, page)}
    return _replace(
        index, {page: entry and evolve(entry, rank=rank) for page, entry in entries.items()}
    )


def _dense(index: Index) -> Index:
    """The index with ranks from 1 on and none left out."""
    ranks = sorted({entry.rank for entry in index if entry} | {0})
    dense = {rank: place for place, rank in enumerate(ranks)}
    return tuple(
        Indexed(entry.context, entry.chain, dense[entry.rank])
        if entry and entry.rank != dense[entry.rank]
        else entry
        for entry in index
    )


def _replace(index: Index, changed: dict[int, Indexed | None]) -> Index:
    if not changed:
        return index
    entries = list(index)
    for page, entry in changed.items():
        entries[page] = entry
    return tuple(entries)
