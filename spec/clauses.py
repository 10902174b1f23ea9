"""The registry of clauses: every invariant by id, with its text, its sources and its predicate.

A predicate yields a message for each violation: the value seen, and the value that it should be. A
`state` clause judges one view; Q, OUT and WIN also judge a step, the views before and after an
action that was done. A `step` clause judges a step alone. A `run` clause is judged over a whole run
and an `engine` clause by driving an engine; neither has a predicate here.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, Literal

from attrs import frozen

from spec.attention import visible
from spec.cells import POISON
from spec.fields import IndexEntry, PartEntry, QueueEntry
from spec.pool import is_free
from spec.view import View, plain
from spec.vocabulary import INVALID

Kind = Literal["state", "step", "run", "engine"]
StatePredicate = Callable[[View], Iterator[str]]
StepPredicate = Callable[[View, View], Iterator[str]]


@frozen
class Clause:
    """One invariant.

    source: sections of docs/sources.md, by title. needs: fields of the view; a view that hides one
    of them is not checked.
    """

    id: str
    text: str
    source: str
    kind: Kind
    needs: tuple[str, ...] = ()
    holds_in: StatePredicate | None = None
    holds_across: StepPredicate | None = None


def violations(view: View) -> Iterator[tuple[str, str]]:
    """Yield (clause id, message) for each violation of a state clause."""
    for name, holds_in in _of_a_state(view.hidden):
        for wrong in holds_in(view):
            yield name, wrong


def step_violations(before: View, after: View) -> Iterator[tuple[str, str]]:
    """Yield (clause id, message) for each violation by an action that was done."""
    for name, holds_across in _of_a_step(before.hidden | after.hidden):
        for wrong in holds_across(before, after):
            yield name, wrong


def not_checked(view: View) -> tuple[str, ...]:
    """Ids of the state and step clauses that need a field that this view hides."""
    hidden = view.hidden
    clauses = STATE_CLAUSES + STEP_CLAUSES
    return tuple(clause.id for clause in clauses if not hidden.isdisjoint(clause.needs))


@cache
def _of_a_state(hidden: frozenset[str]) -> tuple[tuple[str, StatePredicate], ...]:
    """The predicates that judge a view which hides these fields."""
    return tuple(
        (clause.id, clause.holds_in)
        for clause in STATE_CLAUSES
        if clause.holds_in is not None and hidden.isdisjoint(clause.needs)
    )


@cache
def _of_a_step(hidden: frozenset[str]) -> tuple[tuple[str, StepPredicate], ...]:
    """The predicates that judge two views of which either hides these fields."""
    return tuple(
        (clause.id, clause.holds_across)
        for clause in STATE_CLAUSES + STEP_CLAUSES
        if clause.holds_across is not None and hidden.isdisjoint(clause.needs)
    )


def _conserved(view: View) -> Iterator[str]:
    assert view.counts is not None
    for page, count in enumerate(view.counts):
        if not is_free(view.counts, page) and page not in view.named:
            yield f"counts[{page}] is {count}, should be 0: no row names it, so it is not live"


def _used_after_free(view: View) -> Iterator[str]:
    assert view.counts is not None
    for page in view.named:
        if not 0 <= page < view.geometry.pages:
            yield f"a row names page {page}, should be 0 to {view.geometry.pages - 1}"
        elif is_free(view.counts, page):
            yield f"a row names page {page}, whose count is 0 and should be 1 or more: it is free"


def _counted(view: View) -> Iterator[str]:
    assert view.counts is not None
    for page, count in enumerate(view.counts):
        named = view.named.get(page, 0)
        if count != named:
            yield f"counts[{page}] is {count}, should be {named}: that many row entries name it"


def _rows(view: View) -> Iterator[str]:
    assert view.allocated is not None
    for slot, row in enumerate(view.rows):
        allocated = view.allocated[slot] if view.used[slot] else 0
        reserved = view.reserved[slot] if view.reserved and view.used[slot] else 0
        wanted = view.capacity.row_pages(view.geometry, allocated, reserved)
        first = min(view.first_cell(slot) // view.geometry.page_size, wanted)
        valid = row[first:wanted]
        if INVALID in valid or len(valid) < wanted - first:
            yield f"row {slot} is {_show(row)}, should have {wanted} pages{_from(first)}"
        if _names_any(row[:first]):
            yield f"row {slot} is {_show(row)}, should name nothing before entry {first}"
        if _names_any(row[wanted:]):
            yield f"row {slot} is {_show(row)}, should name nothing after entry {wanted}"
        if view.capacity.ring and len(valid) > view.capacity.ring:
            most = view.capacity.ring
            yield f"row {slot} is {_show(row)}, should name {most} pages at most: it is a ring"
        if len(set(valid)) < len(valid):
            yield f"row {slot} is {_show(row)}, should name no page twice"


def _names_any(entries: tuple[int, ...]) -> bool:
    return entries.count(INVALID) < len(entries)


def _from(first: int) -> str:
    return f", those before entry {first} released" if first else ""


def _lengths(view: View) -> Iterator[str]:
    assert view.allocated is not None
    assert view.written is not None
    assert view.tokens is not None
    for slot, used in enumerate(view.used):
        written, allocated = view.written[slot], view.allocated[slot]
        known = len(view.known(slot))
        if not 0 <= written <= allocated <= view.geometry.max_len or written > known:
            yield (
                f"slot {slot}: written {written}, allocated {allocated}, tokens {known}; should be "
                f"0 <= written <= allocated <= {view.geometry.max_len} and written <= tokens"
            )
        committed = view.committed_cells(slot)
        if not 0 <= committed <= written or committed > len(view.tokens[slot]):
            yield (
                f"slot {slot}: committed {committed}, written {written}, tokens "
                f"{len(view.tokens[slot])}; should be 0 <= committed <= written and "
                "committed <= tokens"
            )
        if not used and (written or allocated or known):
            yield (
                f"slot {slot} is unused: written {written}, allocated {allocated}, tokens {known}; "
                "should be 0, 0, 0"
            )


def _released(view: View) -> Iterator[str]:
    assert view.first_page is not None
    assert view.written is not None
    for slot, first in enumerate(view.first_page):
        committed = view.committed_cells(slot)
        seen = visible(committed, committed + 1, view.geometry.window).start
        most = seen // view.geometry.page_size
        if not 0 <= first <= most:
            yield (
                f"slot {slot} has released {first} pages, should be {most} at most: a query at "
                f"position {committed} sees position {seen}"
            )


def _released_alone(before: View, after: View) -> Iterator[str]:
    """A release is an action on one slot; a slot that was or is unused has begun or ended.

    In a ring a row also gives pages up for new ones.
    """
    assert before.first_page is not None
    assert after.first_page is not None
    moved = [
        slot
        for slot, used in enumerate(before.used)
        if used and after.used[slot] and before.first_page[slot] != after.first_page[slot]
    ]
    if before.capacity.ring:
        moved = [slot for slot in moved if _end(after.rows[slot]) <= _end(before.rows[slot])]
    for slot in moved[1:]:
        yield (
            f"slot {slot} has released {after.first_page[slot]} pages, should be "
            f"{before.first_page[slot]}: slot {moved[0]} released in this step"
        )


def _end(row: tuple[int, ...]) -> int:
    """The number of entries up to the last one that names a page."""
    return max((entry + 1 for entry, page in enumerate(row) if page != INVALID), default=0)


def _contents(view: View) -> Iterator[str]:
    assert view.written is not None
    assert view.tokens is not None
    for slot, written in enumerate(view.written):
        tokens = view.known(slot)
        if written > len(tokens):
            yield f"slot {slot} has {written} written cells, should have {len(tokens)} or fewer"
            continue
        held = view.read(slot) if written else ()
        for position in range(view.first_cell(slot), len(held)):
            value, wanted = held[position], plain(view.expected(tokens[: position + 1]))
            if value != wanted:
                yield f"slot {slot} position {position} holds {value}, should hold {wanted}"
                break


def _shared(view: View) -> Iterator[str]:
    assert view.written is not None
    shared = {page: named for page, named in view.named.items() if named > 1}
    for slot, row in enumerate(view.rows) if shared else ():
        if view.used[slot]:
            full = view.committed_cells(slot) // view.geometry.page_size
            for page in row[full + _may_copy(view, slot) :]:
                if page in shared:
                    named = shared[page]
                    yield f"page {page} has {named} names, should have 1: slot {slot} can write it"


def _may_copy(view: View, slot: int) -> bool:
    """Whether a slot that appends may still copy its partial last page, as lazy copies do."""
    if view.capacity.copy == "eager":
        return False
    lengths = view.written if view.allocated is None else view.allocated
    assert lengths is not None
    committed = view.committed_cells(slot)
    return committed % view.geometry.page_size != 0 and lengths[slot] == committed


def _reads(view: View) -> Iterator[str]:
    assert view.written is not None
    for slot, written in enumerate(view.written):
        read, first = view.read(slot) if written else (), view.first_cell(slot)
        if POISON in read[first:]:
            position = read.index(POISON, first)
            yield f"slot {slot} position {position} is POISON, should be what was written there"


def _queued(view: View) -> Iterator[str]:
    assert view.queue is not None
    assert view.tokens is not None
    assert view.written is not None
    assert view.finished is not None
    last: dict[int, int] = {}
    for token, slot, position in view.queue:
        entry = f"token {token} is queued for slot {slot} position {position}"
        dead = not 0 <= slot < view.geometry.slots or not view.used[slot]
        if dead or view.finished[slot]:
            yield f"{entry}, should not be: the slot is not decoding"
            continue
        known, following = view.known(slot), last.get(slot, position - 1) + 1
        if not 0 <= position < len(known) or known[position] != token:
            yield f"{entry}, should be one of its tokens {known}"
        elif position < view.written[slot]:
            yield f"{entry}, should be {view.written[slot]} or later: it is written"
        elif _in_a_step(view, slot, position):
            yield f"{entry}, should not be: a step in flight has it"
        elif position != following:
            yield f"{entry}, should be {following}: out of order or again"
        last[slot] = position


def _outputs(view: View) -> Iterator[str]:
    assert view.outputs is not None
    names = [output[:2] for output in view.outputs]
    for name in set(names):
        if names.count(name) > 1:
            yield f"request {name[0]} choice {name[1]} has {names.count(name)} outputs, should be 1"
    for request, choice, tokens, _ in view.outputs:
        if not tokens:
            yield f"request {request} choice {choice} finished with no token, should have 1 or more"


def _queue_across(before: View, after: View) -> Iterator[str]:
    assert before.queue is not None
    assert after.queue is not None
    kept = [entry for entry in before.queue if entry in after.queue]
    if list(after.queue[: len(kept)]) != kept:
        yield f"the queue is {after.queue}, should begin with {tuple(kept)}: that was queued before"
    yield from _new_tokens_unqueued(before, after)
    yield from _tokens_unqueued(before, after)


def _new_tokens_unqueued(before: View, after: View) -> Iterator[str]:
    """A token that follows the prompt is queued, written already, or has its position in a step.

    A clone copies its parent.

    Where a step writes nothing of a slot and none of its tokens waited, they may be replayed. Of
    a slot that a step in flight has, none is replayed.
    """
    assert before.tokens is not None
    assert after.queue is not None
    assert after.written is not None
    assert after.finished is not None
    for slot, old in enumerate(before.tokens):
        if not after.used[slot] or after.finished[slot] or (before.used[slot] and not old):
            continue
        if _may_be_replayed(before, after, slot):
            continue
        known = after.heard(slot)
        for position in range(max(len(before.heard(slot)), after.written[slot]), len(known)):
            entry = (known[position], slot, position)
            if entry in after.queue or _in_a_step(after, slot, position):
                continue
            if not _copied(before, after, entry):
                yield f"the queue is {after.queue}, should have {entry}: the token is new"


def _in_a_step(view: View, slot: int, position: int) -> bool:
    return any(first <= position < first + count for _, first, count, _ in view.steps_of(slot))


def _copied(before: View, after: View, entry: QueueEntry) -> bool:
    """Whether a slot may have the token from a parent, for which it is not queued either."""
    assert before.tokens is not None
    assert after.tokens is not None
    assert after.queue is not None
    token, slot, position = entry
    return not before.used[slot] and any(
        before.tokens[parent] == after.tokens[slot] and (token, parent, position) not in after.queue
        for parent, used in enumerate(before.used)
        if used
    )


def _may_be_replayed(before: View, after: View, slot: int) -> bool:
    """Whether known tokens are new in a slot of which nothing waited and nothing is written."""
    assert before.queue is not None
    assert before.written is not None
    assert after.written is not None
    waited = any(entry[1] == slot for entry in before.queue)
    still = before.written[slot] == after.written[slot] and not before.steps_of(slot)
    return before.used[slot] and still and not waited


def _tokens_unqueued(before: View, after: View) -> Iterator[str]:
    """A token leaves the queue to be written, in a step that begins, or alone.

    Alone, the first ones leave, or all of one slot.
    """
    assert before.queue is not None
    assert after.queue is not None
    assert after.written is not None
    assert after.finished is not None
    gone = [entry for entry in before.queue if entry not in after.queue]
    waiting = [
        (token, slot, position)
        for token, slot, position in gone
        if 0 <= slot < len(after.used)
        and after.used[slot]
        and not after.finished[slot]
        and position >= after.written[slot]
        and not _in_a_step(after, slot, position)
        and after.known(slot)[position : position + 1] == (token,)
    ]
    slots = {slot for _, slot, _ in gone}
    packed = list(before.queue[: len(gone)]) == gone
    purged = len(slots) == 1 and not any(slot in slots for _, slot, _ in after.queue)
    if waiting and not (_same_but_queue(before, after) and (packed or purged)):
        yield f"the queue is {after.queue}, should have {waiting[0]}: the token is not written"


def _same_but_queue(before: View, after: View) -> bool:
    return all(
        getattr(before, name) == getattr(after, name)
        for name in ("used", "rows", "allocated", "written", "tokens", "proposed", "outputs")
    )


def _outputs_kept(before: View, after: View) -> Iterator[str]:
    assert before.outputs is not None
    assert after.outputs is not None
    names = {output[:2] for output in after.outputs}
    kept = any(output[:2] in names for output in before.outputs)
    if kept and after.outputs[: len(before.outputs)] != before.outputs:
        yield f"outputs are {after.outputs}, should begin with {before.outputs}"


def _rolled_back(before: View, after: View) -> Iterator[str]:
    """Only a truncation takes cells or proposed tokens from a slot whose tokens stay.

    Tokens that become known while others are proposed are the first of those. A sequence that has
    ended keeps no proposed ones. An unused slot has neither tokens nor proposed ones.
    """
    assert before.tokens is not None
    assert after.tokens is not None
    assert before.proposed is not None
    assert after.proposed is not None
    for slot, tokens in enumerate(before.tokens):
        same = after.used[slot] and after.tokens[slot] == tokens
        if same and (
            _allocated(after, slot) < _allocated(before, slot)
            or len(after.proposed[slot]) < len(before.proposed[slot])
        ):
            if after.steps_of(slot):
                yield f"slot {slot} has lost cells or drawn tokens, should not: it is in flight"
            yield from _truncated(before, after, slot)
        accepted = len(after.tokens[slot]) > len(tokens) and before.proposed[slot]
        goes_on = not _may_have_ended(before, after, slot)
        if accepted and goes_on and after.known(slot) != before.known(slot):
            known = before.known(slot)
            yield f"slot {slot} has {after.known(slot)}, known or proposed, should have {known}"


def _may_have_ended(before: View, after: View, slot: int) -> bool:
    """Whether a sequence has ended, or may have at a delivery, where that is not shown."""
    return bool(before.steps_of(slot)) if after.finished is None else after.finished[slot]


def _truncated(before: View, after: View, slot: int) -> Iterator[str]:
    assert before.tokens is not None
    assert before.proposed is not None
    assert after.proposed is not None
    assert before.written is not None
    assert after.written is not None
    length, known = _allocated(after, slot), len(before.tokens[slot])
    proposed = before.proposed[slot][: max(0, length - known)]
    cut = f"slot {slot}, cut to {length} cells, has"
    if after.proposed[slot] != proposed:
        yield f"{cut} proposed tokens {after.proposed[slot]}, should have {proposed}"
    written = min(before.written[slot], length)
    if after.written[slot] != written:
        yield f"{cut} {after.written[slot]} written cells, should have {written}"
    committed = before.committed_cells(slot)
    if after.committed_cells(slot) != committed:
        yield f"{cut} {after.committed_cells(slot)} committed cells, should have {committed}"
    end = known + len(proposed)
    queue = tuple(entry for entry in before.queue or () if entry[1] != slot or entry[2] < end)
    if None not in (before.queue, after.queue) and after.queue != queue:
        yield f"{cut} the queue {after.queue} beside it, should have {queue}"


def _allocated(view: View, slot: int) -> int:
    assert view.allocated is not None
    return view.allocated[slot]


def _written_alone(before: View, after: View) -> Iterator[str]:
    assert before.written is not None
    assert after.written is not None
    size = after.geometry.page_size
    for slot, written in enumerate(after.written):
        start = before.written[slot] if before.used[slot] else written
        touched = after.rows[slot][start // size : after.geometry.pages_for(written)]
        for page in touched if written > start else ():
            named = after.named.get(page, 0)
            if _stays_indexed(before, after, page):
                yield from _not_written(before, after, page, slot, "in the index")
            elif _is_shared(before, after, page, slot):
                yield from _not_written(before, after, page, slot, "of another slot")
            elif named > 1:
                yield f"page {page}, written by slot {slot}, has {named} names, should have 1"


def _stays_indexed(before: View, after: View, page: int) -> bool:
    if before.indexed is None or after.indexed is None or not 0 <= page < len(before.indexed):
        return False
    return bool(before.indexed[page]) and before.indexed[page] == after.indexed[page]


def _is_shared(before: View, after: View, page: int, slot: int) -> bool:
    """Whether a slot without cells begins with a whole page that another slot names."""
    assert before.written is not None
    assert after.written is not None
    end = (after.rows[slot].index(page) + 1) * after.geometry.page_size
    begins = not before.written[slot] and end <= after.written[slot]
    others = (other for other, row in enumerate(before.rows) if other != slot and page in row)
    return begins and any(before.used[other] and page in after.rows[other] for other in others)


def _not_written(before: View, after: View, page: int, slot: int, where: str) -> Iterator[str]:
    """A page may become one of a slot with what it holds, and is then not written."""
    size = after.geometry.page_size
    cells = slice(page * size, (page + 1) * size)
    old, new = (plain((view.cells or ())[cells]) for view in (before, after))
    if old != new:
        yield f"page {page}, {where}, holds {new}, should hold {old}: slot {slot} wrote it"


def _indexed_contents(view: View) -> Iterator[str]:
    assert view.indexed is not None
    assert view.cells is not None
    size = view.geometry.page_size
    for page, entry in enumerate(view.indexed):
        chain = entry[1:]
        if not entry:
            continue
        if not chain or len(chain) % size:
            yield f"page {page} has {len(chain)} tokens in the index, should have whole pages"
            continue
        for offset in range(size):
            value = plain(view.cells[page * size + offset])
            wanted = plain(view.expected(chain[: len(chain) - size + offset + 1]))
            if value != wanted:
                yield f"page {page} offset {offset} holds {value}, should hold {wanted}: its key"
                break


def _indexed_once(view: View) -> Iterator[str]:
    assert view.indexed is not None
    first: dict[IndexEntry, int] = {}
    for page, entry in enumerate(view.indexed):
        if entry and first.setdefault(entry, page) != page:
            yield f"the key of page {page} is {entry}, should not be: page {first[entry]} has it"


def _named_by_key(view: View) -> Iterator[str]:
    """What a row names of the index has the tokens and the context of its slot."""
    assert view.indexed is not None
    for slot, row in enumerate(view.rows):
        for entry, page in enumerate(row):
            there = view.used[slot] and 0 <= page < view.geometry.pages
            held = view.indexed[page] if there else ()
            if held and held != view.key(slot, entry):
                wanted = view.key(slot, entry)
                yield f"row {slot} names page {page} of key {held}, should be {wanted}"


def _found(view: View) -> Iterator[str]:
    yield from _indexed_once(view)
    yield from _indexed_contents(view)
    yield from _named_by_key(view)


def _chained(view: View) -> Iterator[str]:
    assert view.indexed is not None
    keys = {entry for entry in view.indexed if entry}
    for page, entry in enumerate(view.indexed):
        before = entry[: -view.geometry.page_size]
        if len(before) > 1 and before not in keys:
            yield f"the index has page {page} of key {entry}, should have {before} too"


def _evicted_idle(before: View, after: View) -> Iterator[str]:
    """A page that a slot keeps leaves the index behind one that no slot keeps, or with all others.

    That one may have become idle in the step itself, which may be several rounds.
    """
    assert before.indexed is not None
    assert after.indexed is not None
    gone = {
        page: entry
        for page, entry in enumerate(before.indexed)
        if entry and after.indexed[page] != entry
    }
    kept = gone.keys() & _kept(before, after) if gone else set[int]()
    idle = [entry for page, entry in gone.items() if page not in kept]
    for page in kept if any(after.indexed) else ():
        entry = gone[page]
        if not any(entry[: len(one)] == one for one in idle):
            yield f"page {page} of key {entry} has left the index, should be in it: a row names it"


def _kept(before: View, after: View) -> set[int]:
    """The pages that a slot in use names before and after, at the same place."""
    return {
        old
        for slot, used in enumerate(before.used)
        if used and after.used[slot]
        for old, new in zip(before.rows[slot], after.rows[slot], strict=True)
        if old == new
    }


def _framed(before: View, after: View) -> Iterator[str]:
    assert before.tokens is not None
    assert after.tokens is not None
    assert before.written is not None
    assert after.written is not None
    for slot, written in enumerate(before.written):
        same = before.tokens[slot] == after.tokens[slot]
        if not written or not same or after.written[slot] != written:
            continue
        old_cells, new_cells = before.read(slot), after.read(slot)
        for position in range(after.first_cell(slot), written):
            old, new = old_cells[position], new_cells[position]
            if old != new:
                yield (
                    f"slot {slot} position {position} holds {new}, should hold {old}: "
                    "the slot was not acted on"
                )
                break


def _fenced(view: View) -> Iterator[str]:
    assert view.flights is not None
    assert view.finished is not None
    for number, (_, _, held) in enumerate(view.flights):
        for slot in held:
            known = 0 <= slot < view.geometry.slots
            if known and view.used[slot] and not view.finished[slot]:
                yield (
                    f"slot {slot} is in use, should be held for a sequence that has ended: step "
                    f"{number} in flight was dispatched for it"
                )


def _snapshots(view: View) -> Iterator[str]:
    """Steps retire in order, and have the cells of their slots that are not delivered."""
    assert view.flights is not None
    retired = [flight[0] for flight in view.flights]
    if retired != sorted(retired, reverse=True):
        yield f"the steps in flight have retired: {retired}, should be in order of dispatch"
    for slot in range(view.geometry.slots):
        yield from _positions_in_flight(view, slot)


def _positions_in_flight(view: View, slot: int) -> Iterator[str]:
    """Those of a slot follow one another, from what is committed to what is allocated.

    Those of steps that have retired are written, and no others.
    """
    parts = view.steps_of(slot)
    if not parts:
        return
    start = parts[0][1] if view.committed is None else min(parts[0][1], view.committed[slot])
    ends = [start, *(first + count for _, first, count, _ in parts)]
    for (_, first, count, _), end in zip(parts, ends, strict=False):
        if count < 1:
            yield f"a step in flight has {count} positions of slot {slot}, should have 1 or more"
        if first != end:
            yield f"a step in flight has slot {slot} from position {first}, should be {end}"
    done = sum(part[0] == slot for retired, of, _ in view.flights or () if retired for part in of)
    for name, seen, end in (
        ("allocated", view.allocated, ends[-1]),
        ("written", view.written, ends[done]),
    ):
        if seen is not None and seen[slot] != end:
            yield f"{name}[{slot}] is {seen[slot]}, should be {end}: that of its steps in flight"


def _snapshots_kept(before: View, after: View) -> Iterator[str]:
    """A step in flight is as it was, but for the slots that it only holds from now on.

    One that has retired is delivered at a time.
    """
    assert before.flights is not None
    assert after.flights is not None
    over = max(0, len(before.flights) - len(after.flights))
    if over > 1 or not all(retired for retired, _, _ in before.flights[:over]):
        yield f"{over} steps are no longer in flight, should be 1 at most, which has retired"
        return
    for old, new in zip(before.flights[over:], after.flights, strict=False):
        wrong = [part for part in new[1] if part not in old[1]]
        if wrong:
            yield f"a step in flight has {wrong[0]}, should have that of its dispatch: {old[1]}"
        if old[0] and not new[0]:
            yield "a step in flight has not retired, should have: it had before"
        slots, seen = ({part[0] for part in one[1]} | set(one[2]) for one in (old, new))
        if seen != slots:
            yield f"a step in flight has slots {sorted(seen)}, should have {sorted(slots)}"


def _settled(view: View) -> Iterator[str]:
    """What is committed is delivered, and what is in the index is committed."""
    assert view.committed is not None
    size = view.geometry.page_size
    for slot, committed in enumerate(view.committed):
        for _, first, _, _ in view.steps_of(slot)[:1]:
            if committed > first:
                yield (
                    f"slot {slot} has {committed} committed cells, should have {first}: the step "
                    "that writes the next one is not delivered"
                )
        if view.indexed is None or not view.used[slot]:
            continue
        for page in view.rows[slot][committed // size :]:
            if 0 <= page < view.geometry.pages and view.indexed[page]:
                yield (
                    f"page {page} is in the index, should not be: slot {slot} names it, and has "
                    f"{committed} committed cells"
                )


def _holds(view: View) -> Iterator[str]:
    """A step in flight names the pages of its positions."""
    assert view.held is not None
    size, pages = view.geometry.page_size, range(view.geometry.pages)
    for slot in range(view.geometry.slots):
        parts = view.steps_of(slot)
        row = view.rows[slot][parts[0][1] // size : -(-_end_of(parts) // size)] if parts else ()
        for page in row:
            if page in pages and not view.held[page]:
                yield f"held[{page}] is 0, should be 1 or more: a step in flight has cells there"


def _end_of(parts: tuple[PartEntry, ...]) -> int:
    _, first, count, _ = parts[-1]
    return first + count


def _held(before: View, after: View) -> Iterator[str]:
    """A page that a step in flight names is not taken, and stays held until the step is over."""
    assert before.held is not None
    assert after.held is not None
    assert before.counts is not None
    assert before.flights is not None
    assert after.flights is not None
    taken = after.named.keys() - before.named.keys()
    for page, steps in enumerate(before.held):
        kept = after.indexed is not None and _stays_indexed(before, after, page)
        if steps and is_free(before.counts, page) and page in taken and not kept:
            yield f"a row names page {page}, should not: {steps} steps in flight name it"
        if after.held[page] < steps and len(after.flights) >= len(before.flights):
            yield f"{after.held[page]} steps in flight name page {page}, should be {steps}"


def _show(row: tuple[int, ...]) -> str:
    return "[" + ", ".join("-" if page == INVALID else str(page) for page in row) + "]"


STATE_CLAUSES: Final = (
    Clause(
        "CONS",
        "every page is in exactly one of free, idle, held, live; they add up to the pool",
        "Page counts; Allocation invariants",
        "state",
        ("counts",),
        _conserved,
    ),
    Clause(
        "UAF",
        "no row, index entry or step in flight names a free page",
        "Allocation invariants",
        "state",
        ("counts",),
        _used_after_free,
    ),
    Clause(
        "RC",
        "a page's count is the number of row entries of used slots that name it; never negative",
        "Count invariants",
        "state",
        ("counts",),
        _counted,
    ),
    Clause(
        "ROW",
        "a used slot's row has exactly the valid entries from `first_page` on that cover "
        "`allocated` and what the policy takes ahead, and what is reserved, none twice, and no "
        "more than a ring may name; everything else is invalid; unused slots have none",
        "Mapping",
        "state",
        ("allocated",),
        _rows,
    ),
    Clause(
        "LEN",
        "0 <= committed <= written <= allocated <= max_len and written <= tokens + proposed",
        "Allocation invariants",
        "state",
        ("allocated", "written", "tokens"),
        _lengths,
    ),
    Clause(
        "SHARE",
        "only full, committed pages have a count above 1, and with lazy copies a partial last page "
        "in which nobody has appended; a copy equals its original when made",
        "Clones; Count invariants",
        "state",
        ("written",),
        _shared,
    ),
    Clause(
        "WIN",
        "a page is released only if no query to come can see it",
        "Windows",
        "state",
        ("first_page", "written"),
        _released,
        _released_alone,
    ),
    Clause(
        "PC",
        "a hit names a written page with exactly this prefix and key, and the index has one page "
        "for a key",
        "Prefix cache",
        "state",
        ("indexed", "contexts", "tokens", "cells"),
        _found,
    ),
    Clause(
        "CHAIN",
        "the index is closed under prefix",
        "Prefix cache",
        "state",
        ("indexed",),
        _chained,
    ),
    Clause(
        "CONTENT",
        "every written cell that is not released holds the tag of exactly its prefix",
        "Reads and writes",
        "state",
        ("written", "tokens", "cells"),
        _contents,
    ),
    Clause(
        "READ",
        "the read set of a query is its own visible history, in order, without POISON",
        "Masking of stale cells",
        "state",
        ("written", "cells"),
        _reads,
    ),
    Clause(
        "Q",
        "a sequence's tokens are consumed once and in order; none is queued for a dead or "
        "finished slot",
        "Token queue; Cleanup",
        "state",
        ("queue", "tokens", "written", "finished"),
        _queued,
        _queue_across,
    ),
    Clause(
        "OUT",
        "outputs and reasons survive cleanup; none is lost or doubled",
        "Cleanup modes",
        "state",
        ("outputs",),
        _outputs,
        _outputs_kept,
    ),
    Clause(
        "SNAP",
        "a step in flight has the positions and slots of its dispatch, whatever happens meanwhile; "
        "its cells are allocated at the dispatch, written when it retires and committed by the "
        "delivery, each in order",
        "Steps in flight",
        "state",
        ("flights",),
        _snapshots,
        _snapshots_kept,
    ),
    Clause(
        "SETTLED",
        "only cells that are delivered are committed, and only committed ones published",
        "Steps in flight",
        "state",
        ("flights", "committed"),
        _settled,
    ),
    Clause(
        "FENCE",
        "a slot that a step in flight holds for a sequence that has ended has no new owner",
        "Steps in flight",
        "state",
        ("flights", "finished"),
        _fenced,
    ),
    Clause(
        "HELD",
        "a page that a step in flight names is held, and is not taken until the step is delivered",
        "Steps in flight",
        "state",
        ("flights", "held", "counts"),
        _holds,
        _held,
    ),
)

STEP_CLAUSES: Final = (
    Clause(
        "WX",
        "a page that is written has count 1 and is not published",
        "Clones",
        "step",
        ("written",),
        None,
        _written_alone,
    ),
    Clause(
        "FRAME",
        "an action on one sequence changes nothing observable of another; padding writes nothing",
        "Mapping; Frame",
        "step",
        ("written", "tokens", "cells"),
        None,
        _framed,
    ),
    Clause(
        "EVICT",
        "only idle pages are evicted; a page that a row names leaves the index only behind one "
        "that it extends, or when the index is dropped",
        "Prefix cache",
        "step",
        ("indexed",),
        None,
        _evicted_idle,
    ),
    Clause(
        "RB",
        "after drafts are rejected nothing is observable of them, in any view",
        "Committed cells",
        "step",
        ("allocated", "written", "committed", "tokens", "proposed"),
        None,
        _rolled_back,
    ),
)

OTHER_CLAUSES: Final = (
    Clause("ATOMIC", "a refused action changes nothing; one is refused exactly if no legal "
           "successor exists", "Refusals", "engine"),
    Clause("RESET", "after a reset the engine cannot be told from a new one, from every state",
           "Reset invariants", "engine"),
    Clause("ATT", "attention equals the oracle within its bound, whatever dead cells hold",
           "Masking of stale cells", "engine"),
    Clause("DET", "same actions, same states; the lowest free page, slots ascending",
           "Determinism between hosts", "engine"),
    Clause("STAT", "the statistics that an engine shows are those of its state",
           "Decode statistics; Page statistics", "engine"),
    Clause("EVT", "folding the stored and removed events that an engine emits over the empty "
           "index gives its index, which each event leaves closed under prefix",
           "Prefix cache", "engine"),
    Clause("JIT", "at one geometry each entry point is compiled once, and none copies a pool",
           "Plan, then commit", "engine"),
    Clause("KNOB", "outputs do not depend on scheduling limits, nor on how many steps are in "
           "flight", "Scheduling limits", "run"),
    Clause("PROG", "an admitted request finishes; nothing starves", "Completion", "run"),
    Clause("ALONE", "each request gets the tokens of naive decode of it alone, and their "
           "log-probabilities",
           "Naive decoding", "run"),
    Clause("GEOM", "outputs do not depend on page size, block sizes, padding or the order of "
           "slots", "Block sizes", "run"),
)  # fmt: skip

CLAUSES: Final = {clause.id: clause for clause in STATE_CLAUSES + STEP_CLAUSES + OTHER_CLAUSES}
