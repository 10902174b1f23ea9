"""A second reading of the clauses: each as a function from views to whether it is violated.

It was written from the sentences of docs/clauses.md and the pages that define their words, apart
from the predicates of `spec.clauses`, so that a mistake in one of them shows as a difference. It is
brute force: it asks of every page, position and query, and knows no messages. Where a sentence
could be read in several ways, the docstring says how it is read.
"""

from collections.abc import Callable, Mapping
from typing import Final

from spec.cells import POISON
from spec.fields import QueueEntry
from spec.view import View
from spec.vocabulary import INVALID, Tokens

# What a view says. A hidden field is that of an engine without the rung that adds it.


def slots(view: View) -> range:
    """Every slot."""
    return range(view.geometry.slots)


def used(view: View) -> list[int]:
    """The slots with a sequence."""
    return [slot for slot in slots(view) if view.used[slot]]


def going_on(before: View, after: View) -> list[int]:
    """The slots of which the sequence goes on: no action both ends and begins one in a slot."""
    return [slot for slot in slots(before) if before.used[slot] and after.used[slot]]


def entry(numbers: tuple[int, ...] | None, slot: int) -> int:
    """A number of a slot; 0 if it is hidden."""
    return 0 if numbers is None else numbers[slot]


def written(view: View, slot: int) -> int:
    """How many cells of a slot hold K and V."""
    return entry(view.written, slot)


def committed(view: View, slot: int) -> int:
    """How many of its leading cells are final: every written one if there are no drafts."""
    return written(view, slot) if view.committed is None else view.committed[slot]


def text(view: View, slot: int) -> Tokens:
    """The known tokens of a slot, and its drafts after them."""
    drafts = () if view.proposed is None else view.proposed[slot]
    return (() if view.tokens is None else view.tokens[slot]) + drafts


def owners(view: View, page: int) -> set[int]:
    """The slots whose rows name a page."""
    return {slot for slot, _ in names(view, page)}


def names(view: View, page: int) -> list[tuple[int, int]]:
    """The row entries of used slots that name a page, as (slot, index)."""
    return [
        (slot, index)
        for slot in used(view)
        for index, named in enumerate(view.rows[slot])
        if named == page
    ]


def page_of(view: View, slot: int, position: int) -> int | None:
    """The page in which a position of a slot lies, by its row; None if there is none."""
    for index, page in enumerate(view.rows[slot]):
        first = index * view.geometry.page_size
        if first <= position < first + view.geometry.page_size and page in pages(view):
            return page
    return None


def pages(view: View) -> range:
    """Every page."""
    return range(view.geometry.pages)


def released(view: View, slot: int, position: int) -> bool:
    """Whether the page of a position was given back."""
    return position < entry(view.first_page, slot) * view.geometry.page_size


def sees(view: View, query: int, position: int) -> bool:
    """Whether a query sees a position: its own, and those before it in the window."""
    window = view.geometry.window
    return position <= query and (window is None or query - position < window)


def content(view: View, slot: int, position: int) -> object:
    """What a cell holds; None if the row names no page for it."""
    page, size = page_of(view, slot, position), view.geometry.page_size
    assert view.cells is not None
    return None if page is None else view.cells[page * size + position % size]


def index_of(view: View) -> dict[int, Tokens]:
    """The key of each page of the index: a context, and tokens; empty if the index is hidden."""
    return {page: key for page, key in enumerate(view.indexed or ()) if key}


def cells_of(view: View, page: int) -> list[object]:
    """What the cells of a page hold; nothing if they are hidden."""
    size = view.geometry.page_size
    return list((view.cells or ())[page * size : (page + 1) * size])


def open_steps(view: View, slot: int) -> list[range]:
    """The positions that each step in flight has of the sequence of a slot, oldest first."""
    return [
        range(first, first + count)
        for _, parts, _ in view.flights or ()
        for other, first, count, _ in parts
        if other == slot
    ]


def heard(view: View, slot: int) -> Tokens:
    """What the host knows of the text of a slot: of one in a step, the known tokens alone."""
    if open_steps(view, slot):
        return () if view.tokens is None else view.tokens[slot]
    return text(view, slot)


def in_a_step(view: View, slot: int, position: int) -> bool:
    """Whether a step in flight has a position of a slot."""
    return any(position in positions for positions in open_steps(view, slot))


# Clauses of one view.


def cons(view: View) -> bool:
    """A page is free or idle if its count is 0, or else live: a row names it.

    That no page is both is UAF.
    """
    assert view.counts is not None
    return any(view.counts[page] != 0 and not names(view, page) for page in pages(view))


def uaf(view: View) -> bool:
    """A page that a row names is one of the pool with a count. No index or step is shown."""
    assert view.counts is not None
    return any(
        named not in pages(view) or view.counts[named] == 0
        for slot in used(view)
        for named in view.rows[slot]
        if named != INVALID
    )


def rc(view: View) -> bool:
    """The count and the number of entries, page by page."""
    assert view.counts is not None
    return any(view.counts[page] != len(names(view, page)) for page in pages(view))


def row(view: View) -> bool:
    """Entry by entry: a page where a covered cell lies that is not released, nothing elsewhere."""
    return any(wrong_row(view, slot) for slot in slots(view))


def wrong_row(view: View, slot: int) -> bool:
    """Whether the row of a slot has another entry than it should, or a page twice."""
    assert view.allocated is not None
    size, longest = view.geometry.page_size, view.geometry.page_size * view.geometry.pages_per_seq
    allocated = view.allocated[slot]
    ahead = allocated + view.capacity.lookahead if allocated > 0 else 0
    kept = view.reserved[slot] if view.reserved else 0
    seen = set[int]()
    for index, page in enumerate(view.rows[slot]):
        cells = range(index * size, index * size + size)
        covered = any(cell < longest and (cell < ahead or cell < kept) for cell in cells)
        wanted = view.used[slot] and covered and not released(view, slot, cells[0])
        if wanted and (page == INVALID or page in seen):
            return True
        if not wanted and page != INVALID:
            return True
        seen.add(page)
    return 0 < view.capacity.ring < len(seen - {INVALID})


def length(view: View) -> bool:
    """The chain of lengths; a final cell has a known token, and an unused slot has nothing."""
    assert view.allocated is not None
    assert view.tokens is not None
    longest = view.geometry.page_size * view.geometry.pages_per_seq
    for slot in slots(view):
        done, known, final = written(view, slot), text(view, slot), committed(view, slot)
        if not 0 <= final <= done <= view.allocated[slot] <= longest:
            return True
        if done > len(known) or final > len(view.tokens[slot]):
            return True
        if not view.used[slot] and (view.allocated[slot] or known):
            return True
    return False


def share(view: View) -> bool:
    """Of each entry for a page with several: its cells are final, or some are and none follow."""
    return any(
        len(names(view, page)) > 1
        and not full(view, *name)
        and not (view.capacity.copy == "lazy" and untouched(view, *name))
        for slot in used(view)
        for page in set(view.rows[slot]) - {INVALID}
        for name in names(view, page)
    )


def full(view: View, slot: int, index: int) -> bool:
    """Whether every cell of a page of a slot is committed."""
    size = view.geometry.page_size
    return all(cell < committed(view, slot) for cell in range(index * size, index * size + size))


def untouched(view: View, slot: int, index: int) -> bool:
    """Whether a page is the partial last one of a slot, all cells of which are committed."""
    size, end = view.geometry.page_size, committed(view, slot)
    allocated = written(view, slot) if view.allocated is None else view.allocated[slot]
    return allocated == end and index * size < end < index * size + size


def win(view: View) -> bool:
    """Position by position and query by query: those at `committed` and after it are to come.

    A slot without a sequence is one without cells: nothing of it is released either.
    """
    return any(
        entry(view.first_page, slot) < 0
        or any(
            sees(view, query, position)
            for position in range(entry(view.first_page, slot) * view.geometry.page_size)
            for query in range(committed(view, slot), max(committed(view, slot), position) + 1)
        )
        for slot in slots(view)
    )


def contents(view: View) -> bool:
    """The tag of the tokens up to and including its own, cell by cell."""
    return any(
        position >= len(text(view, slot))
        or content(view, slot, position) != view.expected(text(view, slot)[: position + 1])
        for slot in slots(view)
        for position in range(written(view, slot))
        if position >= len(text(view, slot)) or not released(view, slot, position)
    )


def read(view: View) -> bool:
    """What each query up to the next one sees or saw of the cells that are left: no POISON.

    That they are its own, in order, needs the tokens: CONTENT. That it sees no other is WIN.
    """
    return any(
        content(view, slot, position) == POISON
        for slot in slots(view)
        for query in range(written(view, slot) + 1)
        for position in range(written(view, slot))
        if sees(view, query, position) and not released(view, slot, position)
    )


def queue(view: View) -> bool:
    """An entry is a token not written yet of a live slot; those of a slot follow on one another."""
    assert view.queue is not None
    assert view.finished is not None
    for at, (token, slot, position) in enumerate(view.queue):
        if slot not in used(view) or view.finished[slot]:
            return True
        known = text(view, slot)
        waits = position >= written(view, slot) and position in range(len(known))
        if not waits or known[position] != token or in_a_step(view, slot, position):
            return True
        earlier = [there for _, other, there in view.queue[:at] if other == slot]
        if earlier and position != earlier[-1] + 1:
            return True
    return False


def outputs(view: View) -> bool:
    """A choice of a request has one output, with the token that ended it."""
    assert view.outputs is not None
    keys = [(request, choice) for request, choice, _, _ in view.outputs]
    return any(keys.count(key) > 1 for key in keys) or any(not one[2] for one in view.outputs)


def prefixes(view: View) -> bool:
    """A page of the index has a key of whole pages, alone, and holds it; a row names it by it."""
    index, size = index_of(view), view.geometry.page_size
    for page, key in index.items():
        tokens, held = key[1:], cells_of(view, page)
        if not tokens or len(tokens) % size or list(index.values()).count(key) > 1:
            return True
        if held != [view.expected(tokens[:end]) for end in range(1, len(tokens) + 1)][-size:]:
            return True
    if view.contexts is None or view.tokens is None:
        return False
    return any(
        len(key) != 1 + (at + 1) * size
        or key[0] != view.contexts[slot]
        or key[1:] != view.tokens[slot][: (at + 1) * size]
        for page, key in index.items()
        for slot, at in names(view, page)
    )


def chain(view: View) -> bool:
    """Behind a page of the index stands each that holds more: without its last page of tokens."""
    keys, size = list(index_of(view).values()), view.geometry.page_size
    return any(len(key) - 1 > size and key[:-size] not in keys for key in keys)


def snap(view: View) -> bool:
    """Step by step: none has retired before an older one, and a slot goes on where it stopped."""
    assert view.flights is not None
    late = [number for number, (retired, _, _) in enumerate(view.flights) if not retired]
    if any(retired for retired, _, _ in view.flights[min(late, default=0) :] if late):
        return True
    return any(misplaced(view, slot) for slot in slots(view))


def misplaced(view: View, slot: int) -> bool:
    """Whether the steps of a slot have other positions than its cells that are not delivered.

    Those of the steps that have retired are written, and no others.
    """
    steps = [
        (retired, range(first, first + count))
        for retired, parts, _ in view.flights or ()
        for other, first, count, _ in parts
        if other == slot
    ]
    if not steps:
        return False
    if not all(step for _, step in steps):
        return True
    every = [at for _, step in steps for at in step]
    done = [at for retired, step in steps if retired for at in step]
    start = every[0] if view.committed is None else min(every[0], view.committed[slot])
    end = every[-1] + 1 if view.allocated is None else view.allocated[slot]
    written = start + len(done) if view.written is None else view.written[slot]
    return (
        every != list(range(start, end)) or written < start or done != list(range(start, written))
    )


def settled(view: View) -> bool:
    """Slot by slot: the oldest step has the first cell that is not delivered; SNAP says the order.

    A row names a page of the index only if each of its cells is committed.
    """
    size = view.geometry.page_size
    return any(
        committed(view, slot) > step.start
        for slot in slots(view)
        for step in open_steps(view, slot)[:1]
    ) or any(
        not full(view, slot, index)
        for slot in used(view)
        for index, page in enumerate(view.rows[slot][: view.geometry.max_len // size])
        if page in index_of(view)
    )


def fence(view: View) -> bool:
    """A slot that is only held has the sequence that ended, or none."""
    assert view.flights is not None
    assert view.finished is not None
    return any(
        slot in used(view) and not view.finished[slot]
        for _, _, kept in view.flights
        for slot in kept
    )


# Clauses of a step.


def wx(before: View, after: View) -> bool:
    """Each position that a sequence writes, as it goes on: others may clone one that began.

    An entry for no page of the pool counts as one for a page. A page that the index has before and
    after, under one key, is hit: it is not written at all. So is a whole page that a sequence
    begins with, and that another has before and after.
    """
    size = before.geometry.page_size
    for slot in going_on(before, after):
        for position in range(written(before, slot), written(after, slot)):
            page = next(iter(after.rows[slot][position // size :]), INVALID)
            if page == INVALID:
                continue
            key = index_of(before).get(page)
            others = owners(before, page) & owners(after, page) - {slot}
            begins = written(before, slot) == 0
            whole = written(after, slot) >= (position // size + 1) * size
            if (key is not None and key == index_of(after).get(page)) or (
                others and begins and whole
            ):
                if cells_of(before, page) != cells_of(after, page):
                    return True
            elif len(names(after, page)) != 1:
                return True
    return False


def evict(before: View, after: View) -> bool:
    """A page that stays in a row leaves the index with an idle page before it, or with all."""
    old, new = index_of(before), index_of(after)
    left = {page: key for page, key in old.items() if new.get(page) != key}
    stays = {
        before.rows[slot][at]
        for slot in going_on(before, after)
        for at in range(before.geometry.pages_per_seq)
        if before.rows[slot][at] == after.rows[slot][at]
    }
    idle = [key for page, key in left.items() if page not in stays]
    return bool(new) and any(
        page in stays and not any(key[: len(other)] == other for other in idle)
        for page, key in left.items()
    )


def frame(before: View, after: View) -> bool:
    """A sequence with the same tokens and cells was not acted on: its cells hold what they held."""
    assert before.tokens is not None
    assert after.tokens is not None
    return any(
        content(before, slot, position) != content(after, slot, position)
        for slot in slots(before)
        if before.tokens[slot] == after.tokens[slot]
        if written(before, slot) == written(after, slot)
        for position in range(written(after, slot))
        if not released(after, slot, position)
    )


def rb(before: View, after: View) -> bool:
    """Slot by slot, what Commit and Truncate leave of drafts and cells."""
    return any(wrongly_accepted(before, after, slot) for slot in slots(before)) or any(
        wrongly_cut(before, after, slot) for slot in used(after)
    )


def wrongly_accepted(before: View, after: View, slot: int) -> bool:
    """Whether a slot with drafts has further known tokens that are not the first of them.

    Nothing follows a draft but a draft, and the rest of them stay, unless the sequence has ended.
    """
    assert before.tokens is not None
    assert before.proposed is not None
    assert after.tokens is not None
    hidden = after.finished is None and open_steps(before, slot) != []
    if hidden or (after.finished is not None and after.finished[slot]):
        return False
    further = len(after.tokens[slot]) > len(before.tokens[slot])
    return further and before.proposed[slot] != () and text(before, slot) != text(after, slot)


def wrongly_cut(before: View, after: View, slot: int) -> bool:
    """Whether a slot that knows the same tokens has fewer cells or drafts, and was not truncated.

    The length of the truncation is that which the slot has after it. What lies below it stays.
    """
    assert before.allocated is not None
    assert after.allocated is not None
    assert before.tokens is not None
    assert after.tokens is not None
    old, new, end = text(before, slot), text(after, slot), after.allocated[slot]
    if before.tokens[slot] != after.tokens[slot]:
        return False
    if end >= before.allocated[slot] and len(new) >= len(old):
        return False
    if open_steps(after, slot):
        return True
    known = len(before.tokens[slot])
    left = tuple(token for at, token in enumerate(old) if at < known or at < end)
    if before.queue is not None and after.queue is not None:
        waiting = [one for one in before.queue if one[1] != slot or one[2] < len(left)]
        if list(after.queue) != waiting:
            return True
    return (
        new != left
        or written(after, slot) != min(written(before, slot), end)
        or committed(after, slot) != committed(before, slot)
    )


def win_across(before: View, after: View) -> bool:
    """A release is an action on one slot: of all that go on, at most one has another first page.

    In a ring, slots that have a page in a later entry than before are not counted.
    """
    moved = [
        slot
        for slot in going_on(before, after)
        if entry(before.first_page, slot) != entry(after.first_page, slot)
    ]
    if after.capacity.ring and before.capacity.ring:
        moved = [slot for slot in moved if last_named(after, slot) <= last_named(before, slot)]
    return len(moved) > 1


def last_named(view: View, slot: int) -> int:
    """The last entry of a row that names a page; -1 if none does."""
    return max((at for at, page in enumerate(view.rows[slot]) if page != INVALID), default=-1)


def queue_across(before: View, after: View) -> bool:
    """What waits keeps its order before all that is new, which waits too, and nothing is lost."""
    assert before.queue is not None
    assert after.queue is not None
    kept = [one for one in before.queue if one in after.queue]
    if list(after.queue)[: len(kept)] != kept:
        return True
    lost = [one for one in before.queue if one not in after.queue and not spent(after, one)]
    if lost and not (alone(before, after) and handed_out(before, after)):
        return True
    return any(
        unqueued(before, after, slot, position)
        for slot in used(after)
        for position in range(len(heard(before, slot)), len(heard(after, slot)))
    )


def spent(after: View, one: QueueEntry) -> bool:
    """Whether a queued token is written or in a step, or is no token of one that goes on."""
    assert after.finished is not None
    token, slot, position = one
    if slot not in used(after) or after.finished[slot]:
        return True
    known = text(after, slot)
    if position < written(after, slot) or in_a_step(after, slot, position):
        return True
    return position >= len(known) or known[position] != token


def handed_out(before: View, after: View) -> bool:
    """Whether what left the queue is the first of it, as by Pack, or all of one slot: Purge."""
    assert before.queue is not None
    assert after.queue is not None
    gone = [one for one in before.queue if one not in after.queue]
    return gone == list(before.queue)[: len(gone)] or any(
        gone == [one for one in before.queue if one[1] == slot]
        and slot not in {other for _, other, _ in after.queue}
        for slot in slots(before)
    )


def alone(before: View, after: View) -> bool:
    """Whether the queue changes while no sequence does, and no output comes or goes."""
    fields = ("used", "rows", "allocated", "written", "tokens", "proposed", "outputs")
    return all(getattr(before, name) == getattr(after, name) for name in fields)


def unqueued(before: View, after: View, slot: int, position: int) -> bool:
    """Whether a new token, not written, should wait in the queue and does not.

    Neither the prompt of a slot that was in use waits, nor the token that ends a sequence. What is
    replayed does not wait: it comes where nothing waited and no step is in flight, and no cell of
    the slot is written. Nor does what a step in flight has already. A clone has what its parent
    had: what is not queued for the one is not queued for the other.
    """
    assert before.tokens is not None
    assert after.tokens is not None
    assert after.queue is not None
    assert after.finished is not None
    token = heard(after, slot)[position]
    if (token, slot, position) in after.queue or position < written(after, slot):
        return False
    if in_a_step(after, slot, position):
        return False
    if after.finished[slot] or (before.used[slot] and before.tokens[slot] == ()):
        return False
    if before.used[slot]:
        flying = open_steps(before, slot) != []
        return flying or waits(before, slot) or written(before, slot) != written(after, slot)
    return not any(
        before.tokens[parent] == after.tokens[slot] and (token, parent, position) not in after.queue
        for parent in used(before)
    )


def waits(view: View, slot: int) -> bool:
    """Whether a token of a slot is in the queue."""
    assert view.queue is not None
    return slot in {other for _, other, _ in view.queue}


def outputs_across(before: View, after: View) -> bool:
    """If any of the outputs are left they all are, in front of what is new; or all were taken."""
    assert before.outputs is not None
    assert after.outputs is not None
    keys = [(request, choice) for request, choice, _, _ in after.outputs]
    left = any((request, choice) in keys for request, choice, _, _ in before.outputs)
    return left and after.outputs[: len(before.outputs)] != before.outputs


def snap_across(before: View, after: View) -> bool:
    """Each step that stays has its slots, and those with positions have the ones they had.

    If there is one fewer, the oldest one was delivered, which had retired; there never are two
    fewer. A slot may come to be only held, and what has retired stays so.
    """
    assert before.flights is not None
    assert after.flights is not None
    delivered = len(before.flights) - len(after.flights)
    if delivered > 1 or (delivered == 1 and not before.flights[0][0]):
        return True
    for number, (retired, parts, kept) in enumerate(after.flights):
        older = number + max(0, delivered)
        if older >= len(before.flights):
            continue
        done, parts_before, kept_before = before.flights[older]
        if not set(parts) <= set(parts_before) or (done and not retired):
            return True
        if {slot for slot, *_ in parts}.union(kept) != {slot for slot, *_ in parts_before}.union(
            kept_before
        ):
            return True
    return False


def held(view: View) -> bool:
    """Position by position that a step in flight has: some step names the page."""
    assert view.held is not None
    return any(
        page is not None and view.held[page] == 0
        for slot in slots(view)
        for step in open_steps(view, slot)
        for page in (page_of(view, slot, position) for position in step)
    )


def held_across(before: View, after: View) -> bool:
    """Page by page, if a step in flight names it: no row begins to, but by a hit; it stays named.

    Where there are fewer steps than before some are delivered, and the number may fall.
    """
    assert before.held is not None
    assert after.held is not None
    assert before.counts is not None
    assert before.flights is not None
    assert after.flights is not None
    for page in pages(before):
        key = index_of(before).get(page)
        hit = key is not None and index_of(after).get(page) == key
        free = before.counts[page] == 0 and before.held[page] != 0
        if free and names(after, page) and not names(before, page) and not hit:
            return True
        delivered = len(after.flights) < len(before.flights)
        if after.held[page] < before.held[page] and not delivered:
            return True
    return False


STATE: Final[Mapping[str, tuple[tuple[str, ...], Callable[[View], bool]]]] = {
    "CONS": (("counts",), cons),
    "UAF": (("counts",), uaf),
    "RC": (("counts",), rc),
    "ROW": (("allocated",), row),
    "LEN": (("allocated", "written", "tokens"), length),
    "SHARE": (("written",), share),
    "WIN": (("first_page", "written"), win),
    "CONTENT": (("written", "tokens", "cells"), contents),
    "READ": (("written", "cells"), read),
    "Q": (("queue", "tokens", "written", "finished"), queue),
    "OUT": (("outputs",), outputs),
    "PC": (("indexed", "contexts", "tokens", "cells"), prefixes),
    "CHAIN": (("indexed",), chain),
    "SNAP": (("flights",), snap),
    "SETTLED": (("flights", "committed"), settled),
    "FENCE": (("flights", "finished"), fence),
    "HELD": (("flights", "held", "counts"), held),
}
"""What a clause of one view needs to be shown, and its reading."""

STEP: Final[Mapping[str, tuple[tuple[str, ...], Callable[[View, View], bool]]]] = {
    "WIN": (("first_page", "written"), win_across),
    "Q": (("queue", "tokens", "written", "finished"), queue_across),
    "OUT": (("outputs",), outputs_across),
    "WX": (("written",), wx),
    "EVICT": (("indexed",), evict),
    "FRAME": (("written", "tokens", "cells"), frame),
    "RB": (("allocated", "written", "committed", "tokens", "proposed"), rb),
    "SNAP": (("flights",), snap_across),
    "HELD": (("flights", "held", "counts"), held_across),
}
"""The same of the clauses of a step."""


def violated(view: View) -> set[str]:
    """The clauses that a view violates, of those that it can be asked."""
    return {
        name
        for name, (needs, wrong) in STATE.items()
        if all(getattr(view, field) is not None for field in needs) and wrong(view)
    }


def violated_across(before: View, after: View) -> set[str]:
    """The clauses that a step violates, of those that both views can be asked."""
    return {
        name
        for name, (needs, wrong) in STEP.items()
        if all(getattr(one, field) is not None for one in (before, after) for field in needs)
        and wrong(before, after)
    }


# What the sentences also say, and the predicates of the specification do not ask. Each of these is
# a part of a clause; it is kept apart, so that all the rest is compared without exceptions.


def appended_to(view: View) -> bool:
    """SHARE: somebody appended in a page that others share. They see fewer of its cells."""
    size = view.geometry.page_size
    return view.written is not None and any(
        len({min(max(committed(view, slot) - index * size, 0), size) for slot, index in sharing})
        > 1
        for sharing in (names(view, page) for page in pages(view))
    )


def outside_the_pool(view: View) -> bool:
    """ROW: an entry names no page of the pool. UAF asks it, but only where counts are shown."""
    return view.allocated is not None and any(
        named != INVALID and named not in pages(view)
        for slot in used(view)
        for named in view.rows[slot]
    )


def cells_missing(view: View) -> bool:
    """READ: a query has no cell to read, where none is released."""
    return None not in (view.written, view.cells, view.first_page) and any(
        page_of(view, slot, position) is None and not released(view, slot, position)
        for slot in used(view)
        for position in range(written(view, slot))
    )


def outputs_replaced(before: View, after: View) -> bool:
    """OUT: every output is lost as others come; the action that takes them leaves none."""
    if before.outputs is None or after.outputs is None:
        return False
    return after.outputs != () and after.outputs[: len(before.outputs)] != before.outputs


def no_output(before: View, after: View) -> bool:
    """OUT: more sequences end and stay in their slots than outputs come, so that one is lost."""
    if None in (before.finished, after.finished, before.outputs, after.outputs):
        return False
    assert before.finished is not None
    assert after.finished is not None
    assert before.outputs is not None
    assert after.outputs is not None
    ended = [slot for slot in used(after) if after.finished[slot] and not before.finished[slot]]
    return len(ended) > max(0, len(after.outputs) - len(before.outputs))


def queued_again(before: View, after: View) -> bool:
    """Q: a token that had left the queue, or never waited, waits, and is consumed twice."""
    if before.queue is None or after.queue is None or before.tokens is None:
        return False
    return any(
        one not in before.queue and one[1] in used(before) and one[2] < len(heard(before, one[1]))
        for one in after.queue
    )


UNASKED: Final[Mapping[Callable[[View], bool], str]] = {
    appended_to: "SHARE",
    outside_the_pool: "ROW",
    cells_missing: "READ",
}
"""Parts of clauses of a view that the specification does not ask."""

UNASKED_ACROSS: Final[Mapping[Callable[[View, View], bool], str]] = {
    outputs_replaced: "OUT",
    no_output: "OUT",
    queued_again: "Q",
}
"""The same of a step."""
