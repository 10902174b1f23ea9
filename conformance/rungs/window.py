"""Rung window: generators of releases, and the outcomes that fuzzing must reach."""

from collections.abc import Iterator
from itertools import permutations
from typing import Final

from attrs import evolve

from conformance.history import Step
from conformance.rungs.pages import at_edge
from conformance.rungs.prefix import begin, whole_pages
from conformance.rungs.record import (
    FULL_POOL,
    GROWS_RELEASED,
    HITS,
    LAPS,
    RELEASES,
    RELEASES_INSIDE,
    RINGS,
    SEVERAL_CELLS,
    TWO_SLOTS,
    ActionKit,
    Move,
    RungKit,
    Session,
)
from conformance.rungs.scheduling import make_room
from conformance.rungs.shared_generators import (
    ALPHABET,
    Digits,
    allocated,
    one,
    used_slots,
    when,
    wild_slot,
)
from conformance.rungs.shared_moves import allocating, fixed, past_committed, writing
from spec import index, pool
from spec.attention import visible
from spec.machines.actions import (
    Action,
    Allocate,
    Assign,
    Clone,
    Commit,
    Free,
    FreeFinished,
    Generate,
    Merge,
    Pack,
    Prefill,
    Propose,
    Publish,
    Release,
    Reserve,
    Reset,
    Round,
    Share,
    TakeOutputs,
    Truncate,
    Write,
)
from spec.machines.pages import reserved_slot, used
from spec.machines.prefix import found, key
from spec.machines.window import cells_in_ring, first_visible, most_cells
from spec.state import State
from spec.vocabulary import Geometry, InvalidInput, Limits, Params, Reason, Request, Tokens


def release(state: State, drawn: int) -> Release:
    """All that no query can see, a page of it, or a cell or a page too many."""
    digits, size = Digits(drawn), state.geometry.page_size
    slot = wild_slot(state, digits, _releasable(state) or used_slots(state))
    if not 0 <= slot < state.geometry.slots:
        return Release(slot, size)
    most, begin = first_visible(state, slot), state.first_page[slot] * size
    whole = most - most % size
    return Release(slot, digits.one_of((whole, begin + size, most, whole + size, most + 1, begin)))


def slide(session: Session, drawn: int) -> Step:
    """The next thing of a slot that has released pages: rounds, cells, a clone, or a cut draft."""
    digits = Digits(drawn)
    if not _has_released(session.state):
        _release_first(session, digits)
    state = session.state
    slots = _has_released(state)
    if not slots:
        return session.rules["release"](session, drawn)
    slot, kind = digits.one_of(slots), digits.below(4)
    if kind == 0 and any(queued.slot == slot for queued in state.queue):
        return _round_at_boundary(session, slot)
    if kind == 1:
        clone = Clone(slot, None, 1 + digits.below(ALPHABET))
        make_room(session, clone, digits)
        return clone
    if kind == 2:
        session.take(Propose(slot, (digits.below(ALPHABET),)))
        session.take(_next_cells(session.state, slot, digits))
        return Truncate(slot, state.committed[slot] + digits.below(2))
    return _next_cells(state, slot, digits)


def past_drafts(session: Session, drawn: int) -> Step:
    """A release as far as if drafts were final, a cell too far, or as far as it may go."""
    digits = Digits(drawn)
    _make_releasable(session, digits)
    slots = _releasable(session.state) or session.state.live
    if not slots:
        return session.rules["release"](session, drawn)
    slot = digits.one_of(slots)
    session.take(Propose(slot, (digits.below(ALPHABET),) * (1 + digits.below(3))))
    session.take(_next_cells(session.state, slot, digits))
    state, end = session.state, allocated(session.state, slot)
    most, behind = first_visible(state, slot), visible(end, end + 1, state.geometry.window).start
    return Release(slot, digits.one_of((behind, most + 1, most)))


def publish_behind(session: Session, drawn: int) -> Step:
    """A publication of a slot that has released pages, which the index has before or has not.

    Or a merge of a released page, or a share of the pages that the slot began with.
    """
    digits = Digits(drawn)
    _make_releasable(session, digits)
    slots = _releasable(session.state)
    if not slots or Publish not in session.actions:
        return session.rules["release"](session, drawn)
    slot, kind = digits.one_of(slots), digits.below(4)
    most = first_visible(session.state, slot)
    if kind != 0:
        session.take(Publish(slot, most))
    session.take(Release(slot, most))
    if kind == 2:
        return Merge(slot, digits.below(session.state.first_page[slot] or 1))
    if kind == 3:
        return _share_released(session, slot, digits)
    return Publish(slot, session.state.committed[slot])


def _share_released(session: Session, parent: int, digits: Digits) -> Step:
    """A share of the whole pages of a slot of which the first are released, with its own text."""
    size, other = session.state.geometry.page_size, (parent + 1) % session.state.geometry.slots
    if not session.state.unused_slots:
        session.take(Free(other))
    pages = whole_pages(session.state, parent)
    if not session.state.unused_slots or not pages:
        return session.rules["release"](session, digits.below(ALPHABET))
    text = used(session.state, parent).tokens[: pages * size]
    slot = begin(session, text, session.state.contexts[parent], digits)
    return Share(parent, slot, (1 + digits.below(pages)) * size)


def give_up(session: Session, drawn: int) -> Step:
    """The cells with which a row of a ring gives up a page, as many as fit, or one too many.

    Often after a clone, or where the pool has no other page.
    """
    digits = Digits(drawn)
    slots = _about_to_give_up(session.state)
    if not slots:
        return session.rules["advance"](session, drawn)
    slot, kind = digits.one_of(slots), digits.below(5)
    start, most = allocated(session.state, slot), most_cells(session.state, slot)
    end = {3: most, 4: most + 1}.get(kind, start + 1)
    action = Allocate(tuple((slot, position) for position in range(start, end)))
    if kind == 0:
        clone = Clone(slot, None, 1 + digits.below(ALPHABET))
        make_room(session, clone, digits)
        session.take(clone)
    if kind == 1:
        return at_edge(session, drawn, action, short=True)
    return action


def _about_to_give_up(state: State) -> list[int]:
    """The slots of which the next cell needs a page that a row gives up."""
    size, ring = state.geometry.page_size, state.capacity.ring
    return [
        slot
        for slot in state.live
        if ring
        and allocated(state, slot) % size == 0
        and ring <= allocated(state, slot) // size - state.first_page[slot]
        and allocated(state, slot) < most_cells(state, slot)
    ]


def fewest_released(sizes: Geometry) -> int | None:
    """The fewest committed cells with which a page lies behind the window; None without one."""
    return None if sizes.window is None else sizes.window - 1 + sizes.page_size


def _release_first(session: Session, digits: Digits) -> None:
    """Release what no query can see of a slot that has as much, or of a new one."""
    _make_releasable(session, digits)
    for slot in _releasable(session.state)[:1]:
        session.take(Release(slot, first_visible(session.state, slot)))


def _make_releasable(session: Session, digits: Digits) -> None:
    """Begin a sequence of which a page can be released, unless there is one."""
    sizes, limits = session.state.geometry, session.state.limits
    at_once = Prefill in session.actions
    most = sizes.max_len - 1
    if at_once:
        most = min(most, limits.prefill_tokens, cells_in_ring(session.state, 0))
    least = fewest_released(sizes)
    if _releasable(session.state) or least is None or least > most:
        return
    prompt = (digits.below(ALPHABET),) * (least + digits.below(most - least + 1))
    if not at_once:
        _write_by_page(session, prompt, digits)
        return
    params = Params(max_new=sizes.max_len - len(prompt))
    whole = Prefill((Request(id=session.next_id(), prompt=prompt, params=params),))
    make_room(session, whole, digits)
    session.take(whole)


def _write_by_page(session: Session, prompt: Tokens, digits: Digits) -> None:
    """Begin a sequence with this prompt, and write it page by page, as far as there are pages."""
    used = used_slots(session.state)
    if not session.state.unused_slots and used:
        session.take(Free(digits.one_of(used)))
    if not session.state.unused_slots:
        return
    slot, size = session.state.unused_slots[0], session.state.geometry.page_size
    params = Params(max_new=session.state.geometry.max_len - len(prompt))
    session.take(Reserve(slot))
    session.take(Assign(slot, prompt, params, session.next_id()))
    for start in range(0, len(prompt), size):
        cells = tuple((slot, position) for position in range(start, len(prompt)))[:size]
        session.take(Allocate(cells))
        session.take(Write(cells))


def _round_at_boundary(session: Session, slot: int) -> Round:
    """The round with which the row of a slot may grow, after those that fill its last page."""
    state = session.state
    for _ in range(-allocated(state, slot) % state.geometry.page_size):
        session.take(Round())
    return Round()


def _next_cells(state: State, slot: int, digits: Digits) -> Allocate:
    """Cells up to a page boundary, or one past it."""
    size, start = state.geometry.page_size, allocated(state, slot)
    cells = min(state.limits.prefill_tokens, size - start % size + digits.below(2))
    return Allocate(tuple((slot, start + step) for step in range(cells)))


def _has_released(state: State) -> list[int]:
    """The slots that have released pages and go on."""
    return [slot for slot in state.live if state.first_page[slot]]


def _releasable(state: State) -> list[int]:
    """The slots with a whole page that no query can see."""
    size = state.geometry.page_size
    return [
        slot
        for slot in used_slots(state)
        if first_visible(state, slot) // size > state.first_page[slot]
    ]


def _simpler(action: Release) -> Iterator[Step]:
    if action.before:
        yield evolve(action, before=action.before // 2)
        yield evolve(action, before=action.before - 1)


def _release_corners(before: State, action: Release, after: State) -> Iterator[str]:
    sequence, first = before.sequences[action.slot], before.first_page[action.slot]
    count = after.first_page[action.slot] - first
    if sequence is None or not count:
        return
    if action.before == first_visible(before, action.slot):
        at_boundary = action.before % before.geometry.page_size == 0
        yield "release up to a page boundary" if at_boundary else "release up to inside a page"
    if any(pool.is_shared(before.counts, page) for page in sequence.row[first : first + count]):
        yield "release a page that is shared"
    if not pool.free_count(before.in_use) and pool.free_count(after.in_use):
        yield "release from a full pool"


def _given_up(before: State, after: State) -> Iterator[str]:
    """The corners of a row of a ring that gives up pages for others."""
    for slot, (old, new) in enumerate(zip(before.sequences, after.sequences, strict=True)):
        first, end = before.first_page[slot], after.first_page[slot]
        if old is None or new is None or end <= first or len(new.row) <= len(old.row):
            continue
        yield GIVES_UP
        if end > before.capacity.ring:
            yield GIVES_UP_AGAIN
        if any(pool.is_shared(before.counts, page) for page in old.row[first:end]):
            yield GIVES_UP_SHARED
        if not pool.free_count(before.in_use):
            yield GIVES_UP_FULL


def _always(before: State, action: Action, after: State) -> Iterator[str]:
    if before.capacity.ring:
        yield from _given_up(before, after)
    if not any(before.first_page):
        return
    if isinstance(action, Free) and before.first_page[reserved_slot(before, action.slot)]:
        yield "free after a release"
    if isinstance(action, Clone) and before.first_page[action.parent]:
        yield "clone after a release"
        if used(before, action.parent).written % before.geometry.page_size:
            yield "clone inside a page after a release"
    if _grown(before, after) and isinstance(action, Round | Generate):
        yield "round after a release"
    elif _grown(before, after):
        yield "allocate after a release"
    if isinstance(action, Truncate) and before.first_page[action.slot] and before != after:
        yield "truncate after a release"
    if isinstance(action, Publish) and _lies_behind(before, action):
        yield "publish behind a released page"


def _lies_behind(state: State, action: Publish) -> bool:
    """Whether a page of a publication lies behind a released one that the index lacks."""
    first, count = state.first_page[action.slot], action.length // state.geometry.page_size
    return bool(len(found(state, action.slot, count)) < first < count)


def _refused(state: State, action: Action, reasons: frozenset[Reason]) -> Iterator[str]:
    match action:
        case Share() if reasons == {Reason.NOT_COMMON} and _shares_released(state, action):
            yield "refuse to share a released page"
        case Merge() if reasons == {Reason.NOT_INDEXED} and _merges_released(state, action):
            yield "refuse to merge a released page"
        case Allocate() if reasons == {Reason.TOO_LONG} and _fits_a_row(state, action):
            yield PAST_RING


def _fits_a_row(state: State, action: Allocate) -> bool:
    """Whether only a ring has no room for the positions of a batch."""
    return all(entry is None or entry[1] < state.geometry.max_len for entry in action.batch)


def _shares_released(state: State, action: Share) -> bool:
    """Whether a share of whole committed pages lacks nothing but those that are released."""
    parent, slot, size = action.parent, action.slot, state.geometry.page_size
    texts = (used(state, one).tokens[: action.length] for one in (parent, slot))
    return (
        bool(state.first_page and state.first_page[parent])
        and state.contexts[parent] == state.contexts[slot]
        and len({*texts}) == 1
        and 0 < action.length <= state.committed[parent]
        and action.length % size == 0
    )


def _merges_released(state: State, action: Merge) -> bool:
    """Whether a merge of a page whose key the index has lacks nothing but that it is released."""
    first = state.first_page[action.slot] if state.first_page else 0
    found_key = index.find(state.indexed, *key(state, action.slot, action.entry))
    return action.entry < first and found_key is not None


def _grown(before: State, after: State) -> bool:
    """Whether a slot that has released pages takes further ones."""
    pairs = zip(before.sequences, after.sequences, before.first_page, strict=True)
    return any(old and new and first and len(old.row) < len(new.row) for old, new, first in pairs)


def alphabet(geometry: Geometry, _limits: Limits) -> Iterator[Move]:
    """A request or two, a draft for either, and releases around what a query can still see.

    Raises InvalidInput for a geometry without a window: nothing is ever released there.
    """
    if geometry.window is None:
        raise InvalidInput(
            "geometry",
            seen=geometry,
            allowed="sizes with a window",
            remedy="Add a window to --geometry, such as window=2.",
        )
    for number, prompt in ((1, (1,)), (2, (2, 1))):
        params = Params(max_new=max(1, geometry.max_len - len(prompt)))
        request = Request(id=number, prompt=prompt, params=params)
        yield fixed(Prefill((request,)), f"prefill({number})")
    yield fixed(Round(), "round")
    yield fixed(Pack(), "pack")
    yield fixed(FreeFinished(), "free_finished")
    yield fixed(TakeOutputs(), "take_outputs")
    for slot in range(geometry.slots + 1):
        yield fixed(Release(slot, 0), f"release({slot}, 0)")
        for more in (-1, 0, 1, geometry.page_size):
            yield _releasing(slot, more)
        yield fixed(Propose(slot, (4,)), f"propose({slot}, 1)")
        yield past_committed(Commit, slot, 1)
        yield past_committed(Truncate, slot, 0)
        yield fixed(Free(slot), f"free({slot})")
    for slot in range(geometry.slots):
        yield allocating(f"allocate({slot}, 1)", (slot, 0))
        yield writing(f"write({slot}, 1)", (slot, 0))
    for parent, child in permutations(range(geometry.slots), 2):
        yield fixed(Clone(parent, child, 1), f"clone({parent}, {child})")
    yield fixed(Reset(), "reset(logical)")


def _releasing(slot: int, more: int) -> Move:
    """Release so many cells more than no query can see."""

    def action(state: State) -> Action:
        there = slot < len(state.committed)
        return Release(slot, max(0, (first_visible(state, slot) if there else 0) + more))

    return Move(f"release({slot}, {more:+})", action)


_FILLS: Final = "Write|Prefill"
_ROUNDS: Final = "Round|Generate|MixedRound"
_RELEASED: Final = ("Release", RELEASES)
_GONE: Final = (f"Release|{RINGS}", RELEASES)
GIVES_UP: Final = "row of a ring that gives up a page"
GIVES_UP_AGAIN: Final = "row of a ring that gives up a page for the second time in its place"
GIVES_UP_SHARED: Final = "row of a ring that gives up a shared page"
GIVES_UP_FULL: Final = "row of a ring that gives up a page of a full pool"
PAST_RING: Final = "refuse cells past a ring"
KIT: Final = RungKit(
    rung="window",
    actions={
        Release: ActionKit(
            corners=_release_corners,
            simpler=_simpler,
            state_clause="WIN",
        )
    },
    corners={
        "release up to a page boundary": (*_RELEASED, _FILLS),
        "release up to inside a page": (*_RELEASED, _FILLS, SEVERAL_CELLS, RELEASES_INSIDE),
        "release a page that is shared": (*_RELEASED, "Clone", _FILLS),
        "release from a full pool": (*_RELEASED, _FILLS, FULL_POOL),
        "allocate after a release": (*_GONE, "Allocate", _FILLS, GROWS_RELEASED),
        "round after a release": (*_GONE, "Round|Generate", GROWS_RELEASED),
        "clone after a release": (*_GONE, "Clone", _FILLS),
        "clone inside a page after a release": (*_GONE, "Clone", _FILLS, SEVERAL_CELLS),
        "truncate after a release": (*_GONE, "Truncate", "Propose", _FILLS),
        "free after a release": (*_GONE, "Free", _FILLS),
        "publish behind a released page": (*_GONE, "Publish", _FILLS, GROWS_RELEASED),
        "refuse to share a released page": (
            *_GONE,
            "Share: NOT_COMMON",
            HITS,
            TWO_SLOTS,
            _FILLS,
        ),
        "refuse to merge a released page": (*_GONE, "Merge", "Publish", _FILLS),
        GIVES_UP: (f"Allocate|{_ROUNDS}", _FILLS, RINGS),
        GIVES_UP_AGAIN: (f"Allocate|{_ROUNDS}", _FILLS, RINGS, LAPS),
        GIVES_UP_SHARED: (f"Allocate|{_ROUNDS}", "Clone", _FILLS, RINGS),
        GIVES_UP_FULL: (f"Allocate|{_ROUNDS}", _FILLS, FULL_POOL, RINGS),
        PAST_RING: ("Allocate: TOO_LONG", RINGS),
    },
    always=_always,
    refused=_refused,
    rules={
        "lifecycle": {
            "release": when(_releasable, one(release), "advance"),
            "slide": slide,
            "past_drafts": past_drafts,
            "publish_behind": publish_behind,
            "give_up": when(_about_to_give_up, give_up, "advance"),
        },
        "scheduling": {
            "release": when(_releasable, one(release), "go_on"),
            "slide": slide,
            "past_drafts": past_drafts,
            "publish_behind": publish_behind,
        },
        "admission": {
            "release": when(_releasable, one(release), "serve"),
            "past_drafts": past_drafts,
        },
    },
    warmup=(Reserve(), Release(0, 0), Free(0)),
    alphabet=alphabet,
    explored=("scheduling",),
    driven={"WIN": (Release,)},
)
