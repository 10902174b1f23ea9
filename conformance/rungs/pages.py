"""Rung pages: generators of batches, boundary cases of the pool, and the outcomes to reach."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from attrs import evolve

from conformance.history import Step
from conformance.protocol import Action, Result
from conformance.rungs.record import (
    AHEAD,
    FULL_POOL,
    ONE_SHORT,
    REFUSAL,
    RESERVED,
    SEVERAL_PAGES,
    SEVERAL_SLOTS,
    SINGLE_CELLS,
    TWO_SHORT,
    ActionKit,
    DrawRule,
    RungKit,
    Session,
)
from conformance.rungs.shared_generators import (
    LARGEST,
    Digits,
    allocated,
    cells_in,
    first_queued,
    free_slots,
    has_used,
    one,
    token_of,
    used_slots,
    when,
    wild_slot,
)
from spec import ladder, pool, table
from spec.machines import actions as act
from spec.machines import chunks, flights, scheduling
from spec.machines.actions import Allocate, Append, Clone, Free, Reserve, Write
from spec.machines.pages import copying, pages_lacking, reserved_slot, used
from spec.machines.window import most_cells
from spec.rung import Machine
from spec.state import State
from spec.table import Batch, by_slot
from spec.vocabulary import INVALID, Params

B = TypeVar("B", Allocate, Write)
MACHINE: Final = ladder.machine("sharing")
SERVING: Final = ladder.machine(ladder.SERVING)
_ARRANGEMENTS = 8 * 3 * 3 * 16 * 8 * 8 * 4
"""The product of the bounds of the digits that `_arranged` takes."""
FILLING: Final = 6
"""The most steps that are taken to fill the pool."""
FULL: Final = "pool exactly full"
SHORT: Final = "one page short"
SHORT_AHEAD: Final = "one page short of what is taken ahead"
SEVERAL: Final = "several slots in one batch"
SEVERAL_LAST: Final = "several slots of one batch take the last free pages"
SEVERAL_SHORT: Final = "a batch of several slots is one page short"
FREED_AHEAD: Final = "free a row with pages taken ahead"
REFUSED: Final = "an action refused"
PAGE_REUSED: Final = "page taken again after its release"
SLOT_REUSED: Final = "slot reused by a shorter, then a longer sequence"
SINGLE: Final = "page size 1"


def reserve(state: State, drawn: int) -> Reserve:
    """Reserve any free slot, or a given one; rarely one out of range."""
    digits = Digits(drawn)
    if digits.below(2) == 0:
        return Reserve()
    return Reserve(wild_slot(state, digits, free_slots(state)))


def append(state: State, drawn: int) -> Append:
    """Tokens that follow those of a slot: one, up to or past a page boundary, or past the row."""
    digits = Digits(drawn)
    slot = wild_slot(state, digits, used_slots(state))
    sequence = state.sequences[slot] if 0 <= slot < len(state.sequences) else None
    known = len(sequence.tokens) if sequence else 0
    boundary = state.geometry.page_size - known % state.geometry.page_size
    past = state.geometry.max_len - known + 1
    count = past if digits.rarely(8) else digits.one_of((1, 1, boundary, boundary + 1))
    return Append(slot, tuple(token_of(digits) for _ in range(count)))


def allocate(state: State, drawn: int) -> Allocate:
    """Allocate the next cells of some slots, up to, past or short of a page boundary.

    Often those of several slots that each take a page, or copy one.
    """
    digits = Digits(drawn)
    if digits.rarely(12):
        return Allocate(_alone(state, digits))
    arrangement = digits.below(_ARRANGEMENTS)
    batch: list[tuple[int, int] | None] = []
    if digits.below(2) and (slots := together(state, digits)):
        batch += fitted(state, slots, pool.free_count(state.in_use) + digits.below(2))
    if batch:
        return Allocate(_arranged(state, Digits(arrangement), batch))
    for slot in used_slots(state):
        sequence = state.sequences[slot]
        if sequence is not None and digits.below(3) != 2:
            start = sequence.allocated
            batch += [(slot, start + step) for step in range(_stretch(state, digits, slot))]
    return Allocate(_arranged(state, Digits(arrangement), batch))


def _alone(state: State, digits: Digits) -> Batch:
    """A batch of one position that no row has, or of padding alone."""
    slot = wild_slot(state, digits, used_slots(state))
    wrong = digits.one_of((-1, -1, state.geometry.max_len, LARGEST, -(2**31)))
    return digits.one_of((((slot, wrong),), ((slot, wrong),), (None,)))


def together(state: State, digits: Digits) -> tuple[int, ...]:
    """Several slots for one batch; none if fewer than two have room.

    Mostly the owners of a lazily shared page, if there is one.
    """
    owners = lazy_owners(state)
    if owners and not digits.rarely(4):
        return owners
    running = [slot for slot in used_slots(state) if slot not in state.finished]
    room = [slot for slot in running if allocated(state, slot) < most_cells(state, slot)]
    first = digits.below(max(1, len(room)))
    chosen = (room[first:] + room[:first])[: 2 + digits.below(3)]
    return tuple(sorted(chosen)) if len(chosen) > 1 else ()


def fitted(state: State, slots: Iterable[int], pages: int) -> list[tuple[int, int]]:
    """The next cells of these slots, as many as take this number of pages together.

    First each slot takes one page or one copy, as long as the number allows it. Then they take
    what is left, as far as their rows and the width of a batch allow it.
    """
    width = state.limits.prefill_tokens
    start = {slot: allocated(state, slot) for slot in slots}
    longest = {slot: most_cells(state, slot) for slot in start}
    ends = dict[int, int]()
    for slot, cells in start.items():
        end = min(longest[slot], cells + cells_in(state, 0, slot) + 1)
        more = {**ends, slot: end}
        if sum(pages_of(state, more)) <= pages and _cells(start, more) <= width:
            ends = more
    for slot in ends:
        while ends[slot] < longest[slot] and _cells(start, ends) < width:
            if sum(pages_of(state, ends)) == pages:
                break
            ends[slot] += 1
    return [(slot, position) for slot, end in ends.items() for position in range(start[slot], end)]


def _cells(start: Mapping[int, int], ends: Mapping[int, int]) -> int:
    return sum(end - start[slot] for slot, end in ends.items())


def lazy_owners(state: State) -> tuple[int, ...]:
    """Every owner of one lazily shared page, slots ascending; none if there is no such page."""
    if state.capacity.copy == "eager":
        return ()
    owners: dict[int, list[int]] = {}
    for slot in used_slots(state):
        page = appended_page(state, slot)
        if page is not None and pool.is_shared(state.counts, page):
            owners.setdefault(page, []).append(slot)
    return tuple(next(iter(owners.values()), ()))


def appended_page(state: State, slot: int) -> int | None:
    """The page in which a slot appends; None if it begins one."""
    sequence = used(state, slot)
    index, offset = divmod(sequence.allocated, state.geometry.page_size)
    return sequence.row[index] if offset else None


def write(state: State, drawn: int) -> Write:
    """Write the next cells of some slots that are allocated and have known tokens."""
    digits = Digits(drawn)
    if digits.rarely(12):
        return Write(_alone(state, digits))
    arrangement = digits.below(_ARRANGEMENTS)
    batch: list[tuple[int, int] | None] = []
    for slot in used_slots(state):
        sequence = state.sequences[slot]
        if sequence is None or digits.below(4) == 3:
            continue
        ready = min(sequence.allocated, first_queued(state, slot, len(sequence.tokens)))
        count = ready - sequence.written - digits.below(2) * digits.below(3)
        batch += [(slot, sequence.written + step) for step in range(count)]
    if not batch and used_slots(state):
        slot = digits.one_of(used_slots(state))
        batch.append((slot, _written(state, slot)))
    return Write(_arranged(state, Digits(arrangement), batch))


def release(state: State, drawn: int) -> Free:
    """Free a used slot, often one that shares pages; rarely an unused one."""
    digits = Digits(drawn)
    counts, used = state.counts, used_slots(state)
    sharing = [
        slot for slot in used if any(pool.is_shared(counts, page) for page in _pages(state, slot))
    ]
    return Free(wild_slot(state, digits, sharing if sharing and digits.below(2) else used))


def _pages(state: State, slot: int) -> tuple[int, ...]:
    sequence = state.sequences[slot]
    return () if sequence is None else sequence.pages


def _written(state: State, slot: int) -> int:
    sequence = state.sequences[slot]
    return 0 if sequence is None else sequence.written


def _stretch(state: State, digits: Digits, slot: int) -> int:
    """How many cells to add: one, to a page boundary or the end of the pool, or one past either."""
    size = state.geometry.page_size
    boundary = size - allocated(state, slot) % size
    fill = cells_in(state, pool.free_count(state.in_use), slot)
    most = state.limits.prefill_tokens + digits.rarely(16)
    return min(most, digits.one_of((boundary, fill, 1, boundary + 1, fill + 1, fill)))


def _arranged(state: State, digits: Digits, batch: list[tuple[int, int] | None]) -> Batch:
    """The batch in some order, sometimes with padding, rarely with a wrong entry.

    Sometimes it is padded to exactly the width of a batch, or to one entry more.
    """
    spoiled, width = digits.rarely(8), state.limits.prefill_tokens
    order = digits.below(3)
    if order == 1:
        batch.reverse()
    elif order == 2:
        batch = batch[1::2] + batch[::2]
    if digits.below(3) == 1:
        batch.insert(digits.below(len(batch) + 1), None)
    if spoiled and batch:
        batch = _spoiled(state, digits, batch)
    if digits.rarely(8):
        batch = batch + [None] * (width - len(batch) + digits.rarely(4))
    return tuple(batch[: width + 1])


def _spoiled(
    state: State, digits: Digits, batch: list[tuple[int, int] | None]
) -> list[tuple[int, int] | None]:
    """With a duplicate, a gap, a rewrite, a slot out of range, or a negative position."""
    at = digits.below(len(batch))
    slot, position = batch[at] or (0, 0)
    wrong = digits.one_of(
        (
            (slot, position),
            (slot, position + 1),
            (slot, max(position - 1, 0)),
            (state.geometry.slots, position),
            (INVALID, position),
            (slot, -1),
        )
    )
    return [*batch, wrong] if digits.below(2) == 0 else [*batch[:at], wrong, *batch[at + 1 :]]


def fill(state: State, drawn: int, *, spare: int, last: Action) -> Action | None:
    """A step towards a pool with this many free pages; None if there is no such step.

    Slots without a prompt take the pages. last: the action for which the pool is filled. If it is
    an allocation or a round, its slots take none, and other slots with a prompt take some, unless
    they have queued tokens. Before any other action the last free slot stays free.
    """
    free = pool.free_count(state.in_use) - spare
    if free < 1:
        return None
    kept = not isinstance(last, Allocate | act.Round | act.MixedRound | act.Dispatch)
    apart = {*appended(state, last), *(queued.slot for queued in state.queue)}
    room = [
        slot
        for slot in used_slots(state)
        if slot not in apart
        and allocated(state, slot) < most_cells(state, slot)
        and cells_in(state, free, slot)
    ]
    bare = [slot for slot in room if state.details[slot] is None]
    if not bare and len(state.unused_slots) > kept and cells_in(state, free):
        return Reserve()
    room = bare or ([] if kept else room)
    if not room:
        return None
    slot = Digits(drawn).one_of(room)
    start = allocated(state, slot)
    most = min(state.limits.prefill_tokens, most_cells(state, slot) - start)
    cells = min(most, cells_in(state, free, slot))
    return Allocate(tuple((slot, start + step) for step in range(cells)))


def boundary(first: str, taking: Callable[[Session, int], Action]) -> DrawRule:
    """Fill the pool up to the pages that an action takes, or mostly to a page less; then take it.

    first: the rule that is mostly taken instead while `has_partial` is false. taking: draws the
    action.
    """

    def chosen(session: Session, drawn: int) -> Step:
        if drawn % 3 and not has_partial(session.state):
            return session.rules[first](session, drawn // 3)
        return at_edge(session, drawn // 9, taking(session, drawn // 9), short=drawn // 3 % 3 > 0)

    return chosen


def at_edge(session: Session, drawn: int, last: Action, *, short: bool) -> Action:
    """The last action, after the pool is filled up to the pages that it takes.

    short: leave one page less. If the pool cannot be filled so far, or has too few free pages, an
    allocation of several slots is fitted to the pool instead.
    """
    wanted = _wanted(session.state, last)
    _make_room(session, last, spare=max(0, wanted - short))
    for _ in range(FILLING):
        step = fill(session.state, drawn, spare=max(0, wanted - short), last=last)
        if step is None:
            break
        session.take(step)
    free = pool.free_count(session.state.in_use)
    if free != wanted - short and isinstance(last, Allocate) and len(by_slot(last.batch)) > 1:
        batch = fitted(session.state, by_slot(last.batch), free + short)
        return Allocate(tuple(batch)) if batch else last
    return last


def _make_room(session: Session, last: Action, *, spare: int) -> None:
    """Free slots that the last action does not need, if the pool can be filled only then."""
    needed = [*appended(session.state, last)]
    if isinstance(last, Clone):
        needed = [last.parent]
    elif isinstance(last, act.Round):
        needed = needed[:1]  # one sequence that takes a page is enough
    if Free not in session.actions:
        return
    others = [slot for slot in used_slots(session.state) if slot not in needed]
    alone = session.state
    for slot in others:
        alone = SERVING.effect(alone, Free(slot))
    if _fillable(alone, last) < pool.free_count(alone.in_use) - spare:
        return
    for slot in others:
        if _fillable(session.state, last) < pool.free_count(session.state.in_use) - spare:
            session.take(Free(slot))


def _fillable(state: State, last: Action) -> int:
    """How many pages slots without a prompt can take before the last action."""
    longest = state.capacity.longest_row(state.geometry)
    bare = [slot for slot in used_slots(state) if state.details[slot] is None]
    fresh = len(state.unused_slots) - isinstance(last, Clone)
    return max(0, fresh) * longest + sum(longest - len(used(state, slot).row) for slot in bare)


def _wanted(state: State, action: Action) -> int:
    """The pages that an action takes, if nothing but a lack of them may refuse it."""
    if isinstance(action, act.Round | act.MixedRound | act.Dispatch):
        return sum(pages_of(state, appended(state, action)))
    return SERVING.pages_wanted(state, action)


def refill(session: Session, drawn: int) -> Step:
    """Take every page again, often after a page was cloned and copied, which is rare otherwise.

    An engine must then grant as many pages as it did before.
    """
    if drawn % 2:
        _empty(session)
        for step in _cloned(session.next_id()):
            session.take(step)
    take_every_page(session)
    return reserve(session.state, drawn // 2)


def take_every_page(session: Session) -> None:
    """Free every slot, take page after page until one is refused, and free every slot again."""
    _empty(session)
    for _ in range(session.state.geometry.slots * (session.state.geometry.pages_per_seq + 1)):
        before = session.state
        session.take(_one_page_more(before))
        if session.state is before:
            break
    _empty(session)


def _empty(session: Session) -> None:
    for slot in used_slots(session.state):
        session.take(Free(slot))


def _cloned(serial: int) -> Iterator[Action]:
    """A clone of one cell, and a second cell for both: whoever appends first has a copy."""
    yield Reserve(0)
    yield act.Assign(0, (0,), Params(max_new=1), serial)
    yield Allocate(((0, 0),))
    yield Write(((0, 0),))
    yield Clone(0, 1, 1)
    yield Allocate(((0, 1),))
    yield Allocate(((1, 1),))


def reuse(session: Session, drawn: int) -> Step:
    """Give a slot a sequence of two cells, then one of one cell, then one of two again.

    What the first leaves behind is past the end of the second, and the third reads there.
    """
    slot = drawn % session.state.geometry.slots
    for cells in (2, 1, 2):
        if slot in used_slots(session.state):
            session.take(Free(slot))
        for step in _sequence(slot, cells, session.next_id(), session.actions):
            session.take(step)
    return Free(slot)


def _sequence(
    slot: int, cells: int, serial: int, offered: Collection[type[Action]]
) -> Iterator[Action]:
    """The steps to a sequence with so many written cells in a slot that is free."""
    tokens, batch = (0,) * cells, tuple((slot, position) for position in range(cells))
    yield Reserve(slot)
    yield act.Assign(slot, tokens, Params(max_new=1), serial)
    if act.Assign not in offered:
        yield Append(slot, tokens)
    yield Allocate(batch)
    yield Write(batch)


def _one_page_more(state: State) -> Action:
    """Allocate up to the next page boundary of the first row with room; else reserve a slot."""
    size = state.geometry.page_size
    for slot in used_slots(state):
        start, longest = allocated(state, slot), most_cells(state, slot)
        if start < longest:
            end = min(start - start % size + size, start + state.limits.prefill_tokens, longest)
            return Allocate(tuple((slot, position) for position in range(start, end)))
    return Reserve()


def has_partial(state: State) -> bool:
    """Whether a clone would need a page of its own, or a partial page is shared lazily."""
    return bool(lazy_owners(state)) or any(needs_page(state, slot) for slot in state.live)


def needs_page(state: State, slot: int) -> bool:
    """Whether a clone of this slot would need a page of its own."""
    sequence = state.sequences[slot]
    if sequence is None or not sequence.settled or state.details[slot] is None:
        return False
    return MACHINE.pages_wanted(state, Clone(slot)) > 0


def _reserved(
    _machine: Machine, before: State, action: Reserve, _after: State
) -> tuple[Result, ...]:
    return (reserved_slot(before, action.slot),)


def _planned(
    _machine: Machine, _before: State, action: Allocate, after: State
) -> tuple[Result, ...]:
    return (table.plan(after.sequences, action.batch, after.geometry.page_size),)


def _named(state: State, action: Reserve) -> Reserve:
    there = state.unused_slots
    return evolve(action, slot=reserved_slot(state, action.slot)) if there else action


def batch_by_slot(action: B) -> tuple[B, ...]:
    """A batch for each slot, in the order in which the batch names them; each keeps the padding."""
    slots = dict.fromkeys(entry[0] for entry in action.batch if entry is not None)
    split = {
        slot: tuple(entry for entry in action.batch if entry is None or entry[0] == slot)
        for slot in slots
    }
    return tuple(evolve(action, batch=batch) for batch in split.values()) or (action,)


def _by_position(action: Allocate) -> tuple[Allocate, ...]:
    """An allocation for each position, in order; one that begins a sequence stays whole."""
    entries = sorted(entry for entry in action.batch if entry is not None)
    if not entries or entries[0][1] <= 0:
        return (action,)
    return tuple(Allocate((entry,)) for entry in entries)


def simpler_batch(action: Allocate | Write) -> Iterator[Step]:
    """The batch without one of its entries; the batch in order without padding."""
    batch = action.batch
    for index in range(len(batch)):
        yield evolve(action, batch=batch[:index] + batch[index + 1 :])
    ordered = tuple(sorted(entry for entry in batch if entry is not None))
    if ordered != batch:
        yield evolve(action, batch=ordered)


def _simpler_reserve(action: Reserve) -> Iterator[Step]:
    if isinstance(action.slot, int):
        yield evolve(action, slot=None)
    if action.context:
        yield evolve(action, context=0)


def _simpler_append(action: Append) -> Iterator[Step]:
    if len(action.tokens) > 1:
        yield evolve(action, tokens=action.tokens[:-1])


def _batch_corners(_before: State, action: Allocate | Write, _after: State) -> Iterator[str]:
    yield from batch_corners(action.batch, by_slot(action.batch))


def batch_corners(batch: Batch, slots: Collection[int]) -> list[str]:
    """The corner states of a batch. slots: those that it names, ascending, none below 0."""
    found = []
    entries = batch
    if None in batch:
        entries = tuple([entry for entry in batch if entry is not None])
        if entries and None in batch[:-1]:
            found.append("batch with padding inside")
    if len(entries) > 1 and list(entries) != sorted(filter(None, entries)):
        found.append("batch not sorted")
    if len(slots) > 1:
        found.append(SEVERAL)
    if slots and [*slots][-1] != len(slots) - 1:  # ascending, so none is left out below the last
        found.append("holes in the slot ids of a batch")
    return found


def appended(state: State, action: Action) -> dict[int, int]:
    """The slots in which an Allocate or a round appends, ascending, each with its cells after it.

    Nothing but a lack of pages may refuse the action. Empty for any other action.
    """
    if isinstance(action, Allocate):
        return {slot: positions[-1] + 1 for slot, positions in by_slot(action.batch).items()}
    if isinstance(action, act.Round):
        slots = sorted({queued.slot for queued in scheduling.packed(state)})
        return {slot: allocated(state, slot) + 1 for slot in slots}
    if isinstance(action, act.MixedRound):
        batch = by_slot(chunks.batch_of(state, action))
        return {slot: positions[-1] + 1 for slot, positions in batch.items()}
    if isinstance(action, act.Dispatch):
        batch = by_slot(flights.batch_of(state, action))
        return {slot: positions[-1] + 1 for slot, positions in batch.items()}
    return {}


def pages_of(state: State, ends: Mapping[int, int]) -> list[int]:
    """The pages that each slot of a batch takes, its copy included. ends: see `appended`."""
    copies = copying(state, ends)
    return [pages_lacking(state, slot, end) + (slot in copies) for slot, end in ends.items()]


def _free_corners(before: State, action: Free, _after: State) -> Iterator[str]:
    size, sequence = before.geometry.page_size, before.sequences[reserved_slot(before, action.slot)]
    if sequence is not None:
        shared = any(pool.is_shared(before.counts, page) for page in sequence.pages)
        ahead = len(sequence.row) > before.geometry.pages_for(sequence.allocated)
        yield from free_corners(sequence.written, size, shared=shared, ahead=ahead)


def free_corners(written: int, page_size: int, *, shared: bool, ahead: bool) -> list[str]:
    """The corner states of the end of a sequence.

    shared: whether it shares a page. ahead: whether its row covers more than is allocated.
    """
    if not written:
        return []
    boundary = ["free at a page boundary"] * (written % page_size == 0)
    return boundary + ["free a parent before its clone"] * shared + [FREED_AHEAD] * ahead


def place(written: int, page_size: int) -> str:
    """Where in a page the written cells of a sequence end."""
    return "inside a page" if written % page_size else "at a page boundary"


def _always(before: State, _action: Action, after: State) -> Iterator[str]:
    if before.geometry.page_size == 1:
        yield SINGLE
    if pool.free_count(before.in_use) and not pool.free_count(after.in_use):
        yield FULL


_FILLS: Final = "Write|Prefill"
_BATCH: Final = "Allocate|Write"
_TAKES_RESERVED: Final = "Assign: OUT_OF_PAGES|Prefill: OUT_OF_PAGES"
_SHORTAGES: Final = f"Allocate: OUT_OF_PAGES|{_TAKES_RESERVED}"
KIT: Final = RungKit(
    rung="pages",
    actions={
        Reserve: ActionKit(
            named=_named,
            simpler=_simpler_reserve,
            results=_reserved,
        ),
        Append: ActionKit(simpler=_simpler_append),
        Allocate: ActionKit(
            corners=_batch_corners,
            by_slot=batch_by_slot,
            by_position=_by_position,
            simpler=simpler_batch,
            results=_planned,
        ),
        Write: ActionKit(
            corners=_batch_corners,
            by_slot=batch_by_slot,
            simpler=simpler_batch,
        ),
        act.Sample: ActionKit(),
        Free: ActionKit(corners=_free_corners),
    },
    corners={
        "free at a page boundary": ("Free", _FILLS),
        "free a parent before its clone": ("Free", "Clone", _FILLS),
        "holes in the slot ids of a batch": (_BATCH,),
        FULL: ("Allocate|Prefill", FULL_POOL),
        SHORT: (_SHORTAGES, ONE_SHORT),
        REFUSED: (REFUSAL,),
        PAGE_REUSED: ("Allocate|Prefill", "Free|Reset|Truncate|Preempt"),
        SLOT_REUSED: (_FILLS,),
        "batch with padding inside": (_BATCH,),
        "batch not sorted": (_BATCH,),
        SEVERAL: (_BATCH, SEVERAL_SLOTS),
        SEVERAL_LAST: ("Allocate", SEVERAL_SLOTS, SEVERAL_PAGES, FULL_POOL),
        SEVERAL_SHORT: ("Allocate: OUT_OF_PAGES", SEVERAL_SLOTS, TWO_SHORT),
        "poisoned dead cells read past": ("PoisonDead",),
        SINGLE: (SINGLE_CELLS,),
        FREED_AHEAD: ("Free", _FILLS, f"{AHEAD}|{RESERVED}"),
        SHORT_AHEAD: (
            _SHORTAGES,
            f"{AHEAD}|{_TAKES_RESERVED}",
            f"{AHEAD}|{RESERVED}",
            ONE_SHORT,
        ),
    },
    always=_always,
    rules={
        "lifecycle": {
            "reserve": one(reserve),
            "append": when(has_used, one(append), "advance"),
            "allocate": when(has_used, one(allocate), "advance"),
            "write": when(has_used, one(write), "advance"),
            "free": when(has_used, one(release), "advance"),
        },
        "scheduling": {"free": when(has_used, one(release), "prefill")},
    },
    replaced={"append": "scheduling"},
    warmup=(Reserve(), Free(0)),
)
