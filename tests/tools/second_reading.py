"""A second reading of the actions: one imperative machine, written apart from the specification.

It shares no code with the machines of `spec`, so that a mistake in what they mean shows as a
difference, even if the engine makes the same one. It changes its state in place; a page has owners
and no count; it knows no rungs, no stages and no parts of actions. Of the specification it uses the
vocabulary, the actions, and the model that says which token follows a text.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, Final

from attrs import define, field

from spec import model
from spec.machines import actions as act
from spec.machines.actions import Action
from spec.table import Batch
from spec.vocabulary import (
    INVALID,
    LAG,
    Capacity,
    CleanupMode,
    FinishReason,
    Geometry,
    Limits,
    Params,
    Reason,
    Request,
    Tokens,
)

Condition = tuple[float, Reason, bool | Callable[[], bool], tuple[Reason, ...]]
"""(order, reason, whether it refuses, reasons of lower order beside which it is asked)."""


@define
class Held:
    """A sequence in a slot. row: its pages, by index; those before `first` are released.

    stale: whether it has cells from before the index was dropped.
    """

    row: dict[int, int] = field(factory=dict)
    first: int = 0
    tokens: list[int] = field(factory=list)
    drafts: list[int] = field(factory=list)
    allocated: int = 0
    written: int = 0
    committed: int = 0
    reserved: int = 0
    key: tuple[int, int] | None = None
    prompt: int = 0
    params: Params | None = None
    finished: FinishReason | None = None
    context: int = 0
    stale: bool = False

    @property
    def text(self) -> list[int]:
        """The tokens, known or drafts."""
        return self.tokens + self.drafts


@define
class Work:
    """What a step does with a sequence: its cells from `start` to before `stop`, perhaps a draw.

    pages: those of its row at the dispatch.
    """

    slot: int
    owner: Held
    start: int
    stop: int
    draws: bool
    pages: frozenset[int]


@define
class Step:
    """A step that is dispatched and not delivered. done: whether the device has done it."""

    works: list[Work]
    done: bool = False


class SecondReading:
    """The whole machine: `reasons` says why an action is refused, `take` does it."""

    def __init__(
        self, geometry: Geometry, limits: Limits, cleanup: CleanupMode, capacity: Capacity
    ) -> None:
        self.geometry, self.limits = geometry, limits
        self.cleanup, self.capacity = cleanup, capacity
        self.steps: list[Step] = []
        self.clear()

    def clear(self) -> None:
        """Begin anew, but for the steps in flight.

        owners: the slots whose rows name each page. cells: by (page, offset).
        rounds: those that the last Generate did, and why another one of them was refused. index:
        the key of each page of the index, a context and tokens. since: when the idle pages became
        idle, by a clock that counts releases. totals: of the index, by the names of the
        statistics.
        """
        self.rounds = 0, frozenset[Reason]()
        self.slots: dict[int, Held] = {}
        self.owners: list[list[int]] = [[] for _ in range(self.geometry.pages)]
        self.cells: dict[tuple[int, int], Tokens] = {}
        self.index: dict[int, Tokens] = {}
        self.since: dict[int, int] = {}
        self.clock = 0
        self.totals = dict.fromkeys(("hit", "stored", "removed", "evicted"), 0)
        self.queue: list[tuple[int, int, int]] = []  # (token, slot, position)
        self.outputs: list[tuple[int, int, Tokens, FinishReason]] = []
        self.waiting: list[Request] = []
        self.admitted: list[Request] = []

    # What can be taken, and what a row covers.

    @property
    def spare(self) -> list[int]:
        """The pages without an owner that no step in flight names, free or idle, lowest first."""
        named = self.named
        return [page for page, owners in enumerate(self.owners) if not owners and page not in named]

    @property
    def named(self) -> set[int]:
        """The pages that steps in flight name."""
        return {page for step in self.steps for work in step.works for page in work.pages}

    @property
    def idle(self) -> list[int]:
        """The pages of the index that can be taken."""
        return [page for page in self.spare if page in self.index]

    @property
    def free_slots(self) -> list[int]:
        """The unused slots that no step in flight has, lowest first."""
        return [
            slot
            for slot in range(self.geometry.slots)
            if slot not in self.slots and not self.keeps(slot)
        ]

    # Steps in flight.

    def keeps(self, slot: int) -> bool:
        """Whether a step in flight has a slot, for a sequence that goes on or has ended."""
        return any(work.slot == slot for step in self.steps for work in step.works)

    def goes_on(self, work: Work) -> bool:
        """Whether the sequence of a step is in its slot, and has not ended."""
        return self.slots.get(work.slot) is work.owner and work.owner.finished is None

    def flying(self, slot: int) -> list[Work]:
        """What steps in flight do with the sequence of a slot."""
        works = [work for step in self.steps for work in step.works if work.slot == slot]
        return [work for work in works if self.goes_on(work)]

    def coming(self, slot: int) -> int:
        """The tokens of a slot once every step in flight is delivered, if nothing ends it."""
        return len(self.slots[slot].tokens) + sum(work.draws for work in self.flying(slot))

    @property
    def awaited(self) -> set[int]:
        """The slots of which a drawn token is on its way to the host."""
        return {slot for slot in self.slots if any(work.draws for work in self.flying(slot))}

    def width(self, allocated: int, reserved: int) -> int:
        """How many entries a row has, released ones included."""
        cells = allocated + (self.capacity.lookahead if allocated > 0 else 0)
        return -(-min(max(cells, reserved), self.geometry.max_len) // self.geometry.page_size)

    def promised(self, prompt: int, params: Params) -> int:
        """The cells that a prompt reserves."""
        return prompt + params.max_new if self.capacity.reserve == "request" else 0

    def shared(self, cells: int) -> int:
        """The entries of a row of written cells that a clone shares."""
        size = self.geometry.page_size
        return -(-cells // size) if self.capacity.copy == "lazy" else cells // size

    def worst(self, request: Request) -> int:
        """The most pages that a request can hold; it may be longer than a row."""
        size, length = self.geometry.page_size, len(request.prompt) + request.params.max_new
        whole = max(-(-length // size), self.width(length, 0))
        common = len(request.prompt) // size
        one, longest = whole - common, self.capacity.ring or whole
        others = (request.n_generations - 1) * min(one, longest)
        return others + min(whole, longest)

    # What a ring gives up.

    def given_up(self, batch: Batch) -> dict[int, list[int]]:
        """For each slot, the entries that make room for those of an allocation."""
        found = dict[int, list[int]]()
        for slot, positions in by_slot(batch).items():
            held = self.slots[slot]
            last = self.width(held.allocated + len(positions), held.reserved)
            end = last - self.capacity.ring if self.capacity.ring else 0
            found[slot] = list(range(held.first, end))
        return found

    def gives_what_is_seen(self, batch: Batch) -> bool:
        """Whether an allocation would give up an entry that a query to come sees."""
        size = self.geometry.page_size
        given = self.given_up(batch).items()
        return any(self._seen(slot, (index + 1) * size) for slot, up in given for index in up)

    def lacks_pages(self, batch: Batch) -> bool:
        """Whether an allocation takes more pages than there are, with those that it gives up."""
        left = {page: list(owners) for page, owners in enumerate(self.owners)}
        for slot, up in self.given_up(batch).items():
            for index in up:
                left[self.slots[slot].row[index]].remove(slot)
        named = self.named
        free = [page for page, owners in left.items() if not owners and page not in named]
        return self.pages_of(batch) > len(free)

    def is_past_ring(self, cells: int) -> bool:
        """Whether a row of so many cells names more pages than a ring does."""
        return 0 < self.capacity.ring < self.width(cells, 0)

    # Pages.

    def own(self, slot: int, index: int, page: int) -> None:
        """Enter a page into a row."""
        self.slots[slot].row[index] = page
        self.owners[page].append(slot)
        self.since.pop(page, None)

    def disown(self, slot: int, index: int) -> None:
        """Take a page out of a row; without an owner it is idle, or free."""
        page = self.slots[slot].row.pop(index)
        self.owners[page].remove(slot)
        if not self.owners[page]:
            if page in self.index:
                self.since[page] = self.clock
            else:
                self.kill(page)

    def kill(self, page: int) -> None:
        """The cells of a page die."""
        self.cells = {at: tag for at, tag in self.cells.items() if at[0] != page}

    def next_page(self) -> int:
        """The page to take: the lowest free one, or an idle one, which leaves the index."""
        free = [page for page in self.spare if page not in self.index]
        if free:
            return free[0]
        page = self.victim()
        self.forget(self.index[page])
        return page

    def victim(self) -> int:
        """The idle page to take: the oldest one that nothing extends, or that nothing idle does."""
        idle = self.idle
        leaves = [page for page in idle if not self.is_extended(page, self.index)]
        leaves = leaves or [page for page in idle if not self.is_extended(page, idle)]
        return min(leaves, key=lambda page: (self.since[page], page))

    def is_extended(self, page: int, others: Iterable[int]) -> bool:
        """Whether the key of one of the other pages begins with that of a page, and is longer."""
        key = self.index[page]
        return any(
            self.index[other][: len(key)] == key and len(self.index[other]) > len(key)
            for other in others
        )

    def forget(self, key: Tokens) -> None:
        """The page with a key leaves the index, and all that extend it; idle ones become free."""
        for page, other in list(self.index.items()):
            if other[: len(key)] == key:
                del self.index[page]
                self.totals["removed"] += 1
                self.totals["evicted"] += 1
                if self.since.pop(page, None) is not None:
                    self.kill(page)

    def key_of(self, slot: int, index: int) -> Tokens:
        """The key of a whole page of a slot."""
        held = self.slots[slot]
        return (held.context, *held.tokens[: (index + 1) * self.geometry.page_size])

    def holder(self, key: Tokens) -> int | None:
        """The page of the index with a key."""
        return next((page for page, other in self.index.items() if other == key), None)

    def hits(self, slot: int, length: int) -> list[int]:
        """The pages of the index with the first tokens of a slot; none if one of them lacks."""
        found = list[int]()
        if length % self.geometry.page_size == 0:
            for index in range(length // self.geometry.page_size):
                page = self.holder(self.key_of(slot, index))
                if page is None:
                    return []
                found.append(page)
        return found

    def cover(self, slot: int) -> None:
        """Take pages until the row has its width."""
        held = self.slots[slot]
        for index in range(held.first, self.width(held.allocated, held.reserved)):
            if index not in held.row:
                self.own(slot, index, self.next_page())

    def copy(self, slot: int, index: int, page: int) -> None:
        """Copy the cells of a page to a page that is taken, which has its place in a row."""
        fresh = self.next_page()
        for (where, offset), tag in list(self.cells.items()):
            if where == page:
                self.cells[fresh, offset] = tag
        self.own(slot, index, fresh)

    def appends_to(self, slot: int) -> int | None:
        """The index of the page in which the next cell of a slot lies, unless it begins one."""
        index, offset = divmod(self.slots[slot].allocated, self.geometry.page_size)
        return index if offset else None

    def pages_of(self, batch: Batch) -> int:
        """The pages that an allocation takes: lazy copies, and what the rows lack."""
        wanted, left = 0, {page: len(owners) for page, owners in enumerate(self.owners)}
        for slot, positions in by_slot(batch).items():
            held, index = self.slots[slot], self.appends_to(slot)
            if index is not None and left[held.row[index]] > 1:
                left[held.row[index]] -= 1
                wanted += 1
            after = self.width(held.allocated + len(positions), held.reserved)
            wanted += max(0, after - self.width(held.allocated, held.reserved))
        return wanted

    def pages_of_prefill(self, requests: tuple[Request, ...]) -> int:
        """The pages that the rows of all choices take."""
        wanted = 0
        for request in requests:
            length = len(request.prompt)
            row = self.width(length, self.promised(length, request.params))
            wanted += row
            for _ in range(request.n_generations - 1):
                wanted += row - self.shared(length)
        return wanted

    # Names.

    @property
    def keys(self) -> set[tuple[int, int]]:
        """The choices that are live, or whose outputs are not taken."""
        live = {held.key for held in self.slots.values() if held.key is not None}
        return live | {(request, choice) for request, choice, _, _ in self.outputs}

    def has_many_stops(self, params: Params) -> bool:
        """Whether there are more stops, or longer ones, than the limits allow."""
        longest = max((len(stop) for stop in params.stops), default=0)
        return len(params.stops) > self.limits.stops or longest > self.limits.stop_len

    def is_long(self, prompt: int, params: Params) -> bool:
        """Whether prompt and generated tokens are more than a row holds."""
        return prompt + params.max_new > self.geometry.max_len

    # Refusals.

    def reasons(self, action: Action) -> frozenset[Reason]:
        """Every reason for which an action is refused; it is legal if there is none."""
        found: dict[Reason, float] = {}
        for order, reason, refuses, beside in sorted(self.conditions(action), key=itemgetter(0)):
            if any(at < order and one not in beside for one, at in found.items()):
                continue
            if refuses() if callable(refuses) else refuses:
                found.setdefault(reason, order)
        return frozenset(found)

    def conditions(self, action: Action) -> Iterator[Condition]:
        """The conditions of an action, in order."""
        asked = CONDITIONS.get(type(action))
        return asked(self, action) if asked else iter(())

    def _may_reserve(self, action: act.Reserve) -> Iterator[Condition]:
        yield from self._unused(action.slot)
        yield 3, Reason.IN_FLIGHT, self._kept(action.slot), ()

    def _kept(self, slot: object) -> bool:
        """Whether a step in flight has a slot that is named."""
        return slot is not None and self.keeps(as_slot(slot))

    def _waits(self, order: float, *slots: int) -> Iterator[Condition]:
        """Whether a step in flight has the sequence of one of these slots."""
        yield order, Reason.IN_FLIGHT, lambda: any(self.flying(slot) for slot in slots), ()

    def _queue_lacks(self, more: int) -> bool:
        """Whether the queue has no room for more tokens beside those that are on their way."""
        return len(self.queue) + len(self.awaited) + more > self.limits.queue

    def _may_append(self, action: act.Append) -> Iterator[Condition]:
        slot, more = as_slot(action.slot), len(action.tokens)
        yield from self._extends(slot)
        yield 4, Reason.TOO_LONG, lambda: self._known(slot) + more > self.geometry.max_len, ()

    def _may_enqueue(self, action: act.Enqueue) -> Iterator[Condition]:
        slot = action.slot
        yield from self._extends(slot)
        beside = (Reason.IN_FLIGHT,)
        yield 4, Reason.TOO_LONG, lambda: self._ends(slot, self._known(slot) + 1), beside
        yield 4, Reason.QUEUE_FULL, self._queue_lacks(1), beside

    def _may_propose(self, action: act.Propose) -> Iterator[Condition]:
        slot, queue = action.slot, Reason.QUEUE_FULL

        def length() -> int:
            return len(self.slots[slot].text) + len(action.tokens)

        yield from self._live(slot)
        yield 4, Reason.TOO_LONG, lambda: length() > self.geometry.max_len, ()
        yield 4, queue, self._queue_lacks(len(action.tokens)), ()
        yield 5, Reason.TOO_LONG, lambda: self._ends(slot, length()), (queue,)
        yield from self._waits(3.5, slot)

    def _may_allocate(self, action: act.Allocate) -> Iterator[Condition]:
        batch, longest = action.batch, self.geometry.max_len
        past = any(entry[1] >= longest for entry in batch if entry is not None)
        yield from self._batch(batch)
        yield 5, Reason.BATCH_POSITIONS, lambda: not self._next(batch, "allocated"), ()
        yield 6, Reason.TOO_LONG, past, ()
        yield 7, Reason.TOO_LONG, lambda: self.gives_what_is_seen(batch), ()
        yield 8, Reason.OUT_OF_PAGES, lambda: self.lacks_pages(batch), ()
        yield from self._waits(4.5, *by_slot(batch))

    def _may_end(self, action: act.Free | act.Purge) -> Iterator[Condition]:
        yield from self._used(as_slot(action.slot))

    def _may_commit(self, action: act.Commit) -> Iterator[Condition]:
        slot, length = action.slot, action.length
        yield from self._used(slot)
        yield 3, Reason.COMMITTED, lambda: length <= self.slots[slot].committed, ()
        yield 4, Reason.UNWRITTEN, lambda: length > self.slots[slot].written, ()
        yield from self._waits(2.5, slot)

    def _may_truncate(self, action: act.Truncate) -> Iterator[Condition]:
        slot, length = action.slot, action.length
        yield from self._used(slot)
        yield 3, Reason.COMMITTED, lambda: length < self.slots[slot].committed, ()
        yield 4, Reason.TOO_LONG, lambda: length > self.slots[slot].allocated, ()
        yield from self._waits(2.5, slot)

    def _may_release(self, action: act.Release) -> Iterator[Condition]:
        yield from self._used(action.slot)
        yield 3, Reason.WINDOW, lambda: self._seen(action.slot, action.before), ()

    def _may_hit(self, action: act.Hit) -> Iterator[Condition]:
        slot, length = action.slot, action.length
        queued = any(one[1] == slot and one[2] < length for one in self.queue)
        yield from self._live(slot)
        yield 4, Reason.SLOT_BEGUN, lambda: self.slots[slot].allocated > 0, ()
        yield 5, Reason.TOO_LONG, lambda: length >= self._known(slot), ()
        yield 6, Reason.NOT_INDEXED, lambda: not self.hits(slot, length), ()
        yield 7, Reason.TOO_LONG, self.is_past_ring(length), ()
        yield 8, Reason.OUT_OF_PAGES, lambda: self._lacks_beside(slot, self.hits(slot, length)), ()
        yield 9, Reason.BATCH_QUEUED, queued, ()

    def _may_share(self, action: act.Share) -> Iterator[Condition]:
        slot, length = action.slot, action.length
        queued = any(one[1] == slot and one[2] < length for one in self.queue)
        yield from self._used(action.parent)
        yield from self._live(slot)
        yield 4, Reason.SLOT_BEGUN, lambda: self.slots[slot].allocated > 0, ()
        yield 5, Reason.TOO_LONG, lambda: length >= self._known(slot), ()
        yield 6, Reason.NOT_COMMON, lambda: not self.in_common(action), ()
        yield 7, Reason.OUT_OF_PAGES, lambda: self._lacks_beside(slot, self.in_common(action)), ()
        yield 8, Reason.BATCH_QUEUED, queued, ()

    def in_common(self, action: act.Share) -> list[int]:
        """The pages of a parent that a slot may begin with; none if one of them may not."""
        one, other = self.slots[action.parent], self.slots[action.slot]
        size = self.geometry.page_size
        places = range(action.length // size)
        may = (
            action.length % size == 0
            and action.length <= one.committed
            and one.context == other.context
            and one.tokens[: action.length] == other.tokens[: action.length]
            and all(place in one.row for place in places)
        )
        return [one.row[place] for place in places] if may else []

    def _lacks_beside(self, slot: int, found: list[int]) -> bool:
        """Whether a row needs more pages, beside those it begins with, than are left."""
        held, hit = self.slots[slot], range(len(found))
        length = len(found) * self.geometry.page_size
        wanted = set(range(self.width(length, held.reserved))) - set(hit) - held.row.keys()
        idle = sum(page in self.idle for page in found)
        return len(wanted) > len(self.spare) - idle + sum(index in held.row for index in hit)

    def _may_publish(self, action: act.Publish) -> Iterator[Condition]:
        yield from self._final(action.slot, action.length)

    def _final(self, slot: int, length: int) -> Iterator[Condition]:
        """Whether the cells of a slot below a length may be in the index."""
        yield from self._used(slot)
        yield 3, Reason.STALE, lambda: self.slots[slot].stale, ()
        yield 3, Reason.UNCOMMITTED, lambda: length > self.slots[slot].committed, ()

    def _may_merge(self, action: act.Merge) -> Iterator[Condition]:
        slot, entry = action.slot, action.entry

        def stays() -> bool:
            page, own = self.holder(self.key_of(slot, entry)), self.slots[slot].row.get(entry)
            return page is None or own is None or own == page

        yield from self._final(slot, (entry + 1) * self.geometry.page_size)
        yield 4, Reason.NOT_INDEXED, stays, ()

    def _may_evict(self, action: act.Evict) -> Iterator[Condition]:
        page = self.holder((action.context, *action.tokens))
        yield 1, Reason.NOT_INDEXED, page is None, ()
        yield 2, Reason.NOT_IDLE, page not in self.since, ()

    def _may_prefill(self, action: act.Prefill) -> Iterator[Condition]:
        yield from self._prefillable(action.requests)

    def _outside(self, slot: int) -> bool:
        return not 0 <= slot < self.geometry.slots

    def _used(self, slot: int) -> Iterator[Condition]:
        yield 1, Reason.SLOT_RANGE, self._outside(slot), ()
        yield 2, Reason.SLOT_UNUSED, slot not in self.slots, ()

    def _unused(self, slot: object) -> Iterator[Condition]:
        if slot is None:
            yield 2, Reason.NO_FREE_SLOT, not self.free_slots, ()
        else:
            yield 1, Reason.SLOT_RANGE, self._outside(as_slot(slot)), ()
            yield 2, Reason.SLOT_USED, slot in self.slots, ()

    def _live(self, slot: int) -> Iterator[Condition]:
        yield from self._used(slot)
        yield 3, Reason.SLOT_EMPTY, lambda: self.slots[slot].key is None, ()
        yield 3, Reason.SLOT_FINISHED, lambda: self.slots[slot].finished is not None, ()

    def _extends(self, slot: int) -> Iterator[Condition]:
        yield from self._live(slot)
        yield from self._waits(3.5, slot)
        yield 4, Reason.PROPOSED, lambda: bool(self.slots[slot].drafts), ()

    def _known(self, slot: int) -> int:
        return len(self.slots[slot].tokens)

    def _ends(self, slot: int, length: int) -> bool:
        """Whether at this length no token is left to be drawn."""
        held = self.slots[slot]
        assert held.params is not None
        return length - held.prompt >= held.params.max_new

    def _batch(self, batch: Batch) -> Iterator[Condition]:
        slots = {entry[0] for entry in batch if entry is not None}

        def finished() -> bool:
            return any(self.slots[slot].finished for slot in slots)

        yield 1, Reason.BATCH_WIDTH, len(batch) > self.limits.prefill_tokens, ()
        yield 2, Reason.SLOT_RANGE, any(map(self._outside, slots)), ()
        yield 3, Reason.SLOT_UNUSED, not slots <= self.slots.keys(), ()
        yield 4, Reason.SLOT_FINISHED, finished, ()

    def _next(self, batch: Batch, length: str) -> bool:
        """Whether the positions of every slot are its next ones after a length."""
        for slot, positions in by_slot(batch).items():
            start = getattr(self.slots[slot], length)
            if sorted(positions) != list(range(start, start + len(positions))):
                return False
        return True

    def _may_write(self, action: act.Write) -> Iterator[Condition]:
        batch = action.batch
        entries = [entry for entry in batch if entry is not None]

        def any_of(wrong: Callable[[Held, int], bool]) -> Callable[[], bool]:
            return lambda: any(wrong(self.slots[slot], position) for slot, position in entries)

        waiting = {(slot, position) for _, slot, position in self.queue}
        yield from self._batch(batch)
        yield 4, Reason.SLOT_EMPTY, any_of(lambda held, _: held.key is None), ()
        yield 5, Reason.BATCH_POSITIONS, lambda: not self._next(batch, "written"), ()
        yield 6, Reason.BATCH_POSITIONS, any_of(lambda held, at: at >= held.allocated), ()
        yield 6, Reason.BATCH_UNKNOWN, any_of(lambda held, at: at >= len(held.text)), ()
        yield 7, Reason.BATCH_QUEUED, not waiting.isdisjoint(entries), ()
        yield 8, Reason.IN_FLIGHT, bool(self.steps), ()

    def _may_clone(self, action: act.Clone) -> Iterator[Condition]:
        slot, child = action.parent, action.child
        yield 1, Reason.SLOT_RANGE, self._outside(slot), ()
        yield 2, Reason.SLOT_UNUSED, slot not in self.slots, ()
        yield from self._unused(child)
        bad = self._outside(slot) or (child is not None and self._outside(child))
        if bad or slot not in self.slots:
            return
        held = self.slots[slot]
        empty, finished = Reason.SLOT_EMPTY, Reason.SLOT_FINISHED
        unwritten, proposed = Reason.UNWRITTEN, Reason.PROPOSED
        pending = sum(entry[1] == slot for entry in self.queue)
        width, shared = self.width(held.allocated, held.reserved), self.shared(held.written)
        yield 2.5, empty, held.key is None, ()
        yield 2.5, finished, held.finished is not None, ()
        yield 2.8, Reason.IN_FLIGHT, bool(self.flying(slot)) or self._kept(child), ()
        yield 3, unwritten, held.allocated != held.written, (empty, finished)
        yield 3, proposed, bool(held.drafts), (empty, finished)
        wanted = width - shared
        yield 4, Reason.OUT_OF_PAGES, wanted > len(self.spare), (proposed, empty, finished)
        taken = held.key is not None and (held.key[0], action.choice) in self.keys
        yield 4, Reason.CHOICE_TAKEN, taken, (proposed, unwritten)
        yield 4, Reason.QUEUE_FULL, self._queue_lacks(pending), (proposed, unwritten)

    def _seen(self, slot: int, before: int) -> bool:
        """Whether a query to come sees a position before `before`; one sees `window` positions."""
        if before == 0:
            return False
        window, committed = self.geometry.window, self.slots[slot].committed
        return window is None or before > committed - window + 1

    def _may_assign(self, action: act.Assign) -> Iterator[Condition]:
        slot, length, params = action.slot, len(action.prompt), action.params
        stops = Reason.STOPS

        def lacks() -> bool:
            held = self.slots[slot]
            reserved = self.promised(length, params)
            lacking = self.width(held.allocated, reserved) - self.width(held.allocated, 0)
            return lacking > len(self.spare)

        taken = (action.request, action.choice) in self.keys
        yield 1, Reason.SLOT_RANGE, self._outside(slot), ()
        yield 1, stops, self.has_many_stops(params), ()
        yield 2, Reason.SLOT_UNUSED, slot not in self.slots, (stops,)
        yield 3, Reason.SLOT_ASSIGNED, lambda: self.slots[slot].key is not None, (stops,)
        yield 3, Reason.TOO_LONG, self.is_long(length, params), (stops,)
        yield 3, Reason.CHOICE_TAKEN, taken, (stops,)
        yield 4, Reason.OUT_OF_PAGES, lacks, ()

    def _prefillable(
        self, requests: tuple[Request, ...], beside: tuple[Reason, ...] = ()
    ) -> Iterator[Condition]:
        tokens = sum(len(request.prompt) for request in requests)
        choices = sum(request.n_generations for request in requests)
        ids = [request.id for request in requests]
        wide = not 1 <= len(requests) <= self.limits.prefill_seqs
        own = {
            (one, choice)
            for one, choice in self.keys
            for request in requests
            if one == request.id and choice < request.n_generations
        }
        outputs = len(self.outputs) + choices
        yield 1, Reason.PREFILL_WIDTH, wide or tokens > self.limits.prefill_tokens, ()
        long = any(self.is_long(len(request.prompt), request.params) for request in requests)
        yield 2, Reason.TOO_LONG, long, ()
        stops = any(self.has_many_stops(request.params) for request in requests)
        yield 2, Reason.STOPS, stops, ()
        yield 2, Reason.CHOICE_TAKEN, bool(own) or len(set(ids)) < len(ids), ()
        past = any(self.is_past_ring(len(request.prompt)) for request in requests)
        yield 3, Reason.TOO_LONG, past, ()
        yield 3.5, Reason.IN_FLIGHT, bool(self.steps), beside
        yield 4, Reason.NO_FREE_SLOT, choices > len(self.free_slots), beside
        lacks = self.pages_of_prefill(requests) > len(self.spare)
        yield 4, Reason.OUT_OF_PAGES, lacks, ()
        yield 4, Reason.QUEUE_FULL, self._queue_lacks(choices), beside
        yield 4, Reason.OUTPUTS_FULL, outputs > self.limits.outputs, beside

    @property
    def _leaving(self) -> list[tuple[int, int, int]]:
        """The queue entries that a round takes."""
        return self.queue[: self.limits.round_tokens]

    def _written_by(self, chunks: Iterable[tuple[int, int]] = ()) -> tuple[tuple[int, int], ...]:
        """The tokens that a round writes: those that leave the queue, and those of chunks."""
        batch = [(slot, position) for _, slot, position in self._leaving]
        for slot, count in chunks:
            begin = self.slots[slot].allocated
            batch += [(slot, position) for position in range(begin, begin + count)]
        return tuple(batch)

    def _drawing(self, chunks: Iterable[tuple[int, int]] = ()) -> list[int]:
        """The slots that draw in a round: those whose last token it writes, lowest first."""
        leaving = {*self._written_by(chunks)}
        return [
            slot
            for slot, held in sorted(self.slots.items())
            if (slot, len(held.tokens) - 1) in leaving
        ]

    def _may_round(self, _action: act.Round) -> Iterator[Condition]:
        yield 1, Reason.QUEUE_EMPTY, not self.queue, ()
        yield from self._may_write_all(self._written_by(), self._drawing(), 2)

    def _may_mix(self, action: act.MixedRound) -> Iterator[Condition]:
        chunks, budget = action.chunks, self.limits.round_tokens
        names = [slot for slot, _ in chunks]
        twice = len(names) > len(set(names)) or any(count < 1 for _, count in chunks)
        yield 1, Reason.SLOT_RANGE, any(self._outside(slot) for slot in names), ()
        yield 2, Reason.SLOT_UNUSED, any(slot not in self.slots for slot in names), ()
        yield 2, Reason.BATCH_POSITIONS, twice, ()
        if {*names} <= self.slots.keys() and not twice:
            helds = [(self.slots[slot], count) for slot, count in chunks]
            long = any(len(held.tokens) < held.allocated + count for held, count in helds)
            waits = any(slot in names for _, slot, _ in self.queue)
            wide = len(self._leaving) + sum(count for _, count in chunks) > budget
            yield 4, Reason.SLOT_EMPTY, any(held.key is None for held, _ in helds), ()
            yield 4, Reason.SLOT_FINISHED, any(held.finished is not None for held, _ in helds), ()
            yield 5, Reason.QUEUE_EMPTY, not self.queue and not chunks, ()
            yield 6, Reason.BATCH_UNKNOWN, long, ()
            yield 7, Reason.BATCH_QUEUED, waits, ()
            yield 8, Reason.BATCH_WIDTH, wide, ()
            yield from self._may_write_all(self._written_by(chunks), self._drawing(chunks), 9)

    def _may_write_all(
        self, batch: tuple[tuple[int, int], ...], drawing: list[int], order: int
    ) -> Iterator[Condition]:
        """What a round asks of the slots of its batch, from this order on."""
        helds = [self.slots[slot] for slot, _ in batch]
        positions, too_long = Reason.BATCH_POSITIONS, Reason.TOO_LONG
        full = len(self.outputs) + len(drawing) > self.limits.outputs
        open_cells = any(held.allocated != held.written for held in helds)
        yield order, Reason.UNWRITTEN, open_cells, ()
        yield order + 1, Reason.PROPOSED, any(held.drafts for held in helds), ()
        yield order + 2, positions, lambda: not self._next(batch, "allocated"), ()
        long, lacks = partial(self.gives_what_is_seen, batch), partial(self.lacks_pages, batch)
        yield order + 3, too_long, long, ()
        yield order + 4, Reason.IN_FLIGHT, bool(self.steps), ()
        yield order + 5, Reason.OUT_OF_PAGES, lacks, ()
        yield order + 5, Reason.OUTPUTS_FULL, full, (positions, too_long)

    def _may_preempt(self, action: act.Preempt) -> Iterator[Condition]:
        yield 1, Reason.NOT_LIVE, not self._going_on(action.request), ()

    def _going_on(self, request: int) -> list[int]:
        """The slots of the choices of a request that have not ended, lowest first."""
        return [
            slot
            for slot, held in sorted(self.slots.items())
            if held.key is not None and held.key[0] == request and held.finished is None
        ]

    def _may_replay(self, action: act.Replay) -> Iterator[Condition]:
        slot, more = action.slot, len(action.tokens)
        yield from self._live(slot)
        yield 4, Reason.BATCH_QUEUED, any(waits == slot for _, waits, _ in self.queue), ()
        yield 5, Reason.PROPOSED, lambda: bool(self.slots[slot].drafts), ()
        yield 6, Reason.TOO_LONG, lambda: self._ends(slot, self._known(slot) + more), ()
        yield from self._waits(3.5, slot)

    def _may_submit(self, action: act.Submit) -> Iterator[Condition]:
        request = action.request
        ids = {one.id for one in (*self.waiting, *self.admitted)} | {one for one, _ in self.keys}
        never = (
            self.worst(request) > self.geometry.pages
            or request.n_generations > self.geometry.slots
            or len(request.prompt) > self.limits.prefill_tokens
        )
        yield 1, Reason.CHOICE_TAKEN, request.id in ids, ()
        yield 1, Reason.TOO_LONG, self.is_long(len(request.prompt), request.params), ()
        yield 1, Reason.STOPS, self.has_many_stops(request.params), ()
        yield 1, Reason.NEVER_FITS, never, ()
        yield 2, Reason.TOO_LONG, self.is_past_ring(len(request.prompt)), ()

    def _overbooked(self, requests: tuple[Request, ...]) -> bool:
        held = sum(map(self.worst, self.admitted))
        return sum(map(self.worst, requests)) + held > self.geometry.pages

    def _may_admit(self, _action: act.Admit) -> Iterator[Condition]:
        yield 1, Reason.QUEUE_EMPTY, not self.waiting, ()
        if self.waiting:
            oldest = (self.waiting[0],)
            yield 2, Reason.OUT_OF_PAGES, self._overbooked(oldest), ()
            yield from self._prefillable(oldest, (Reason.OUT_OF_PAGES,))

    def _may_dispatch(self, action: act.Dispatch) -> Iterator[Condition]:
        names = [slot for slot, _ in action.chunks]
        twice = len(names) > len(set(names)) or any(count < 1 for _, count in action.chunks)
        wide = sum(count for _, count in action.chunks) > self.limits.round_tokens
        yield 1, Reason.SLOT_RANGE, any(map(self._outside, names)), ()
        yield 2, Reason.SLOT_UNUSED, any(slot not in self.slots for slot in names), ()
        yield 2, Reason.BATCH_POSITIONS, twice, ()
        if {*names} <= self.slots.keys():
            still = [self.slots[slot] for slot in names if not self.flying(slot)]
            drafts = any(held.drafts for held in still)
            unwritten = any(held.written < held.allocated for held in still)
            helds = [self.slots[slot] for slot in names]
            yield 3, Reason.SLOT_EMPTY, any(held.key is None for held in helds), ()
            yield 3, Reason.SLOT_FINISHED, any(held.finished is not None for held in helds), ()
            yield 4, Reason.QUEUE_EMPTY, not action.chunks, ()
            yield 5, Reason.UNWRITTEN, unwritten, ()
            yield 6, Reason.PROPOSED, drafts, ()
            yield 7, Reason.BATCH_UNKNOWN, lambda: self._runs_ahead(action), ()
            yield 8, Reason.TOO_LONG, lambda: self._draws_on(action), ()
            yield 9, Reason.BATCH_WIDTH, wide, ()
            yield from self._step_lacks(action)

    def _step_lacks(self, action: act.Dispatch) -> Iterator[Condition]:
        """What a step takes, or its delivery may need, that is not there."""
        batch, drawing = self._cells_of(action), self.awaited | self._draws_of(action)
        waiting = [one for one in self.queue if one[1:] not in batch]
        outputs, queue = len(self.outputs) + len(drawing), len(waiting) + len(drawing)
        beside = (Reason.FLIGHTS_FULL, Reason.OUTPUTS_FULL, Reason.QUEUE_FULL)
        yield 10, Reason.FLIGHTS_FULL, len(self.steps) > LAG, ()
        yield 10, Reason.OUTPUTS_FULL, outputs > self.limits.outputs, ()
        yield 10, Reason.QUEUE_FULL, queue > self.limits.queue, ()
        yield 11, Reason.TOO_LONG, lambda: self.gives_what_is_seen(batch), beside
        yield 12, Reason.OUT_OF_PAGES, lambda: self.lacks_pages(batch), beside

    def _cells_of(self, action: act.Dispatch) -> tuple[tuple[int, int], ...]:
        """The cells that a step takes: the next ones of each slot."""
        return tuple(
            (slot, self.slots[slot].allocated + more)
            for slot, count in action.chunks
            for more in range(count)
        )

    def _draws_of(self, action: act.Dispatch) -> set[int]:
        """The slots whose last token, known or on its way, a step writes."""
        batch = self._cells_of(action)
        return {slot for slot, _ in action.chunks if (slot, self.coming(slot) - 1) in batch}

    def _runs_ahead(self, action: act.Dispatch) -> bool:
        """Whether a step has a position of which no token is known or on its way."""
        return any(position >= self.coming(slot) for slot, position in self._cells_of(action))

    def _draws_on(self, action: act.Dispatch) -> bool:
        """Whether a step would draw a token after the last one of a limit."""
        return any(self._ends(slot, self.coming(slot)) for slot in self._draws_of(action))

    def _may_retire(self, _action: act.Retire) -> Iterator[Condition]:
        yield 1, Reason.NO_FLIGHT, all(step.done for step in self.steps), ()

    def _may_deliver(self, _action: act.Deliver) -> Iterator[Condition]:
        yield 1, Reason.NO_FLIGHT, not any(step.done for step in self.steps[:1]), ()

    # Effects. Each is of an action that is not refused.

    def take(self, action: Action) -> None:
        """Do an action."""
        EFFECTS[type(action)](self, action)
        holding = {held.key[0] for held in self.slots.values() if held.key is not None}
        self.admitted = [request for request in self.admitted if request.id in holding]

    def _reserve(self, action: act.Reserve) -> None:
        self.slots[self._slot(action.slot)] = Held(context=action.context)

    def _append(self, action: act.Append) -> None:
        self.slots[as_slot(action.slot)].tokens += action.tokens

    def _enqueue(self, action: act.Enqueue) -> None:
        self.queue.append((action.token, action.slot, self._known(action.slot)))
        self.slots[action.slot].tokens.append(action.token)

    def _preempt(self, action: act.Preempt) -> None:
        for slot in self._going_on(action.request):
            self._end(slot)

    def _replay(self, action: act.Replay) -> None:
        self.slots[action.slot].tokens.extend(action.tokens)

    def _propose(self, action: act.Propose) -> None:
        for token in action.tokens:
            self.queue.append((token, action.slot, len(self.slots[action.slot].text)))
            self.slots[action.slot].drafts.append(token)

    def _commit(self, action: act.Commit) -> None:
        held = self.slots[action.slot]
        while len(held.tokens) < action.length:
            held.tokens.append(held.drafts.pop(0))
        held.committed = action.length

    def _release(self, action: act.Release) -> None:
        held = self.slots[action.slot]
        self.clock += 1
        for index in range(held.first, action.before // self.geometry.page_size):
            self.disown(action.slot, index)
            held.first = index + 1

    def _hit(self, action: act.Hit) -> None:
        found = self.hits(action.slot, action.length)
        self._begin_with(action.slot, found)
        self.totals["hit"] += len(found)

    def _share(self, action: act.Share) -> None:
        self._begin_with(action.slot, self.in_common(action))
        self.slots[action.slot].stale = self.slots[action.parent].stale

    def _begin_with(self, slot: int, found: list[int]) -> None:
        held = self.slots[slot]
        for index, page in enumerate(found):
            if index in held.row:
                self.disown(slot, index)
            self.own(slot, index, page)
        held.allocated = held.written = held.committed = len(found) * self.geometry.page_size
        self.cover(slot)

    def _publish(self, action: act.Publish) -> None:
        held = self.slots[action.slot]
        for index in range(action.length // self.geometry.page_size):
            key = self.key_of(action.slot, index)
            if self.holder(key) is not None:
                continue
            if index not in held.row:
                break
            self.index[held.row[index]] = key
            self.totals["stored"] += 1

    def _merge(self, action: act.Merge) -> None:
        page = self.holder(self.key_of(action.slot, action.entry))
        assert page is not None
        self.clock += 1
        self.disown(action.slot, action.entry)
        self.own(action.slot, action.entry, page)

    def _drop_index(self) -> None:
        for page in self.since:
            self.kill(page)
        self.totals["removed"] += len(self.index)
        self.index, self.since = {}, {}
        for slot, held in self.slots.items():
            held.stale = held.stale or held.written > 0 or bool(self.flying(slot))

    def _assign(self, action: act.Assign) -> None:
        key = (action.request, action.choice)
        self._give(action.slot, action.prompt, action.params, key)

    def _generate(self, _action: act.Generate) -> None:
        self.rounds = 0, frozenset[Reason]()
        for done in range(self.limits.rounds):
            found = self.reasons(act.Round())
            if found:
                self.rounds = done, found
                break
            self._decode()
            self.rounds = done + 1, found

    def _slot(self, slot: object) -> int:
        return self.free_slots[0] if slot is None else as_slot(slot)

    def _allocate(self, batch: Batch) -> None:
        for slot, up in self.given_up(batch).items():
            self.clock += 1
            for gone in up:
                self.disown(slot, gone)
                self.slots[slot].first = gone + 1
        for slot, positions in by_slot(batch).items():
            held, index = self.slots[slot], self.appends_to(slot)
            if index is not None and len(self.owners[held.row[index]]) > 1:
                page = held.row[index]
                self.disown(slot, index)
                self.copy(slot, index, page)
            held.allocated += len(positions)
            self.cover(slot)

    def _store(self, batch: Batch) -> None:
        for slot, positions in by_slot(batch).items():
            held = self.slots[slot]
            for position in sorted(positions):
                self._fill(held, position)
                if held.written <= len(held.tokens):
                    held.committed = held.written

    def _fill(self, held: Held, position: int) -> None:
        """Write the next cell of a sequence."""
        index, offset = divmod(position, self.geometry.page_size)
        self.cells[held.row[index], offset] = tuple(held.text[: position + 1])
        held.written += 1

    def _dispatch(self, action: act.Dispatch) -> None:
        batch, drawing = self._cells_of(action), self._draws_of(action)
        works = {slot: self.slots[slot].allocated for slot, _ in action.chunks}
        self.queue = [one for one in self.queue if one[1:] not in batch]
        self._allocate(batch)
        step = Step([])
        for slot, start in sorted(works.items()):
            held = self.slots[slot]
            pages = frozenset(held.row.values())
            step.works.append(Work(slot, held, start, held.allocated, slot in drawing, pages))
        self.steps.append(step)

    def _retire(self, _action: act.Retire) -> None:
        step = next(step for step in self.steps if not step.done)
        step.done = True
        for work in filter(self.goes_on, step.works):
            for position in range(work.start, work.stop):
                self._fill(work.owner, position)
            if work.draws:
                work.owner.drafts.append(self._token_after(work.owner))

    def _deliver(self, _action: act.Deliver) -> None:
        step = self.steps.pop(0)
        for work in filter(self.goes_on, step.works):
            held = work.owner
            held.committed = work.stop
            if work.draws:
                self._hear(work.slot, held.drafts.pop(0))
            if held.finished:
                held.drafts.clear()
                self._cut(work.slot, held.committed)
        self._clean()

    def _end(self, slot: int) -> None:
        self.clock += 1
        for index in list(self.slots[slot].row):
            self.disown(slot, index)
        del self.slots[slot]
        self._drop(slot, 0)

    def _pack(self) -> None:
        """The oldest queued tokens leave the queue."""
        del self.queue[: self.limits.round_tokens]

    def _drop(self, slot: int, start: int) -> None:
        """The queued tokens of a slot from a position on leave the queue."""
        self.queue = [one for one in self.queue if one[1] != slot or one[2] < start]

    def _truncate(self, action: act.Truncate) -> None:
        slot, length = action.slot, action.length
        held = self.slots[slot]
        del held.drafts[max(0, length - len(held.tokens)) :]
        self._drop(slot, len(held.text))
        self._cut(slot, length)

    def _cut(self, slot: int, length: int) -> None:
        """The cells of a slot from a length on are no more."""
        held = self.slots[slot]
        held.allocated, held.written = length, min(held.written, length)
        self.clock += 1
        for index, page in list(held.row.items()):
            if index >= self.width(length, held.reserved):
                self.disown(slot, index)
                continue
            begin = length - index * self.geometry.page_size
            for offset in range(max(0, begin), self.geometry.page_size):
                if len(self.owners[page]) == 1:
                    self.cells.pop((page, offset), None)

    def _fork(self, parent: int, child: int, choice: int) -> None:
        held = self.slots[parent]
        assert held.key is not None
        forked = Held(
            first=held.first,
            tokens=list(held.tokens),
            allocated=held.allocated,
            written=held.written,
            committed=held.committed,
            reserved=held.reserved,
            key=(held.key[0], choice),
            prompt=held.prompt,
            params=held.params,
            context=held.context,
            stale=held.stale,
        )
        self.slots[child] = forked
        for index, page in sorted(held.row.items()):
            if index < self.shared(held.written):
                self.own(child, index, page)
            elif index * self.geometry.page_size < held.written:
                self.copy(child, index, page)
        self.cover(child)
        self.queue += [(token, child, at) for token, slot, at in self.queue if slot == parent]

    def _give(self, slot: int, prompt: Tokens, params: Params, key: tuple[int, int]) -> None:
        held = self.slots[slot]
        held.tokens, held.prompt, held.params, held.key = list(prompt), len(prompt), params, key
        held.reserved = self.promised(len(prompt), params)
        self.cover(slot)

    def _begin(self, requests: tuple[Request, ...]) -> None:
        slots = iter(self.free_slots)
        chosen = [[next(slots) for _ in range(one.n_generations)] for one in requests]
        batch = []
        for request, (first, *_) in zip(requests, chosen, strict=True):
            self.slots[first] = Held()
            self._give(first, request.prompt, request.params, (request.id, 0))
            batch += [(first, position) for position in range(len(request.prompt))]
        self._allocate(tuple(batch))
        self._store(tuple(batch))
        for first, *others in chosen:
            for choice, slot in enumerate(others, 1):
                self._fork(first, slot, choice)
        for slot in [slot for group in chosen for slot in group]:
            self._draw(slot)
        self._clean()

    def _let_in(self) -> None:
        chosen: tuple[Request, ...] = ()
        for request in self.waiting:
            more = (*chosen, request)
            if self._overbooked(more) or self.reasons(act.Prefill(more)):
                break
            chosen = more
        del self.waiting[: len(chosen)]
        self._begin(chosen)
        self.admitted += chosen

    def _decode(self, chunks: Iterable[tuple[int, int]] = ()) -> None:
        batch, drawing = self._written_by(chunks), self._drawing(chunks)
        self._pack()
        self._allocate(batch)
        self._store(batch)
        for slot in drawing:
            self._draw(slot)
        self._clean()

    def _draw(self, slot: int) -> None:
        """Draw the next token of a slot, which ends the sequence, or waits in the queue."""
        self._hear(slot, self._token_after(self.slots[slot]))

    def _token_after(self, held: Held) -> int:
        """The token that a sequence draws after its text."""
        assert held.params is not None
        assert held.key is not None
        word = 0
        if held.params.temperature > 0:
            for number in (held.params.seed, held.key[1], len(held.text)):
                word = model.mix(word + number)
        return model.next_token(tuple(held.text), word, self.geometry.window)

    def _hear(self, slot: int, token: int) -> None:
        """A drawn token is known: it ends the sequence, waits, or has its position in a step."""
        held = self.slots[slot]
        assert held.params is not None
        assert held.key is not None
        held.tokens.append(token)
        drawn = held.tokens[held.prompt :]
        ends = [list(stop) for stop in held.params.stops]
        if any(len(drawn) >= len(end) and drawn[len(drawn) - len(end) :] == end for end in ends):
            held.finished = FinishReason.STOP
        elif len(drawn) >= held.params.max_new:
            held.finished = FinishReason.LIMIT
        if held.finished:
            self.outputs.append((*held.key, tuple(drawn), held.finished))
        elif not self.flying(slot):
            self.queue.append((token, slot, len(held.tokens) - 1))

    def _clean(self) -> None:
        unfinished = any(held.finished is None for held in self.slots.values())
        if self.cleanup is CleanupMode.INCREMENTAL:
            self._end_finished()
        if self.cleanup is CleanupMode.END and not unfinished:
            self._end_finished()

    def _end_finished(self) -> None:
        for slot in [slot for slot, held in sorted(self.slots.items()) if held.finished]:
            self._end(slot)

    # What can be observed.

    def shown(self) -> dict[str, object]:
        """Every field of a view, as the specification names them, and the statistics."""
        sizes, none = self.geometry, Held()
        helds = [self.slots.get(slot, none) for slot in range(sizes.slots)]
        rows = tuple(
            tuple(held.row.get(index, INVALID) for index in range(sizes.pages_per_seq))
            for held in helds
        )
        ages = sorted(set(self.since.values()))
        return {
            "used": tuple(slot in self.slots for slot in range(sizes.slots)),
            "rows": rows,
            "counts": tuple(map(len, self.owners)),
            "allocated": tuple(held.allocated for held in helds),
            "written": tuple(held.written for held in helds),
            "committed": tuple(held.committed for held in helds),
            "first_page": tuple(held.first for held in helds),
            "indexed": tuple(self.index.get(page, ()) for page in range(sizes.pages)),
            "idle_ranks": tuple(
                ages.index(self.since[page]) + 1 if page in self.since else 0
                for page in range(sizes.pages)
            ),
            "contexts": tuple(held.context for held in helds),
            "stale": tuple(held.stale for held in helds),
            "tokens": tuple(tuple(held.tokens) for held in helds),
            "proposed": tuple(tuple(held.drafts) for held in helds),
            "finished": tuple(held.finished is not None for held in helds),
            "queue": tuple(self.queue),
            "outputs": tuple(self.outputs),
            "flights": tuple(map(self._shown_step, self.steps)),
            "held": tuple(
                sum(any(page in work.pages for work in step.works) for step in self.steps)
                for page in range(sizes.pages)
            ),
        }

    def _shown_step(self, step: Step) -> tuple[object, ...]:
        parts, kept = list[tuple[int, int, int, bool]](), list[int]()
        for work in step.works:
            if self.goes_on(work):
                parts.append((work.slot, work.start, work.stop - work.start, work.draws))
            else:
                kept.append(work.slot)
        return step.done, tuple(parts), tuple(kept)

    def statistics(self) -> dict[str, object]:
        """What an engine may show of itself, as the specification names it."""
        live = sorted(held.key for held in self.slots.values() if held.key is not None)
        spare, idle = len(self.spare), len(self.idle)
        return {
            "active": len(self.slots),
            "pages_in_use": self.geometry.pages - spare,
            "free_pages": spare - idle,
            "idle_pages": idle,
            **{f"{name}_pages": total for name, total in self.totals.items()},
            "largest_count": max(map(len, self.owners)),
            "queued": len(self.queue),
            "outputs": len(self.outputs),
            "occupants": tuple(live),
            "untaken": tuple(sorted((request, choice) for request, choice, _, _ in self.outputs)),
            "waiting": tuple(request.id for request in self.waiting),
            "admitted": tuple(request.id for request in self.admitted),
        }


def as_slot(name: object) -> int:
    """The name of a sequence, which is a slot here."""
    assert isinstance(name, int)
    return name


def by_slot(batch: Batch) -> dict[int, list[int]]:
    """The positions of each slot, slots ascending."""
    found: dict[int, list[int]] = {}
    for slot, position in sorted(entry for entry in batch if entry is not None):
        found.setdefault(slot, []).append(position)
    return found


CONDITIONS: Final[Mapping[type, Callable[[SecondReading, Any], Iterator[Condition]]]] = {
    act.Reserve: SecondReading._may_reserve,
    act.Append: SecondReading._may_append,
    act.Allocate: SecondReading._may_allocate,
    act.Write: SecondReading._may_write,
    act.Free: SecondReading._may_end,
    act.Clone: SecondReading._may_clone,
    act.Propose: SecondReading._may_propose,
    act.Commit: SecondReading._may_commit,
    act.Truncate: SecondReading._may_truncate,
    act.Release: SecondReading._may_release,
    act.Hit: SecondReading._may_hit,
    act.Share: SecondReading._may_share,
    act.Publish: SecondReading._may_publish,
    act.Merge: SecondReading._may_merge,
    act.Evict: SecondReading._may_evict,
    act.Assign: SecondReading._may_assign,
    act.Enqueue: SecondReading._may_enqueue,
    act.Purge: SecondReading._may_end,
    act.Prefill: SecondReading._may_prefill,
    act.Round: SecondReading._may_round,
    act.MixedRound: SecondReading._may_mix,
    act.Preempt: SecondReading._may_preempt,
    act.Replay: SecondReading._may_replay,
    act.Submit: SecondReading._may_submit,
    act.Admit: SecondReading._may_admit,
    act.Dispatch: SecondReading._may_dispatch,
    act.Retire: SecondReading._may_retire,
    act.Deliver: SecondReading._may_deliver,
}
"""The conditions of each action that may be refused."""
EFFECTS: Final[Mapping[type, Callable[[SecondReading, Any], None]]] = {
    act.Reserve: SecondReading._reserve,
    act.Append: SecondReading._append,
    act.Allocate: lambda reading, action: reading._allocate(action.batch),
    act.Write: lambda reading, action: reading._store(action.batch),
    act.Free: lambda reading, action: reading._end(action.slot),
    act.Clone: lambda reading, action: reading._fork(
        action.parent, reading._slot(action.child), action.choice
    ),
    act.Propose: SecondReading._propose,
    act.Commit: SecondReading._commit,
    act.Truncate: SecondReading._truncate,
    act.Release: SecondReading._release,
    act.Hit: SecondReading._hit,
    act.Share: SecondReading._share,
    act.Publish: SecondReading._publish,
    act.Merge: SecondReading._merge,
    act.Evict: lambda reading, action: reading.forget((action.context, *action.tokens)),
    act.Drop: lambda reading, _: reading._drop_index(),
    act.Assign: SecondReading._assign,
    act.FreeFinished: lambda reading, _: reading._end_finished(),
    act.Reset: lambda reading, _: reading.clear(),
    act.TakeOutputs: lambda reading, _: reading.outputs.clear(),
    act.Enqueue: SecondReading._enqueue,
    act.Pack: lambda reading, _: reading._pack(),
    act.Purge: lambda reading, action: reading._drop(action.slot, 0),
    act.Prefill: lambda reading, action: reading._begin(action.requests),
    act.Round: lambda reading, _: reading._decode(),
    act.MixedRound: lambda reading, action: reading._decode(action.chunks),
    act.Preempt: SecondReading._preempt,
    act.Replay: SecondReading._replay,
    act.Generate: SecondReading._generate,
    act.Submit: lambda reading, action: reading.waiting.append(action.request),
    act.Admit: lambda reading, _: reading._let_in(),
    act.Dispatch: SecondReading._dispatch,
    act.Retire: SecondReading._retire,
    act.Deliver: SecondReading._deliver,
}
"""The effect of each action."""
