"""Rung prefix: generators of publications, hits, shares and evictions; outcomes to reach."""

from collections.abc import Iterator
from itertools import permutations
from typing import Final

from attrs import evolve

from conformance.history import Step
from conformance.rungs.pages import needs_page
from conformance.rungs.record import (
    CHAINS,
    FULL_POOL,
    HITS,
    MERGES_ASKED,
    RELEASES,
    WHOLE_PAGE,
    ActionKit,
    Move,
    RungKit,
    Session,
)
from conformance.rungs.rollback import fill_a_page
from conformance.rungs.scheduling import make_room
from conformance.rungs.shared_generators import (
    ALPHABET,
    Digits,
    begin_anew,
    free_slots,
    has_used,
    used_slots,
    when,
    wild_slot,
)
from conformance.rungs.shared_moves import allocating, fixed, writing
from conformance.rungs.simpler import smaller
from spec import index, ladder, pool
from spec.index import Indexed
from spec.machines.actions import (
    Action,
    Admit,
    Allocate,
    Assign,
    Clone,
    Drop,
    Enqueue,
    Evict,
    Free,
    FreeFinished,
    Hit,
    Merge,
    Pack,
    Prefill,
    Propose,
    Publish,
    Reserve,
    Reset,
    Share,
    Truncate,
    Write,
)
from spec.machines.pages import used
from spec.machines.prefix import found, key
from spec.state import State
from spec.vocabulary import INVALID, Geometry, Limits, Params, Reason, Request, Tokens

MACHINE: Final = ladder.whole()
CONTEXTS: Final = 3
"""Slots are reserved under few contexts, so that texts often differ in nothing else."""


def publish(state: State, drawn: int) -> Publish:
    """All that is committed, up to a page boundary or a cell past one, or a cell too many."""
    digits, size = Digits(drawn), state.geometry.page_size
    slot = wild_slot(state, digits, _publishable(state) or used_slots(state))
    if any(state.stale) and digits.rarely(4):
        slot = digits.one_of(_stale(state))
    if not 0 <= slot < state.geometry.slots:
        return Publish(slot, size)
    committed = state.committed[slot]
    whole = committed - committed % size
    return Publish(slot, digits.one_of((committed, whole, size, committed + 1, whole + size, 0)))


def publish_somewhere(session: Session, drawn: int) -> Step:
    """A publication; sometimes of a slot with a page of written drafts."""
    digits = Digits(drawn)
    if not digits.rarely(6) or not {Propose, Pack, Allocate, Write} <= session.actions:
        return publish(session.state, drawn // 6)
    slot = fill_a_page(session, digits)
    if slot is None or session.state.sequences[slot] is None:
        return publish(session.state, drawn // 6)
    return Publish(slot, session.state.committed[slot])


def _any_hit(state: State, drawn: int) -> Hit:
    """All that the index has of a text, fewer pages, a page more, or part of a page."""
    digits, size = Digits(drawn), state.geometry.page_size
    waiting = _without_cells(state)
    slot = wild_slot(state, digits, waiting or used_slots(state))
    if not 0 <= slot < state.geometry.slots or state.sequences[slot] is None:
        return Hit(slot, size)
    whole = len(_found(state, slot)) * size
    lengths = (whole, size, whole, whole - size, whole + size, whole + 1, 0)
    return Hit(slot, max(0, digits.one_of(lengths)))


def hit(session: Session, drawn: int) -> Step:
    """A hit; mostly of a sequence that begins with a key of the index. What that lacks is entered.

    Under another context, for a text that is put together from pages of others, or with a queued
    token below the length, it is refused. Sometimes another slot is freed, reserved or given cells
    between the prompt and the hit.
    """
    digits = Digits(drawn)
    if digits.rarely(3):
        return _any_hit(session.state, drawn // 3)
    entries = _hittable(session.state)
    if not entries:
        _publish_first(session, digits)
        entries = _hittable(session.state)
    used = used_slots(session.state)
    if not session.state.unused_slots and used:
        session.take(Free(digits.one_of(used)))
    if not entries or not session.state.unused_slots:
        return session.rules["publish"](session, drawn)
    entry, size = digits.one_of(entries), session.state.geometry.page_size
    chain = entry.chain if digits.below(4) else _recombined(entries, digits, size)
    slot = begin(session, chain, entry.context, digits)
    pages = len(chain) // size
    return Hit(slot, (1 + digits.below(pages) if digits.rarely(3) else pages) * size)


def share(session: Session, drawn: int) -> Step:
    """A share; mostly of whole pages that a new sequence has in common with another one.

    As for a hit, it is sometimes refused for the context, the text, or a queued token. Sometimes
    the index was dropped before.
    """
    digits = Digits(drawn)
    if digits.rarely(3):
        return _any_share(session.state, drawn // 3)
    if not _shareable(session.state):
        _write(session, _whole_text(session.state, digits), digits.below(CONTEXTS), digits)
    parents = _shareable(session.state)
    others = [slot for slot in used_slots(session.state) if slot not in parents[:1]]
    if not session.state.unused_slots and others:
        session.take(Free(digits.one_of(others)))
    if not parents or not session.state.unused_slots:
        return _any_share(session.state, drawn // 3)
    if digits.rarely(6):
        session.take(Drop())
    parent, state = parents[0], session.state
    pages = whole_pages(state, parent)
    text = used(state, parent).tokens[: pages * state.geometry.page_size]
    if digits.rarely(6):
        text = text[::-1]
    if digits.rarely(6) and {Propose, Pack, Allocate, Write} <= session.actions:
        return _share_drafts(session, digits)
    slot = begin(session, text, state.contexts[parent], digits)
    most = 1 + digits.below(pages) if digits.rarely(3) else pages
    return Share(parent, slot, most * state.geometry.page_size)


def _share_drafts(session: Session, digits: Digits) -> Step:
    """A share of a page of written drafts, by a sequence for which their tokens are known."""
    parent = fill_a_page(session, digits)
    if parent is None or session.state.sequences[parent] is None:
        return _any_share(session.state, digits.below(64))
    others = [slot for slot in used_slots(session.state) if slot != parent]
    if not session.state.unused_slots and others:
        session.take(Free(digits.one_of(others)))
    state, size = session.state, session.state.geometry.page_size
    held = state.sequences[parent]
    if held is None or not state.unused_slots or held.written < size:
        return _any_share(state, digits.below(64))
    most = min(held.written, state.geometry.max_len - 2) // size * size
    text = (*held.tokens, *state.proposed[parent])[:most]
    if not text:
        return _any_share(state, digits.below(64))
    slot = begin(session, text, state.contexts[parent], digits)
    return Share(parent, slot, most)


def _any_share(state: State, drawn: int) -> Share:
    """A share of a page, of more or fewer cells, with any slots."""
    digits, size = Digits(drawn), state.geometry.page_size
    parent = wild_slot(state, digits, _shareable(state) or used_slots(state))
    slot = wild_slot(state, digits, _without_cells(state) or used_slots(state))
    return Share(parent, slot, digits.one_of((size, 2 * size, size + 1, size - 1, 0)))


def whole_pages(state: State, slot: int) -> int:
    """The whole committed pages of a slot that a prompt can go past."""
    most = min(state.committed[slot], state.geometry.max_len - 2)
    return most // state.geometry.page_size


def _shareable(state: State) -> list[int]:
    """The slots that begin with a whole committed page."""
    return [
        slot
        for slot in used_slots(state)
        if whole_pages(state, slot) and used(state, slot).row[0] != INVALID
    ]


def begin(session: Session, chain: Tokens, context: int, digits: Digits) -> int:
    """A new sequence without cells begins with a text; sometimes under another context.

    Some of its last tokens may be queued. Sometimes another slot is freed, reserved or given cells
    after that, or all pages that are left.
    """
    slot = free_slots(session.state)[0]
    session.take(Reserve(slot, context if not digits.rarely(8) else context + 1))
    text = (*chain, digits.below(ALPHABET))
    queued = digits.below(3) if Enqueue in session.actions else 0
    prompt = text[: max(1, len(text) - queued)]
    most = session.state.geometry.max_len - len(prompt)
    params = Params(max_new=min(most, 2 + queued))
    session.take(Assign(slot, prompt, params, session.next_id()))
    for token in text[len(prompt) :]:
        session.take(Enqueue(slot, token))
    if digits.rarely(2):
        session.take(_beside(session.state, slot, digits))
    if digits.rarely(12):
        use_up_pages(session, digits, but=slot)
    return slot


def _recombined(entries: list[Indexed], digits: Digits, size: int) -> Tokens:
    """Pages of one key, and then a page of another one, perhaps in the reverse order.

    An index by a hash that does not tell them apart finds a page for it.
    """
    one, other = digits.one_of(entries).chain, digits.one_of(entries).chain
    cut, start = size * digits.below(len(one) // size), size * digits.below(len(other) // size)
    page = other[start : start + size]
    return (*one[:cut], *(page[::-1] if digits.rarely(2) else page))


def _beside(state: State, slot: int, digits: Digits) -> Action:
    """A step of another slot: it is reserved, ends, or gets cells up to the end of a page."""
    others = [other for other in used_slots(state) if other != slot]
    if not others or (state.unused_slots and digits.below(2)):
        return Reserve(None, digits.below(CONTEXTS))
    other = digits.one_of(others)
    full = used(state, other).allocated >= state.geometry.max_len
    return Free(other) if full or digits.rarely(2) else _more_cells(state, other)


def merge(session: Session, drawn: int) -> Step:
    """A merge of a page whose key another page has; mostly such a page is written first."""
    digits = Digits(drawn)
    mergeable = _mergeable(session.state)
    if not mergeable and digits.below(3):
        _write_twice(session, digits)
        mergeable = _mergeable(session.state)
    if mergeable and not digits.rarely(6):
        slot, entry = digits.one_of(mergeable)
        if digits.rarely(4):  # others then keep the page
            clone = Clone(slot, None, 1 + digits.below(ALPHABET))
            make_room(session, clone, digits)
            session.take(clone)
        return Merge(slot, entry)
    state = session.state
    slot = wild_slot(state, digits, _stale(state) or used_slots(state))
    return Merge(slot, digits.below(state.geometry.pages_per_seq + 1))


def evict(session: Session, drawn: int) -> Step:
    """An eviction, or the allocation that makes one; rarely the index is dropped."""
    digits = Digits(drawn)
    kind = digits.below(14)
    if kind > 11:
        return (staircase if kind == 12 else refill)(session, drawn // 14)
    if kind == 11:
        return Drop()
    if kind > 8:
        return clone_to_idle(session, drawn // 14)
    return _evict(session.state, drawn // 14) if kind < 6 else take_idle(session, drawn // 14)


def _evict(state: State, drawn: int) -> Evict:
    """An idle page, often one that others extend; rarely one that a row names, or none."""
    digits = Digits(drawn)
    entries = [entry for entry in state.indexed if entry]
    gone = [entry for entry in entries if entry.rank]
    if not entries or digits.rarely(12):
        size = state.geometry.page_size
        return Evict((digits.below(ALPHABET),) * size, digits.below(CONTEXTS))
    chosen = digits.one_of(gone if gone and not digits.rarely(4) else entries)
    return Evict(chosen.chain, chosen.context)


def staircase(session: Session, drawn: int) -> Step:
    """One text in every slot, each time a page longer, and published; then some slots are freed.

    So pages that some row names and idle ones alternate along a chain. Then pages are taken.
    """
    digits, sizes = Digits(drawn), session.state.geometry
    if {Reset, Assign, Allocate, Write} <= session.actions:
        begin_anew(session)
    token = digits.below(2)
    for slot in range(sizes.slots):
        length = min((slot + 1) * sizes.page_size, sizes.max_len - 1)
        length = min(length, session.state.limits.prefill_tokens)
        if session.state.unused_slots:
            _write(session, (token,) * length, 0, digits)
    for slot in _publishable(session.state):
        session.take(Publish(slot, session.state.committed[slot]))
    for slot in used_slots(session.state):
        if digits.below(2):
            session.take(Free(slot))
    return _take_until_evicted(session, digits)


def refill(session: Session, drawn: int) -> Step:
    """A page that others extend is evicted; the pages get other texts, and become idle in turn."""
    digits = Digits(drawn)
    make_idle(session, digits)
    state = session.state
    extended = [
        entry
        for page, entry in enumerate(state.indexed)
        if entry and entry.rank and index.extensions(state.indexed, page)
    ]
    if extended:
        chosen = digits.one_of(extended)
        session.take(Evict(chosen.chain, chosen.context))
    size = state.geometry.page_size
    for text in ((2,) * size, (3,) * size):
        slot = _write(session, text, 0, digits)
        if slot is not None and session.state.sequences[slot] is not None:
            session.take(Publish(slot, size))
            session.take(Free(slot))
    return _take_until_evicted(session, digits)


def take_idle(session: Session, drawn: int) -> Step:
    """What is published becomes idle, and the pages of the pool are taken until one is evicted."""
    digits = Digits(drawn)
    make_idle(session, digits)
    return _take_until_evicted(session, digits)


def _take_until_evicted(session: Session, digits: Digits) -> Step:
    """Pages are taken for some slots until idle ones alone are left, and then a few of those."""
    for _ in range(session.state.geometry.pages):
        state = session.state
        idle = len(index.idle(state.indexed, state.counts))
        if not idle or pool.free_count(state.in_use) <= idle:
            break
        session.take(_next_page(state, digits))
    for _ in range(digits.below(3)):
        session.take(_next_page(session.state, digits))
    return _next_page(session.state, digits)


def clone_to_idle(session: Session, drawn: int) -> Step:
    """A clone that copies a page where idle pages alone are left, or else a page that is taken.

    The parent has one page, and the slots beside it and the child have rows full of pages; so many
    pages as are left are idle before.
    """
    digits, sizes = Digits(drawn), session.state.geometry
    if not {Assign, Allocate, Write, Clone} <= session.actions:
        return take_idle(session, drawn)
    if Reset in session.actions:
        begin_anew(session)
    longest = min(sizes.max_len - 1, session.state.limits.prefill_tokens)
    fewest = sizes.pages - 1 - (sizes.slots - 2) * sizes.pages_per_seq
    for token in range(sizes.pages):
        state = session.state
        if len(index.idle(state.indexed, state.counts)) >= max(1, fewest):
            break
        slot = _write(session, (token,) * longest, 0, digits)
        if slot is not None and session.state.sequences[slot] is not None:
            session.take(Publish(slot, longest))
            session.take(Free(slot))
    _write(session, (2,) * (1 + digits.below(max(1, sizes.page_size - 1))), 0, digits)
    parents = [slot for slot in session.state.live if needs_page(session.state, slot)]
    if not parents:
        return _next_page(session.state, digits)
    use_up_pages(session, digits, but=parents[0], slots=sizes.slots - 1)
    return Clone(parents[0], None, 1 + digits.below(5))


def use_up_pages(
    session: Session, digits: Digits, *, but: int | None = None, slots: int | None = None
) -> None:
    """Slots get pages, until idle ones alone are left or rows are full.

    but: a slot that gets none. slots: the most slots that are in use then; all of them without.
    """
    for _ in range(2 * session.state.geometry.pages):
        state = session.state
        more = _next_page(state, digits, but=but)
        if pool.free_count(state.in_use) <= len(index.idle(state.indexed, state.counts)):
            return
        if isinstance(more, Reserve) and len(used_slots(state)) == slots:
            continue
        if not session.is_done(more):
            return
        session.take(more)


def make_idle(session: Session, digits: Digits) -> None:
    """Publish what can be, and free a slot with pages of the index."""
    for slot in _publishable(session.state):
        session.take(Publish(slot, session.state.committed[slot]))
    holding = [
        slot
        for slot in used_slots(session.state)
        if any(index.has(session.state.indexed, page) for page in used(session.state, slot).pages)
    ]
    if holding:
        session.take(Free(digits.one_of(holding)))


def _next_page(state: State, digits: Digits, *, but: int | None = None) -> Action:
    """Cells up to the end of a page for a slot with room, or a slot. but: a slot that gets none."""
    longest = state.geometry.max_len
    room = [
        slot
        for slot in used_slots(state)
        if slot not in {but, *state.finished} and used(state, slot).allocated < longest
    ]
    if not room or (state.unused_slots and digits.rarely(2)):
        return Reserve(None, digits.below(CONTEXTS))
    return _more_cells(state, digits.one_of(room))


def _more_cells(state: State, slot: int) -> Allocate:
    """Cells of a slot up to the end of a page, or as many as a batch and its row allow."""
    size, start = state.geometry.page_size, used(state, slot).allocated
    left = state.geometry.max_len - start
    cells = min(state.limits.prefill_tokens, left, size - start % size + size)
    return Allocate(tuple((slot, start + step) for step in range(cells)))


def _publishable(state: State) -> list[int]:
    """The slots with a whole committed page, of which the index may lack the key."""
    size = state.geometry.page_size
    return [
        slot
        for slot in used_slots(state)
        if state.committed[slot] >= size
        and not state.stale[slot]
        and len(_found(state, slot)) < state.committed[slot] // size
    ]


def _stale(state: State) -> list[int]:
    """The slots whose cells were written before the index was dropped."""
    return [slot for slot, is_stale in enumerate(state.stale) if is_stale]


def _found(state: State, slot: int) -> tuple[int, ...]:
    return found(state, slot, state.geometry.pages_per_seq)


def _without_cells(state: State) -> list[int]:
    """The slots with tokens and without cells, of which the index has a page; else all of them."""
    slots = [
        slot
        for slot in used_slots(state)
        if used(state, slot).tokens and not used(state, slot).allocated
    ]
    there = [slot for slot in slots if _found(state, slot)]
    return there or slots


def _hittable(state: State) -> list[Indexed]:
    """The pages of the index whose key a prompt can go past."""
    most = state.geometry.max_len - 2
    return [entry for entry in state.indexed if entry and len(entry.chain) <= most]


def _mergeable(state: State) -> list[tuple[int, int]]:
    """The row entries whose key another page has in the index."""
    entries = list[tuple[int, int]]()
    for slot in used_slots(state):
        row = used(state, slot).row
        for entry in range(state.committed[slot] // state.geometry.page_size):
            page = index.find(state.indexed, *key(state, slot, entry))
            if page not in (None, row[entry]) and not state.stale[slot]:
                entries.append((slot, entry))
    return entries


def _publish_first(session: Session, digits: Digits) -> None:
    """Enter the pages of a sequence in the index; of a new one, if none has a whole page."""
    if not _publishable(session.state):
        _write(session, _whole_text(session.state, digits), digits.below(CONTEXTS), digits)
    for slot in _publishable(session.state)[:1]:
        session.take(Publish(slot, session.state.committed[slot]))


def _write_twice(session: Session, digits: Digits) -> None:
    """Write one text in two slots, and publish one of them.

    Often the second slot writes it between two parts of the first one, which end anywhere.
    """
    text, context = _whole_text(session.state, digits), digits.below(CONTEXTS)
    part = 1 + digits.below(len(text)) if digits.rarely(2) else len(text)
    first = _write(session, text, context, digits, most=part)
    second = _write(session, text, context, digits)
    published = first if part == len(text) else second
    if published is not None and session.state.sequences[published]:
        session.take(Publish(published, session.state.committed[published]))
    if first is not None and session.state.sequences[first]:
        _fill(session, first, part, len(text))


def _whole_text(state: State, digits: Digits) -> tuple[int, ...]:
    """A text of a whole page or more, as long as a batch and a row allow it."""
    size = state.geometry.page_size
    most = max(1, min(state.limits.prefill_tokens, state.geometry.max_len - 1))
    pages = 1 + digits.below(max(1, most // size))
    return (digits.below(2),) * min(most, pages * size + digits.below(size))


def _write(
    session: Session,
    text: tuple[int, ...],
    context: int,
    digits: Digits,
    *,
    most: int | None = None,
) -> int | None:
    """Write a text in a slot, after what it lacks was freed; None if no slot is free.

    Sometimes another slot is reserved before its cells are written. most: so many of them.
    """
    make_room(session, Prefill((Request(id=session.next_id(), prompt=text, params=_ONE),)), digits)
    if not session.state.unused_slots:
        return None
    slot = free_slots(session.state)[0]
    cells = _cells(slot, 0, len(text) if most is None else most)
    session.take(Reserve(slot, context))
    session.take(Assign(slot, text, _ONE, session.next_id()))
    session.take(Allocate(cells))
    if digits.rarely(4) and session.state.unused_slots:
        session.take(Reserve(None, context))
    session.take(Write(cells))
    return slot


def _fill(session: Session, slot: int, start: int, end: int) -> None:
    """Write further cells of a slot."""
    if start < end:
        session.take(Allocate(_cells(slot, start, end)))
        session.take(Write(_cells(slot, start, end)))


def _cells(slot: int, start: int, end: int) -> tuple[tuple[int, int], ...]:
    return tuple((slot, position) for position in range(start, end))


def _simpler_length(action: Hit | Share | Publish) -> Iterator[Step]:
    for length in smaller(action.length):
        yield evolve(action, length=length)


def _simpler_evict(action: Evict) -> Iterator[Step]:
    if action.context:
        yield evolve(action, context=0)


def _hit_corners(before: State, action: Hit, after: State) -> Iterator[str]:
    hit_pages = used(after, action.slot).row[: action.length // before.geometry.page_size]
    if any(not pool.is_free(before.counts, page) for page in hit_pages):
        yield HIT_LIVE
    if any(pool.is_free(before.counts, page) for page in hit_pages):
        yield HIT_IDLE
    if {*pool.free_pages(before.counts)} <= {*hit_pages}:
        yield "hit with no other page to take"


def _share_corners(before: State, action: Share, _after: State) -> Iterator[str]:
    row = used(before, action.parent).row[: action.length // before.geometry.page_size]
    if any(index.has(before.indexed, page) for page in row):
        yield SHARED_INDEXED
    if before.stale[action.parent]:
        yield SHARED_STALE
    if before.proposed[action.parent]:
        yield SHARED_BELOW_DRAFTS


def _publish_corners(before: State, action: Publish, after: State) -> Iterator[str]:
    if before.indexed == after.indexed:
        return
    if before.proposed[action.slot]:
        yield BELOW_DRAFTS
    if before.first_page and before.first_page[action.slot]:
        yield AFTER_RELEASE
    if any(pool.is_shared(before.counts, page) for page in used(before, action.slot).pages):
        yield "publish pages that are shared"


def _merge_corners(before: State, action: Merge, _after: State) -> Iterator[str]:
    old = used(before, action.slot).row[action.entry]
    shared = pool.is_shared(before.counts, old)
    yield "merge a page that others keep" if shared else "merge a page that nobody keeps"


def _evict_corners(before: State, action: Evict, after: State) -> Iterator[str]:
    gone = [
        page
        for page, entry in enumerate(before.indexed)
        if entry and after.indexed[page] is None and len(entry.chain) > len(action.tokens)
    ]
    if any(pool.is_free(before.counts, page) for page in gone):
        yield EVICTED_BOTH


def _drop_corners(before: State, _action: Drop, _after: State) -> Iterator[str]:
    if any(entry and not entry.rank for entry in before.indexed):
        yield "drop pages that a row names"


def _always(before: State, action: Action, after: State) -> Iterator[str]:
    if not any(before.indexed):
        return
    idle = index.idle(before.indexed, before.counts)
    if any(not pool.is_free(after.counts, page) and after.indexed[page] is None for page in idle):
        yield takes_idle(type(action))
    if isinstance(action, Admit) and idle:
        yield ADMITTED
    if isinstance(action, Free | FreeFinished) and len(idle) < len(
        index.idle(after.indexed, after.counts)
    ):
        yield FREED


def alphabet(geometry: Geometry, _limits: Limits) -> Iterator[Move]:
    """One text of the longest length for every slot, and all that finds its pages again."""
    most = geometry.max_len - 1
    for slot in range(geometry.slots):
        yield fixed(Reserve(slot), f"reserve({slot})")
        prompt = Assign(slot, (1,) * most, Params(max_new=1), 1, slot)
        yield fixed(prompt, f"assign({slot})")
        for count in (1, geometry.page_size):
            places = tuple((slot, offset) for offset in range(count))
            yield allocating(f"allocate({slot}, {count})", *places)
            yield writing(f"write({slot}, {count})", *places)
        for entry in range(geometry.pages_per_seq):
            yield fixed(Merge(slot, entry), f"merge({slot}, {entry})")
        yield fixed(Truncate(slot, 0), f"truncate({slot}, 0)")
    for slot in range(geometry.slots + 1):
        for pages in range(geometry.pages_per_seq + 1):
            length = pages * geometry.page_size
            yield fixed(Publish(slot, length), f"publish({slot}, {length})")
            yield fixed(Hit(slot, length), f"hit({slot}, {length})")
        yield fixed(Free(slot), f"free({slot})")
    for parent, child in permutations(range(geometry.slots), 2):
        yield fixed(Clone(parent, child, child), f"clone({parent}, {child})")
        for pages in range(1, geometry.pages_per_seq + 1):
            length = pages * geometry.page_size
            yield fixed(Share(parent, child, length), f"share({parent}, {child}, {length})")
    for pages in range(1, geometry.pages_per_seq + 1):
        text = (1,) * (pages * geometry.page_size)
        yield fixed(Evict(text), f"evict({pages})")
    yield fixed(Evict((1,) * geometry.page_size, 1), "evict(1, other context)")
    yield fixed(Drop(), "drop")
    yield fixed(Reset(), "reset(logical)")


def takes_idle(kind: type) -> str:
    """The corner of an action that takes an idle page for other tokens."""
    return f"{kind.__name__} takes an idle page"


TAKERS: Final = frozenset(
    kind for kind in MACHINE.calls if Reason.OUT_OF_PAGES in MACHINE.reasons(kind)
)
"""The actions that take pages: they may be refused for lack of them."""
HIT_LIVE: Final = "hit a page that a row names"
HIT_IDLE: Final = "hit an idle page"
SHARED_INDEXED: Final = "share a page of the index"
SHARED_STALE: Final = "share cells from before the index was dropped"
SHARED_BELOW_DRAFTS: Final = "share below drafts"
BELOW_DRAFTS: Final = "publish below drafts"
AFTER_RELEASE: Final = "publish after a release"
FREED: Final = "free a slot with pages of the index"
ADMITTED: Final = "admit with idle pages"
EVICTED_BOTH: Final = "evict a page that an idle one extends"
_ONE: Final = Params(max_new=1)
_FILLS: Final = "Write|Prefill"
_PUBLISHES: Final = ("Publish", _FILLS, WHOLE_PAGE)
_SHARES: Final = ("Share: done",)
KIT: Final = RungKit(
    rung="prefix",
    actions={
        Hit: ActionKit(corners=_hit_corners, simpler=_simpler_length, state_clause="PC"),
        Share: ActionKit(corners=_share_corners, simpler=_simpler_length),
        Publish: ActionKit(corners=_publish_corners, simpler=_simpler_length),
        Merge: ActionKit(corners=_merge_corners),
        Evict: ActionKit(corners=_evict_corners, simpler=_simpler_evict, state_clause="EVICT"),
        Drop: ActionKit(corners=_drop_corners),
    },
    corners={
        **{
            takes_idle(kind): (
                *_PUBLISHES,
                "Free|FreeFinished|Preempt",
                f"{kind.__name__}: OUT_OF_PAGES",
            )
            for kind in sorted(TAKERS, key=lambda one: one.__name__)
        },
        HIT_LIVE: (*_PUBLISHES, "Hit", HITS),
        HIT_IDLE: (*_PUBLISHES, "Hit", "Free|FreeFinished|Preempt", HITS),
        "hit with no other page to take": (*_PUBLISHES, "Hit", HITS, FULL_POOL),
        SHARED_INDEXED: (*_SHARES, "Publish"),
        SHARED_STALE: (*_SHARES, "Drop"),
        SHARED_BELOW_DRAFTS: (*_SHARES, "Propose"),
        BELOW_DRAFTS: (*_PUBLISHES, "Propose"),
        AFTER_RELEASE: (*_PUBLISHES, "Release", RELEASES),
        "publish pages that are shared": (*_PUBLISHES, "Clone"),
        "merge a page that nobody keeps": (*_PUBLISHES, "Merge"),
        "merge a page that others keep": (*_PUBLISHES, "Merge", "Clone", MERGES_ASKED),
        "evict a page that an idle one extends": (
            *_PUBLISHES,
            "Evict: done",
            "Free|FreeFinished|Preempt",
            CHAINS,
        ),
        "drop pages that a row names": (*_PUBLISHES, "Drop"),
        FREED: (*_PUBLISHES, "Free|FreeFinished"),
        ADMITTED: (*_PUBLISHES, "Submit", "Admit", "Free|FreeFinished|Preempt"),
    },
    always=_always,
    rules={
        "lifecycle": {
            "publish": when(has_used, publish_somewhere, "advance"),
            "hit": hit,
            "share": share,
            "merge": merge,
            "evict": evict,
        },
        "scheduling": {
            "publish": when(has_used, publish_somewhere, "prefill"),
            "hit": hit,
            "share": share,
            "merge": merge,
            "evict": evict,
        },
    },
    warmup=(
        Reserve(),
        Publish(0, 0),
        Hit(0, 0),
        Share(0, 0, 0),
        Merge(0, 0),
        Evict((1,)),
        Drop(),
        Free(0),
    ),
    alphabet=alphabet,
    explored=("lifecycle",),
    driven={"PC": (Publish,), "CHAIN": (Publish,), "EVICT": (Publish,)},
)
