"""Views that are almost right: a view with a change of one entry, or of one thing that it shows.

Every function depends on a view and a generator of random numbers alone. A change that a view does
not admit, such as of a field that is hidden, leaves it as it is.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from attrs import evolve

from spec.fields import VIEWED
from spec.view import View
from spec.vocabulary import INVALID, FinishReason
from spec.vocabulary.capacity import Copy

Change = Callable[[View, Random], View]
NUMBERS: Final = ("allocated", "written", "committed", "first_page")
TEXTS: Final = ("tokens", "proposed")
HIDDEN: Final = tuple(one.name for one in VIEWED if one.name not in ("used", "rows"))
"""The fields that an engine need not show."""


def changed(view: View, rng: Random) -> View:
    """The view with one random change."""
    (change,) = rng.choices(list(CHANGES), list(CHANGES.values()))
    return change(view, rng)


def put(entries: tuple[Any, ...], at: int, entry: Any) -> tuple[Any, ...]:
    """The entries with another one at an index."""
    return (*entries[:at], entry, *entries[at + 1 :])


def hiding(view: View, *names: str) -> View:
    """The view without some fields."""
    hidden: dict[str, Any] = dict.fromkeys(names)
    return evolve(view, **hidden)


def with_entry(view: View, name: str, at: int, entry: Any) -> View:
    """The view with another entry of one field."""
    changed_field: dict[str, Any] = {name: put(tuple(getattr(view, name)), at, entry)}
    return evolve(view, **changed_field)


def slot_of(view: View, rng: Random) -> int:
    """A slot, seldom an unused one."""
    taken = [slot for slot, used in enumerate(view.used) if used]
    return rng.choice(taken) if taken and rng.randrange(8) else rng.randrange(len(view.used))


def number(view: View, rng: Random) -> View:
    """A length of a slot is one more or less, a page more or less, or another of its lengths."""
    name, slot = rng.choice(NUMBERS), slot_of(view, rng)
    lengths = getattr(view, name)
    if lengths is None:
        return view
    others = [getattr(view, other) for other in NUMBERS[:3]]
    size = view.geometry.page_size
    near = [lengths[slot] + step for step in (1, 1, -1, -1, size, -size)]
    return with_entry(
        view, name, slot, rng.choice(near + [one[slot] for one in others if one is not None])
    )


def lengths_together(view: View, rng: Random) -> View:
    """Some of the lengths of a slot move by one, in step."""
    slot, step = slot_of(view, rng), rng.choice((1, -1))
    for name in rng.choice((NUMBERS[:3], NUMBERS[:3], NUMBERS[:2], NUMBERS[1:3])):
        lengths = getattr(view, name)
        if lengths is not None:
            view = with_entry(view, name, slot, lengths[slot] + step)
    return view


def count(view: View, rng: Random) -> View:
    """A count is one more or less, or that of another page."""
    if view.counts is None:
        return view
    page, other = rng.randrange(len(view.counts)), rng.choice(view.counts)
    return with_entry(
        view, "counts", page, rng.choice((view.counts[page] + 1, view.counts[page] - 1, other))
    )


def row_entry(view: View, rng: Random) -> View:
    """A row entry is no page, another page, that of another row, or no page of the pool."""
    slot, pages = slot_of(view, rng), view.geometry.pages
    row, other = view.rows[slot], rng.choice(view.rows)
    at = rng.randrange(len(row))
    entry = rng.choice((INVALID, rng.randrange(pages), other[at], rng.choice(other), pages, -1))
    return evolve(view, rows=put(view.rows, slot, put(row, at, entry)))


def rows_exchanged(view: View, rng: Random) -> View:
    """Two entries of rows change places."""
    one, two = slot_of(view, rng), slot_of(view, rng)
    here, there = rng.randrange(len(view.rows[one])), rng.randrange(len(view.rows[two]))
    first, second = view.rows[one][here], view.rows[two][there]
    rows = put(view.rows, one, put(view.rows[one], here, second))
    return evolve(view, rows=put(rows, two, put(rows[two], there, first)))


def counted(view: View) -> View:
    """The view with the counts that its rows make."""
    if view.counts is None:
        return view
    named = [page for used, row in zip(view.used, view.rows, strict=True) if used for page in row]
    return evolve(view, counts=tuple(map(named.count, range(view.geometry.pages))))


def rows_and_counts(view: View, rng: Random) -> View:
    """An entry of a row is another one, and the counts follow."""
    return counted(row_entry(view, rng))


def page_shared(view: View, rng: Random) -> View:
    """Two rows name one page at one index, and the counts follow."""
    one, two = slot_of(view, rng), slot_of(view, rng)
    at = rng.randrange(view.geometry.pages_per_seq)
    if INVALID in (view.rows[one][at], view.rows[two][at]):
        return view
    return counted(
        evolve(view, rows=put(view.rows, one, put(view.rows[one], at, view.rows[two][at])))
    )


def last_page_shared(view: View, rng: Random) -> View:
    """Two rows share the partial last page of one, and the other has one cell more or fewer."""
    size, two = view.geometry.page_size, slot_of(view, rng)
    partial = [slot for slot, cells in enumerate(view.allocated or ()) if cells % size]
    one = rng.choice([slot for slot in partial if slot != two] or [two])
    if view.allocated is None or one == two or not view.used[two]:
        return view
    index = view.allocated[one] // size
    row, length = view.rows[two], view.allocated[one] + rng.choice((1, -1))
    if index not in range(len(row)):
        return view
    for name in NUMBERS[:3]:
        if getattr(view, name) is not None:
            view = with_entry(view, name, two, length)
    page = view.rows[one][index]
    return counted(evolve(view, rows=put(view.rows, two, put(row, index, page))))


def page_released(view: View, rng: Random) -> View:
    """A slot gives its first page back, or gets one again, and the counts follow."""
    slot = slot_of(view, rng)
    if view.first_page is None:
        return view
    first, row = view.first_page[slot], view.rows[slot]
    if rng.randrange(3) and 0 <= first < len(row):
        view = with_entry(view, "first_page", slot, first + 1)
        return counted(evolve(view, rows=put(view.rows, slot, put(row, first, INVALID))))
    if 0 < first <= len(row):
        page = rng.randrange(view.geometry.pages)
        view = with_entry(view, "first_page", slot, first - 1)
        return counted(evolve(view, rows=put(view.rows, slot, put(row, first - 1, page))))
    return view


def token(view: View, rng: Random) -> View:
    """A token of a slot is another one, is lost, comes twice, or follows."""
    name, slot = rng.choice(TEXTS), slot_of(view, rng)
    texts = getattr(view, name)
    if texts is None:
        return view
    text, new = texts[slot], rng.randrange(3)
    at = rng.randrange(len(text) + 1)
    other = rng.choice((text[:at] + text[at + 1 :], put(text, at, new), (*text, new), text[:-1]))
    return with_entry(view, name, slot, other)


def draft(view: View, rng: Random) -> View:
    """A token moves between the known ones and the drafts, or a draft is lost or follows."""
    slot = slot_of(view, rng)
    if view.tokens is None or view.proposed is None:
        return view
    known, drafts = view.tokens[slot], view.proposed[slot]
    to = rng.choice(
        (
            (known + drafts[:1], drafts[1:]),
            (known[:-1], known[-1:] + drafts),
            (known, drafts[:-1]),
            (known, drafts[1:]),
            (known, (*drafts, rng.randrange(2))),
        )
    )
    view = with_entry(view, "tokens", slot, to[0])
    return with_entry(view, "proposed", slot, to[1])


def truncated(view: View, rng: Random) -> View:
    """Cells and drafts of a slot from some length on are cut off, or nearly so."""
    slot = slot_of(view, rng)
    if view.allocated is None or view.written is None or view.proposed is None:
        return view
    if view.tokens is None:
        return view
    cells, drafts = view.allocated[slot], view.proposed[slot]
    to = max(0, cells - rng.randrange(1, 4))
    stay = max(0, to - len(view.tokens[slot]) + rng.choice((0, 0, 0, 1, -1)))
    wrote = min(view.written[slot], to + rng.choice((0, 0, 0, 1)))
    view = with_entry(view, "allocated", slot, to)
    view = with_entry(view, "written", slot, wrote)
    return with_entry(view, "proposed", slot, drafts[:stay])


def flag(view: View, rng: Random) -> View:
    """A flag of a slot is flipped."""
    name, slot = rng.choice(("used", "finished", "finished")), rng.randrange(len(view.used))
    flags = getattr(view, name)
    return view if flags is None else with_entry(view, name, slot, not flags[slot])


def freed(view: View, rng: Random) -> View:
    """A slot is unused, empty or nearly so, and the counts follow."""
    slot = slot_of(view, rng)
    view = with_entry(view, "used", slot, 0)
    for name in rng.sample((*NUMBERS, *TEXTS, "finished", "rows"), 8 - rng.choice((0, 0, 1))):
        entries = getattr(view, name)
        if entries is not None:
            empty: Any = () if name in (*TEXTS, "rows") else 0
            view = with_entry(view, name, slot, empty)
    if view.queue is not None and rng.randrange(3):
        view = evolve(view, queue=tuple(one for one in view.queue if one[1] != slot))
    return counted(view)


def queued(view: View, rng: Random) -> View:
    """An entry of the queue is lost, doubled, moved, changed, or a further one waits."""
    if view.queue is None:
        return view
    queue, slot = list(view.queue), slot_of(view, rng)
    kind = rng.randrange(6)
    if kind == 0 or not queue:
        known = () if view.tokens is None else view.tokens[slot]
        text = known + (() if view.proposed is None else view.proposed[slot])
        position = rng.choice((len(text) - 1, rng.randrange(len(text) + 1)))
        word = text[position] if 0 <= position < len(text) else 0
        queue.append((word, slot, position))
        return evolve(view, queue=tuple(queue))
    at, other = rng.randrange(len(queue)), rng.randrange(len(queue))
    if kind == 1:
        del queue[at]
    elif kind == 2:
        queue.insert(other, queue[at])
    elif kind == 3:
        queue[at], queue[other] = queue[other], queue[at]
    elif kind == 4:
        part, step = rng.randrange(3), rng.choice((1, -1))
        queue[at] = tuple(  # type: ignore[assignment]
            one + step * (index == part) for index, one in enumerate(queue[at])
        )
    else:
        cut = rng.randrange(len(queue) + 1)
        queue = queue[cut:] if rng.randrange(2) else [one for one in queue if one[1] != slot]
    return evolve(view, queue=tuple(queue))


def output(view: View, rng: Random) -> View:
    """An output is lost, doubled, moved or another one, or a further one is left."""
    if view.outputs is None:
        return view
    outputs = list(view.outputs)
    kind = rng.randrange(6)
    if kind == 0 or not outputs:
        outputs.append((rng.randrange(9), 0, (rng.randrange(3),), FinishReason.LIMIT))
        return evolve(view, outputs=tuple(outputs))
    at, other = rng.randrange(len(outputs)), rng.randrange(len(outputs))
    request, choice, text, reason = outputs[at]
    if kind == 1:
        del outputs[at]
    elif kind == 2:
        outputs.insert(other, outputs[at])
    elif kind == 3:
        outputs[at], outputs[other] = outputs[other], outputs[at]
    elif kind == 4:
        outputs[at] = rng.choice(
            (
                (request + 1, choice, text, reason),
                (request, choice + 1, text, reason),
                (request, choice, text[:-1], reason),
                (request, choice, text, FinishReason.STOP),
            )
        )
    else:
        outputs = []
    return evolve(view, outputs=tuple(outputs))


def cell(view: View, rng: Random) -> View:
    """A cell holds what another one holds, nothing, or the two are exchanged."""
    if view.cells is None:
        return view
    live = [at for at, tag in enumerate(view.cells) if tag] or [0]
    at, other = rng.choice(live), rng.randrange(len(view.cells))
    cells = list(view.cells)
    cells[at], cells[other] = rng.choice(
        ((cells[other], cells[other]), ((), cells[other]), (cells[other], cells[at]))
    )
    return evolve(view, cells=tuple(cells))


def index_entry(view: View, rng: Random) -> View:
    """An entry of the index is lost, moved, doubled, of another text, or of another length."""
    keys = [] if view.indexed is None else [page for page, key in enumerate(view.indexed) if key]
    if not keys or view.indexed is None:
        return view
    page, other, size = rng.choice(keys), rng.randrange(len(view.indexed)), view.geometry.page_size
    key = view.indexed[page]
    near = (key[:-size], key[:-1], (*key, *key[-size:]), (*key, 0), (key[0] + 1, *key[1:]), key[:1])
    entry = rng.choice(((), (), (), put(key, len(key) - 1, key[-1] + 1), rng.choice(near)))
    if rng.randrange(4):
        return with_entry(view, "indexed", page, entry)
    view = with_entry(view, "indexed", page, rng.choice((key, (), view.indexed[other])))
    return with_entry(view, "indexed", other, key)


def published(view: View, rng: Random) -> View:
    """A page of a row enters the index, under the key that it has or nearly so."""
    slot, size = slot_of(view, rng), view.geometry.page_size
    if view.indexed is None or view.tokens is None:
        return view
    at, row = rng.randrange(view.geometry.pages_per_seq), view.rows[slot]
    if row[at] not in range(view.geometry.pages):
        return view
    context = 0 if view.contexts is None else view.contexts[slot]
    key = (context, *view.tokens[slot][: (at + 1) * size - rng.choice((0, 0, 0, 1))])
    return with_entry(view, "indexed", row[at], key)


def held(view: View, rng: Random) -> View:
    """A page, often of no row, enters the index under some first tokens of a slot, and has them."""
    slot, size = slot_of(view, rng), view.geometry.page_size
    if view.indexed is None or view.tokens is None or view.cells is None:
        return view
    page = rng.choice([page for page, key in enumerate(view.indexed) if not key] or [0])
    text = view.tokens[slot][: rng.randrange(len(view.tokens[slot]) + 1)]
    tags = [view.expected(text[: max(0, len(text) - left)]) for left in reversed(range(size))]
    cells = (*view.cells[: page * size], *tags, *view.cells[(page + 1) * size :])
    return evolve(with_entry(view, "indexed", page, (rng.randrange(2), *text)), cells=cells)


def idle(view: View, rng: Random) -> View:
    """A rank, a context or a flag of the index is another one."""
    name = rng.choice(("idle_ranks", "contexts", "stale"))
    entries = getattr(view, name)
    if entries is None:
        return view
    at = rng.randrange(len(entries))
    return with_entry(view, name, at, 1 - entries[at] if name == "stale" else entries[at] + 1)


def step(view: View, rng: Random) -> View:
    """A step in flight has retired or not, changes places, or has another part or held slot."""
    if not view.flights:
        return view
    flights, slot = list(view.flights), slot_of(view, rng)
    at, other = rng.randrange(len(flights)), rng.randrange(len(flights))
    retired, parts, kept = flights[at]
    kind = rng.randrange(7)
    if kind == 0:
        flights[at] = not retired, parts, kept
    elif kind == 1:
        flights[at], flights[other] = flights[other], flights[at]
    elif kind == 2 and parts:
        part = rng.randrange(len(parts))
        numbers, entry = list(parts[part]), rng.randrange(4)
        numbers[entry] += rng.choice((1, -1))
        shown = (numbers[0], numbers[1], numbers[2], numbers[3] % 2 == 1)
        flights[at] = retired, put(parts, part, shown), kept
    elif kind == 3 and parts:
        flights[at] = retired, parts[1:], rng.choice((kept, (*kept, parts[0][0])))
    elif kind == 4:
        flights[at] = retired, parts, rng.choice((kept[1:], (*kept, slot)))
    elif kind == 5:
        del flights[at]
    else:
        flights.insert(other, flights[at])
    return evolve(view, flights=tuple(flights))


def named_in_flight(view: View, rng: Random) -> View:
    """One step more or fewer names a page, or one names a page that no row does."""
    if view.held is None:
        return view
    named = [page for page, steps in enumerate(view.held) if steps]
    if named and rng.randrange(2):
        page = rng.choice(named)
        return with_entry(view, "held", page, view.held[page] - 1)
    free = [page for page, count in enumerate(view.counts or ()) if count == 0]
    page = rng.choice(free or range(len(view.held)))
    return with_entry(view, "held", page, view.held[page] + 1)


def taken_early(view: View, rng: Random) -> View:
    """A slot that a step in flight holds is in use again, by a sequence without cells."""
    held = [slot for _, _, slots in view.flights or () for slot in slots]
    return with_entry(view, "used", rng.choice(held), 1) if held else view


def committed_early(view: View, rng: Random) -> View:
    """Cells of a slot that are written and not delivered are committed."""
    slot = slot_of(view, rng)
    if view.committed is None or view.written is None or view.tokens is None:
        return view
    known = min(view.written[slot], len(view.tokens[slot]))
    return with_entry(view, "committed", slot, known)


def policy(view: View, rng: Random) -> View:
    """The window, the policy or what is reserved is a little other."""
    kind, capacity, sizes = rng.randrange(5), view.capacity, view.geometry
    if kind == 4:
        return evolve(view, capacity=evolve(capacity, ring=rng.randrange(sizes.pages_per_seq + 1)))
    if kind == 0 and view.reserved:
        slot = slot_of(view, rng)
        return with_entry(view, "reserved", slot, view.reserved[slot] + rng.choice((1, -1)))
    if kind == 1:
        ahead = max(0, capacity.lookahead + rng.choice((1, -1)))
        return evolve(view, capacity=evolve(capacity, lookahead=ahead))
    if kind == 2:
        copy: Copy = "eager" if capacity.copy == "lazy" else "lazy"
        return evolve(view, capacity=evolve(capacity, copy=copy))
    window = rng.choice((None, (sizes.window or 1) + 1, max(1, (sizes.window or 1) - 1)))
    return evolve(view, geometry=evolve(sizes, window=window))


def hidden(view: View, rng: Random) -> View:
    """A field is not shown."""
    return hiding(view, rng.choice(HIDDEN))


CHANGES: Final[dict[Change, int]] = {
    number: 8,
    lengths_together: 6,
    count: 3,
    row_entry: 4,
    rows_exchanged: 3,
    rows_and_counts: 3,
    page_shared: 6,
    last_page_shared: 8,
    page_released: 4,
    token: 4,
    draft: 4,
    truncated: 4,
    flag: 2,
    freed: 2,
    queued: 8,
    output: 5,
    cell: 7,
    index_entry: 6,
    published: 3,
    held: 4,
    idle: 2,
    policy: 4,
    hidden: 2,
    step: 8,
    named_in_flight: 6,
    committed_early: 3,
    taken_early: 2,
}
"""The changes and how likely each is."""
