"""Rung prefix: pages are found again by their content, after their sequence and before it ends.

An index has one page for a key: a context and the tokens up to the end of the page. Publish enters
whole committed pages in it, Hit begins a sequence with pages of it, and Merge moves a row entry to
a page of it with the same content. A page of the index stays when no row names it any more, until
it is taken for other tokens, or Evict or Drop removes it. Share begins a sequence with pages of
another one, which the caller names.

Seen from below, every sequence has private copies of everything, and a hit is an allocation and a
write of the same cells: no sequence can observe that a page was computed for another one. Source:
docs/sources.md, "Prefix cache".
"""

from collections.abc import Iterator

from attrs import evolve

from spec import index, pool
from spec.machines.actions import (
    Action,
    Allocate,
    Clone,
    Drop,
    Evict,
    Free,
    Hit,
    Merge,
    Publish,
    Release,
    Reserve,
    Share,
    Write,
)
from spec.machines.pages import (
    SLOT_IN_USE,
    evicted,
    in_range,
    in_use,
    live_cells,
    release_row,
    reserved_slot,
    row_pages,
    take,
    taken_pages,
    used,
    with_entry,
    with_sequence,
)
from spec.machines.sharing import lower as lower_to_private
from spec.machines.sharing import private
from spec.rung import (
    Edge,
    Faults,
    Machine,
    Meet,
    Pages,
    Part,
    Rule,
    Rung,
    Stage,
    check,
    in_order,
)
from spec.state import State
from spec.vocabulary import INVALID, Reason, Tokens


def key(state: State, slot: int, entry: int) -> tuple[int, Tokens]:
    """The key of a page of a slot: its context, and the tokens up to the end of the page."""
    tokens = used(state, slot).tokens[: (entry + 1) * state.geometry.page_size]
    return state.contexts[slot], tokens


def found(state: State, slot: int, pages: int) -> Pages:
    """The pages of the index with the first keys of a slot: so many, or as many as there are."""
    pages_found = list[int]()
    for entry in range(min(pages, len(used(state, slot).tokens) // state.geometry.page_size)):
        page = index.find(state.indexed, *key(state, slot, entry))
        if page is None:
            break
        pages_found.append(page)
    return tuple(pages_found)


@check(Reason.SLOT_BEGUN)
def _without_cells(_machine: Machine, state: State, action: Hit | Share) -> Faults:
    """The slot has cells."""
    allocated = used(state, action.slot).allocated
    if allocated:
        yield allocated, "0 cells"


@check(Reason.TOO_LONG)
def _shorter_than_known(_machine: Machine, state: State, action: Hit | Share) -> Faults:
    """`length` is not below the number of known tokens: the last one is always computed."""
    known = len(used(state, action.slot).tokens)
    if action.length >= known:
        yield action.length, f"below {known} tokens"


@check(Reason.NOT_INDEXED)
def _all_found(_machine: Machine, state: State, action: Hit) -> Faults:
    """`length` is not a whole number of pages, 1 or more, each of which the index has."""
    size = state.geometry.page_size
    pages = len(found(state, action.slot, state.geometry.pages_per_seq))
    if action.length % size or not 0 < action.length <= pages * size:
        yield action.length, f"1 to {pages} whole pages of {size} cells"


def common(state: State, parent: int, slot: int) -> Pages:
    """The whole committed pages with which a parent begins, as far as a slot has their tokens."""
    if state.contexts[parent] != state.contexts[slot]:
        return ()
    size, row, pages = state.geometry.page_size, used(state, parent).row, list[int]()
    for entry in range(min(state.committed[parent], len(used(state, slot).tokens)) // size):
        if row[entry] == INVALID or key(state, parent, entry) != key(state, slot, entry):
            break
        pages.append(row[entry])
    return tuple(pages)


@check(Reason.NOT_COMMON)
def _all_common(_machine: Machine, state: State, action: Share) -> Faults:
    """`length` is not a whole number of pages, 1 or more, which both slots can begin with.

    Their context and tokens are the same, and the cells of `parent` are committed.
    """
    size, pages = state.geometry.page_size, len(common(state, action.parent, action.slot))
    if action.length % size or not 0 < action.length <= pages * size:
        yield action.length, f"1 to {pages} whole pages of {size} cells"


@check(Reason.OUT_OF_PAGES)
def _begun_fits(machine: Machine, state: State, action: Hit | Share) -> Faults:
    """More pages are taken ahead than are free or idle, beside those that the slot begins with."""
    wanted = machine.pages_wanted(state, action)
    free = pool.free_count(_begun(state, action).in_use)
    if wanted > free:
        yield wanted, f"at most {free} pages"


def _pages_wanted(_machine: Machine, state: State, action: Hit | Share) -> int:
    """What the row lacks, beside the pages that it begins with, of what is taken ahead."""
    sequence = used(state, action.slot)
    whole = row_pages(state, action.length, sequence.reserved)
    return max(0, whole - max(len(sequence.row), action.length // state.geometry.page_size))


def _first_pages(state: State, action: Hit | Share) -> Pages:
    """The pages of an action that nothing refuses."""
    if isinstance(action, Hit):
        return found(state, action.slot, action.length // state.geometry.page_size)
    return used(state, action.parent).row[: action.length // state.geometry.page_size]


def _begun(state: State, action: Hit | Share) -> State:
    """The state in which the row begins with the pages of an action, and takes none beside."""
    slot, sequence, pages = action.slot, used(state, action.slot), _first_pages(state, action)
    state = release_row(state, sequence.row[: len(pages)])
    grown = evolve(
        sequence,
        row=pages + sequence.row[len(pages) :],
        allocated=action.length,
        written=action.length,
    )
    state = with_sequence(state, slot, grown)
    return state._replace(
        counts=pool.hold(state.counts, pages),
        indexed=index.held(state.indexed, pages),
        committed=with_entry(state.committed, slot, action.length),
    )


def _begin(machine: Machine, state: State, action: Hit | Share, pages: Pages | None) -> State:
    wanted = machine.pages_wanted(state, action)
    state = _begun(state, action)
    taken = taken_pages(state, wanted, pages)
    sequence = used(state, action.slot)
    grown = evolve(sequence, row=sequence.row + taken)
    return with_sequence(take(state, taken), action.slot, grown)


def _share(machine: Machine, state: State, action: Share, pages: Pages | None) -> State:
    stale = with_entry(state.stale, action.slot, state.stale[action.parent])
    return _begin(machine, state, action, pages)._replace(stale=stale)


@check(Reason.STALE)
def _not_stale(_machine: Machine, state: State, action: Publish | Merge) -> Faults:
    """The slot has cells from before the last Drop."""
    if state.stale[action.slot]:
        yield action.slot, "a slot whose cells were all written since the last Drop"


@check(Reason.UNCOMMITTED)
def _within_committed(_machine: Machine, state: State, action: Publish) -> Faults:
    """`length` is above `committed`."""
    committed = state.committed[action.slot]
    if action.length > committed:
        yield action.length, f"at most {committed} committed cells"


def _publish(_machine: Machine, state: State, action: Publish, _pages: Pages | None) -> State:
    row = used(state, action.slot).row
    for entry in range(action.length // state.geometry.page_size):
        context, chain = key(state, action.slot, entry)
        if index.find(state.indexed, context, chain) is not None:
            continue
        if row[entry] == INVALID:  # what follows would enter without the page before it
            break
        state = state._replace(indexed=index.enter(state.indexed, row[entry], context, chain))
    return state


@check(Reason.UNCOMMITTED)
def _entry_committed(_machine: Machine, state: State, action: Merge) -> Faults:
    """The page of the entry is not committed to its end."""
    end, committed = (action.entry + 1) * state.geometry.page_size, state.committed[action.slot]
    if end > committed:
        yield end, f"at most {committed} committed cells"


@check(Reason.NOT_INDEXED)
def _equal_found(_machine: Machine, state: State, action: Merge) -> Faults:
    """The entry is released, or the index has no other page with its key."""
    page = used(state, action.slot).row[action.entry]
    if page == INVALID or _equal(state, action) in (None, page):
        yield action.entry, "an entry whose key another page has in the index"


def _equal(state: State, action: Merge) -> int | None:
    return index.find(state.indexed, *key(state, action.slot, action.entry))


def _merge(_machine: Machine, state: State, action: Merge, _pages: Pages | None) -> State:
    sequence, equal = used(state, action.slot), _equal(state, action)
    assert equal is not None
    old, row = sequence.row[action.entry], with_entry(sequence.row, action.entry, equal)
    state = with_sequence(state, action.slot, evolve(sequence, row=row))
    state = state._replace(
        counts=pool.hold(state.counts, (equal,)), indexed=index.held(state.indexed, (equal,))
    )
    return release_row(state, (old,))


@check(Reason.NOT_INDEXED)
def _key_found(_machine: Machine, state: State, action: Evict) -> Faults:
    """The index has no page with this key."""
    if index.find(state.indexed, action.context, action.tokens) is None:
        yield action.tokens, "the key of a page of the index"


@check(Reason.NOT_IDLE)
def _key_idle(_machine: Machine, state: State, action: Evict) -> Faults:
    """A row names the page with this key."""
    page = index.find(state.indexed, action.context, action.tokens)
    if page is not None and not pool.is_free(state.counts, page):
        yield state.counts[page], "a page with count 0"


def _evict(_machine: Machine, state: State, action: Evict, _pages: Pages | None) -> State:
    page = index.find(state.indexed, action.context, action.tokens)
    assert page is not None
    return evicted(state, (page,))


def _drop(_machine: Machine, state: State, _action: Drop, _pages: Pages | None) -> State:
    stale = tuple(
        before or bool(sequence and sequence.written)
        for before, sequence in zip(state.stale, state.sequences, strict=True)
    )
    return evicted(state, tuple(range(state.geometry.pages)))._replace(stale=stale)


def _reserve_context(_machine: Machine, before: State, action: Reserve, after: State) -> State:
    slot = reserved_slot(before, action.slot)
    return after._replace(contexts=with_entry(after.contexts, slot, action.context))


def _clone_copies(_machine: Machine, before: State, action: Clone, after: State) -> State:
    child, parent = reserved_slot(before, action.child), action.parent
    return after._replace(
        contexts=with_entry(after.contexts, child, before.contexts[parent]),
        stale=with_entry(after.stale, child, before.stale[parent]),
    )


def _free_forgets(_machine: Machine, before: State, action: Free, after: State) -> State:
    slot = reserved_slot(before, action.slot)
    return after._replace(
        contexts=with_entry(after.contexts, slot, 0),
        stale=with_entry(after.stale, slot, entry=False),
    )


def _initial(state: State) -> State:
    sizes = state.geometry
    return state._replace(
        indexed=(None,) * sizes.pages,
        contexts=(0,) * sizes.slots,
        stale=(False,) * sizes.slots,
    )


def _lower(machine: Machine, state: State, action: Action, pages: Pages | None) -> tuple[Part, ...]:
    """A hit allocates and writes its cells. The index is invisible. A clone shares nothing."""
    match action:
        case Publish() | Merge() | Evict() | Drop():
            return ()
        case Hit(slot=slot, length=length) | Share(slot=slot, length=length):
            batch = tuple((slot, position) for position in range(length))
            (allocate,) = lower_to_private(machine, state, Allocate(batch), None)
            return (allocate, (Write(batch), None))
        case Clone():
            parts = lower_to_private(machine, state, action, pages)
            if state.capacity.ring:
                parts = tuple(_page_by_page(state, parts))
            return (*parts, *_released(state, action))
        case _:
            return lower_to_private(machine, state, action, pages)


def _page_by_page(state: State, parts: tuple[Part, ...]) -> Iterator[Part]:
    """The parts of a private copy, one page after another: a ring gives way to each."""
    size = state.geometry.page_size
    *begin, (allocate, taken), _ = parts
    assert isinstance(allocate, Allocate)
    yield from begin
    for entry, page in enumerate(taken or ()):
        batch = allocate.batch[entry * size : (entry + 1) * size]
        yield Allocate(batch), (page,)
        yield Write(batch), None


def _released(state: State, action: Clone) -> tuple[Part, ...]:
    """What releases, of a private copy of a parent, the pages that the parent has released."""
    first = state.first_page[action.parent] if state.first_page else 0
    child = reserved_slot(state, action.child)
    return ((Release(child, first * state.geometry.page_size), None),) if first else ()


def _compared(state: State) -> object:
    return live_cells(state), state.committed, state.proposed, state.first_page


RUNG = Rung(
    name="prefix",
    requires=("rollback",),
    owns=("indexed", "contexts", "stale"),
    initial=_initial,
    rules={
        Hit: Rule(
            stages=(
                *SLOT_IN_USE,
                *in_order(_without_cells, _shorter_than_known, _all_found, _begun_fits),
            ),
            effect=_begin,
            pages_wanted=_pages_wanted,
        ),
        Share: Rule(
            stages=(
                *in_order(in_range("parent"), in_range("slot"), in_use("parent"), in_use("slot")),
                *in_order(_without_cells, _shorter_than_known, _all_common, _begun_fits),
            ),
            effect=_share,
            pages_wanted=_pages_wanted,
        ),
        Publish: Rule(
            stages=(*SLOT_IN_USE, Stage((_not_stale, _within_committed))), effect=_publish
        ),
        Merge: Rule(
            stages=(
                *SLOT_IN_USE,
                Stage((_not_stale, _entry_committed)),
                *in_order(_equal_found),
            ),
            effect=_merge,
        ),
        Evict: Rule(stages=in_order(_key_found, _key_idle), effect=_evict),
        Drop: Rule(effect=_drop),
    },
    follows={Reserve: _reserve_context, Clone: _clone_copies, Free: _free_forgets},
    clauses=("PC", "CHAIN", "EVICT"),
    edges=(Edge(abstract=private, lower=_lower, compared=_compared),),
    meets={
        "naive": "independent",
        "cache": "independent",
        "pages": Meet("EVICT", "Allocate takes an idle page"),
        "sharing": Meet("RC", "hit a page that a row names"),
        "rollback": Meet("PC", "publish below drafts"),
        "window": Meet("PC", "publish after a release"),
    },
)
