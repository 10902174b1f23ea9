"""The rung prefix: what is found again by content, who may take it, and what a hit then reads.

The last tests plant a bug each, and name the edge or the clause that is the first to see it.
"""

from random import Random
from typing import get_args

import pytest
from attrs import evolve
from deep import deep_after
from index_draws import drawn
from spec_tools import INDEXING as MACHINE
from spec_tools import ONE, climb_in, geometry, limits, planted, span

from spec import cells, clauses, index, ladder, view
from spec.index import Indexed
from spec.machines import pages, prefix
from spec.machines.actions import (
    Action,
    Allocate,
    Append,
    Assign,
    Clone,
    Drop,
    Enqueue,
    Evict,
    Free,
    Generate,
    Hit,
    Merge,
    Prefill,
    Propose,
    Publish,
    Release,
    Reserve,
    Reset,
    Write,
)
from spec.rung import LadderBroken, Machine, Pages
from spec.state import State
from spec.stats import NAMED, Totals
from spec.vocabulary import Capacity, CleanupMode, Geometry, Params, Reason, Request, default_limits
from spec.vocabulary.capacity import Copy, Reservation

SIZES = geometry(pages=8, page_size=2, slots=3, pages_per_seq=4)
TEXT = (1, 2, 3, 4, 5)
FIRST, SECOND = Indexed(0, (1, 2)), Indexed(0, (1, 2, 3, 4))


def new(sizes: Geometry = SIZES, capacity: Capacity | None = None) -> State:
    """A new machine with an index."""
    return MACHINE.initial(sizes, default_limits(sizes), capacity=capacity or Capacity())


def climb(state: State, *actions: Action) -> State:
    """Take actions, and check every edge of the ladder and every clause at each step."""
    return climb_in(MACHINE, state, *actions)


def written(slot: int, *, text: tuple[int, ...] = TEXT, context: int = 0) -> tuple[Action, ...]:
    """A text that is written into a new slot; its request is the slot."""
    batch = span(slot, 0, len(text))
    params = Params(max_new=2)
    begin = (Reserve(slot, context), Assign(slot, text, params, slot))
    return (*begin, Allocate(batch), Write(batch))


def begun(slot: int, *, text: tuple[int, ...] = TEXT, context: int = 0) -> tuple[Action, ...]:
    """A text in a new slot, of which nothing is written."""
    return written(slot, text=text, context=context)[:2]


def reasons(state: State, action: Action) -> set[Reason]:
    """Why an action is refused."""
    return {refusal.reason for refusal in MACHINE.refusals(state, action)}


def published() -> State:
    """Slot 0 has five cells in pages 0 to 2, and the first two pages are in the index."""
    return climb(new(), *written(0), Publish(0, 5))


def keys(state: State) -> dict[int, tuple[int, ...]]:
    """The tokens of each page of the index, by page."""
    return {page: entry.chain for page, entry in enumerate(state.indexed) if entry}


def test_a_publication_enters_the_whole_pages_below_its_length() -> None:
    """The fifth cell is in a page that is not full."""
    state = published()

    assert (FIRST, SECOND, None) == state.indexed[:3]
    assert {0: (1, 2)} == keys(climb(new(), *written(0), Publish(0, 3)))
    assert state == climb(state, Publish(0, 5), Publish(0, 0))


def test_only_committed_cells_are_published() -> None:
    """Drafts are not, and no cell that is not written."""
    drafted = climb(new(), *written(0), Propose(0, (6,)), Allocate(((0, 5),)))
    assert {Reason.UNCOMMITTED} == reasons(drafted, Publish(0, 6))
    assert {0, 1} == keys(climb(drafted, Publish(0, 5))).keys()
    assert {Reason.SLOT_UNUSED} == reasons(drafted, Publish(1, 0))


def test_a_key_has_one_page() -> None:
    """A second page with the same tokens does not enter."""
    state = climb(published(), *written(1), Publish(1, 5))

    assert {0: (1, 2), 1: (1, 2, 3, 4)} == keys(state)


def test_a_hit_names_the_pages_of_the_index() -> None:
    """Its cells are allocated, written and committed at once."""
    state = climb(published(), *begun(1), Hit(1, 4))

    assert (0, 1) == pages.used(state, 1).row
    assert (2, 2, 1) == state.counts[:3]
    assert (4, 4, 4) == (*_lengths(state, 1), state.committed[1])
    assert (0, 1, 3) == pages.used(climb(state, Allocate(((1, 4),)), Write(((1, 4),))), 1).row


def _lengths(state: State, slot: int) -> tuple[int, int]:
    sequence = pages.used(state, slot)
    return sequence.allocated, sequence.written


def test_a_hit_is_shorter_than_its_text_and_of_whole_pages() -> None:
    """The last token is always computed, since its successor is drawn from it."""
    state = climb(published(), *begun(1, text=(1, 2, 3, 4)))

    assert {Reason.TOO_LONG} == reasons(state, Hit(1, 4))
    assert {Reason.NOT_INDEXED} == reasons(state, Hit(1, 3))
    assert {Reason.NOT_INDEXED} == reasons(state, Hit(1, 0))
    assert set() == reasons(state, Hit(1, 2))
    assert {Reason.SLOT_BEGUN} == reasons(state, Hit(0, 2))
    assert {Reason.SLOT_EMPTY} == reasons(climb(state, Reserve(2)), Hit(2, 2))


def test_a_hit_ends_where_the_index_does() -> None:
    """Of a text that differs in its fourth token, one page is found."""
    state = climb(published(), *begun(1, text=(1, 2, 3, 9, 5)))

    assert {Reason.NOT_INDEXED} == reasons(state, Hit(1, 4))
    assert (0,) == pages.used(climb(state, Hit(1, 2)), 1).row


def test_another_context_finds_nothing() -> None:
    """The context is a part of every key, and a clone has that of its parent."""
    state = climb(published(), *begun(1, context=7))
    assert {Reason.NOT_INDEXED} == reasons(state, Hit(1, 2))

    state = climb(new(), *written(0, context=7), Clone(0, 1, 1), Publish(1, 2), Free(1))
    assert 7 == (state.indexed[0] or FIRST).context
    assert (0,) == pages.used(climb(state, *begun(1, context=7), Hit(1, 2)), 1).row


def test_a_queued_token_is_not_hit() -> None:
    """A round would write it again."""
    state = climb(published(), Reserve(1), Assign(1, (1, 2, 3), Params(max_new=5), 1))
    queued = climb(state, Enqueue(1, 4), Enqueue(1, 5))

    assert {Reason.BATCH_QUEUED} == reasons(queued, Hit(1, 4))
    assert set() == reasons(queued, Hit(1, 2))


def test_what_is_published_outlives_its_sequence() -> None:
    """Idle pages keep their cells, and a hit takes them from their rank."""
    state = climb(published(), Free(0))
    assert (1, 1) == tuple(entry.rank for entry in state.indexed if entry)
    assert (0, 0, 0) == state.counts[:3]
    assert ((1,), (1, 2)) == state.cells[0]
    assert (cells.POISON,) * 2 == state.cells[2]
    assert {"free_pages": 6, "idle_pages": 2, "pages_in_use": 0} == {
        name: NAMED[name].of(state, Totals())
        for name in ("free_pages", "idle_pages", "pages_in_use")
    }

    again = climb(state, *begun(1), Hit(1, 4))
    assert (0, 0) == tuple(entry.rank for entry in again.indexed if entry)
    assert (0, 1) == pages.used(again, 1).row


def test_free_pages_are_taken_before_idle_ones() -> None:
    """Then the idle page that was released first, of those that none extends."""
    state = climb(published(), Free(0), *written(1, text=(9, 9)), Publish(1, 2), Free(1))
    assert {0: 1, 1: 1, 2: 2} == {at: one.rank for at, one in enumerate(state.indexed) if one}

    assert (3, 4, 5, 6, 7, 1, 0, 2) == index.next_pages(state.indexed, state.counts, 8)
    long = climb(state, *written(0, text=(7,) * 6), *written(1, text=(8,) * 6))
    assert {0: (1, 2), 2: (9, 9)} == keys(long)


def test_an_idle_page_with_live_extensions_takes_them_out_of_the_index() -> None:
    """The extension stays live; only its entry goes. It has its own copy of the first page."""
    state = climb(published(), *written(1), Free(0))
    held = climb(state, Merge(1, 1), *written(0, text=(7,) * 6), Reserve(2))
    assert {0: (1, 2), 1: (1, 2, 3, 4)} == keys(held)
    assert (0, 1) == (held.counts[0], held.counts[1])

    full = climb(held, Allocate(span(2, 0, 4)))
    assert {} == keys(full)
    assert ((1, 2, 3), (1, 2, 3, 4)) == full.cells[1]


def test_of_idle_pages_the_last_of_a_chain_is_taken_first() -> None:
    """Pages 0 and 1 are idle and the third of the chain is live: page 1 goes before page 0."""
    sizes = evolve(SIZES, pages=4, window=3)
    state = climb(new(sizes), *written(0, text=(1,) * 6), Publish(0, 6), Release(0, 2))
    state = climb(state, Propose(0, (1,)), Release(0, 4), Reserve(1))
    assert (3, 1, 0) == index.next_pages(state.indexed, state.counts, 3)

    assert {0: (1, 1)} == keys(climb(state, Allocate(span(1, 0, 4))))
    assert {} == keys(climb(state, Allocate(span(1, 0, 6))))


def test_a_merge_moves_one_row_entry() -> None:
    """Other owners stay on the old page, and it dies with the last of them."""
    state = climb(published(), *written(1), Clone(1, 2, 1))
    merged = climb(state, Merge(1, 0))
    old = pages.used(state, 1).row[0]

    assert (0, old) == (pages.used(merged, 1).row[0], pages.used(merged, 2).row[0])
    assert (2, 1) == (merged.counts[0], merged.counts[old])
    assert 0 == climb(merged, Merge(2, 0)).counts[old]
    assert {Reason.NOT_INDEXED} == reasons(merged, Merge(1, 0))
    assert {Reason.UNCOMMITTED} == reasons(merged, Merge(1, 2))


def test_an_eviction_is_of_an_idle_page_and_all_that_extends_it() -> None:
    """A page that a row names stays, and so does its entry."""
    state = published()
    assert {Reason.NOT_IDLE} == reasons(state, Evict((1, 2)))
    assert {Reason.NOT_INDEXED} == reasons(state, Evict((1, 2), 1))

    idle = climb(state, Free(0))
    assert {0: (1, 2)} == keys(climb(idle, Evict((1, 2, 3, 4))))
    assert new() == climb(idle, Evict((1, 2)))


def test_after_a_drop_nothing_older_is_published() -> None:
    """Neither by the slots that were in use nor by their clones; new slots begin anew."""
    state = climb(published(), Drop())
    assert {} == keys(state)
    assert {Reason.STALE} == reasons(state, Publish(0, 2))
    assert {Reason.STALE} == reasons(climb(state, Clone(0, 1, 1)), Publish(1, 2))
    assert {Reason.STALE} == reasons(climb(state, *written(1), Publish(1, 2)), Merge(0, 0))

    fresh = climb(state, Free(0), *written(0), Publish(0, 2))
    assert {0: (1, 2)} == keys(fresh)
    assert new() == climb(climb(published(), Free(0)), Drop())


def test_a_reset_empties_the_index() -> None:
    """It cannot be told from a new one."""
    assert new() == climb(climb(published(), Free(0)), Reset())


def test_a_publication_stops_behind_a_page_that_is_gone() -> None:
    """What is released and not in the index would be missing before its extension."""
    sizes = evolve(SIZES, window=2)
    state = climb(new(sizes), *written(0), Release(0, 2))
    assert {} == keys(climb(state, Publish(0, 5)))

    first = climb(new(sizes), *written(0), Publish(0, 2), Release(0, 2))
    assert {0: (1, 2), 1: (1, 2, 3, 4)} == keys(climb(first, Publish(0, 5)))


def test_a_page_may_become_idle_and_go_within_one_action() -> None:
    """Of three rounds the first frees page 0, and the third takes it, and the index of page 2."""
    sizes = geometry(pages=4, page_size=1, slots=3, pages_per_seq=6, window=1)
    narrow = limits(sizes, rounds=3, round_tokens=1)
    state = MACHINE.initial(sizes, narrow, CleanupMode.INCREMENTAL)
    state = climb(state, *single(0, (5,), 2), Publish(0, 1), *single(1, (5, 6), 4), Publish(1, 2))
    state = climb(state, Release(1, 1), *single(2, (9,), 2), Publish(2, 1))

    after = climb(state, Enqueue(0, 7), Enqueue(1, 8), Generate())
    assert ({0: (5,), 1: (9,), 2: (5, 6)}, {1: (9,)}) == (keys(state), keys(after))


def single(slot: int, text: tuple[int, ...], max_new: int) -> tuple[Action, ...]:
    """A text that is written into a new slot, with a limit."""
    batch = span(slot, 0, len(text))
    begun = (Reserve(slot), Assign(slot, text, Params(max_new=max_new), slot))
    return (*begun, Allocate(batch), Write(batch))


def test_a_prefill_may_take_idle_pages() -> None:
    """An admission counts them as free, since nobody else holds them."""
    small = evolve(SIZES, pages=4)
    state = climb(new(small), *written(0), Publish(0, 5), Free(0))
    request = Request(id=1, prompt=(7,) * 6, params=ONE)

    assert {0: (1, 2)} == keys(climb(state, Prefill((request,))))


def test_reserved_pages_return_when_their_cells_are_hit() -> None:
    """Four pages are reserved for seven cells; for two of them pages of the index are named."""
    reserving = Capacity(reserve="request")
    state = climb(new(capacity=reserving), *written(0), Publish(0, 5), *begun(1))
    assert (0, 2) == tuple(one.counts.count(0) for one in (state, climb(state, Hit(1, 4))))


@pytest.mark.parametrize("window", deep_after(1, [None, 3]))
@pytest.mark.parametrize("reserve", deep_after(1, reversed(get_args(Reservation))))
@pytest.mark.parametrize("copy", get_args(Copy))
def test_random_histories_keep_every_edge(
    copy: Copy, reserve: Reservation, window: int | None
) -> None:
    """Under every policy, also with pages taken ahead: the edges and clauses hold at each step."""
    done = set[type]()
    for seed in range(12):
        rng = Random(f"{copy} {reserve} {window} {seed}")
        sizes = Geometry(
            pages=rng.choice((4, 8, 12)),
            page_size=rng.choice((1, 2, 3)),
            slots=3,
            pages_per_seq=4,
            window=window,
        )
        state = new(sizes, Capacity(copy=copy, reserve=reserve, lookahead=rng.choice((0, 1, 3))))
        for number in range(80):
            action = drawn(state, rng, number)
            if not MACHINE.refusals(state, action):
                state = climb(state, action)
                done.add(type(action))
    assert {Hit, Publish, Merge, Evict, Drop, Clone, Free} <= done


# Planted bugs.


def broken(monkeypatch: pytest.MonkeyPatch, name: str, wrong: object) -> None:
    """Another function of the index in its place."""
    monkeypatch.setattr(index, name, wrong)


def test_a_hit_of_another_text_breaks_pc(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash of the last tokens alone is the same for both."""
    state = climb(published(), *begun(1, text=(8, 2, 3)))

    def last_token(found: index.Index, _context: int, chain: tuple[int, ...]) -> int | None:
        return next(
            (at for at, one in enumerate(found) if one and one.chain[-1:] == chain[-1:]), None
        )

    broken(monkeypatch, "find", last_token)
    with pytest.raises(LadderBroken, match=r"^prefix to window on Hit"):
        MACHINE.below("lifecycle").climb(state, Hit(1, 2))
    after = view.of(MACHINE, MACHINE.step(state, Hit(1, 2)))
    assert "PC" in {clause for clause, _ in clauses.violations(after)}


def test_an_idle_page_that_dies_breaks_pc(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that forgets the index kills what it still has."""
    honest = index.has
    monkeypatch.setattr("spec.machines.pages.index.has", lambda *_: False)
    after = MACHINE.effect(published(), Free(0))
    monkeypatch.setattr("spec.machines.pages.index.has", honest)

    wrong = "page 0 offset 0 holds (), should hold (1,): its key"
    assert ("PC", wrong) in list(clauses.violations(view.of(MACHINE, after)))


def test_a_taken_page_that_stays_in_the_index_breaks_pc(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the cells of another text as soon as it is written."""
    state = climb(published(), Free(0))
    broken(monkeypatch, "next_pages", lambda _index, _counts, wanted: tuple(range(wanted)))
    broken(monkeypatch, "without", lambda held, _pages: held)
    for action in written(1, text=(9, 9)):
        state = MACHINE.effect(state, action)

    assert "PC" in {clause for clause, _ in clauses.violations(view.of(MACHINE, state))}


def test_an_extension_that_stays_behind_breaks_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the page itself leaves the index."""
    state = climb(published(), Free(0))
    broken(monkeypatch, "_beyond", lambda _children, _page: [])
    after = MACHINE.step(state, Evict((1, 2)))

    wrong = "the index has page 1 of key (0, 1, 2, 3, 4), should have (0, 1, 2) too"
    assert [("CHAIN", wrong)] == list(clauses.violations(view.of(MACHINE, after)))


def test_an_eviction_of_a_live_page_breaks_evict() -> None:
    """A guard is missing."""
    careless = planted(MACHINE, Evict, stages=())
    before = published()
    after = careless.step(before, Evict((1, 2, 3, 4)))

    found = list(clauses.step_violations(view.of(careless, before), view.of(careless, after)))
    wrong = "page 1 of key (0, 1, 2, 3, 4) has left the index, should be in it: a row names it"
    assert [("EVICT", wrong)] == found


def test_a_hit_that_writes_again_breaks_wx() -> None:
    """What the index has is read, never written."""
    state = climb(published(), *begun(1))

    def rewrites(machine: Machine, before: State, action: Hit, taken: Pages | None) -> State:
        after = prefix.RUNG.rules[Hit].effect(machine, before, action, taken)
        return after._replace(cells=cells.kill(after.cells, (0,)))

    bad = planted(MACHINE, Hit, effect=rewrites)
    found = clauses.step_violations(view.of(bad, state), view.of(bad, bad.step(state, Hit(1, 2))))
    assert "WX" in {clause for clause, _ in found}


def test_a_slot_that_forgets_its_context_breaks_pc() -> None:
    """The row names a page of another context."""
    rung = evolve(prefix.RUNG, follows={**prefix.RUNG.follows, Reserve: lambda *given: given[-1]})
    forgetful = Machine(
        tuple(rung if one.name == "prefix" else one for one in MACHINE.rungs), MACHINE.registry
    )
    state = new()
    for action in (*written(0, context=7), Publish(0, 2)):
        state = forgetful.step(state, action)
    seen = evolve(view.of(forgetful, state), contexts=(7, 0, 0))

    wrong = "row 0 names page 0 of key (0, 1, 2), should be (7, 1, 2)"
    assert [("PC", wrong)] == list(clauses.violations(seen))


def test_tokens_that_are_appended_are_part_of_the_key() -> None:
    """Without requests, the caller says what the tokens are; the keys are those of all of them."""
    bare = ladder.machine("prefix")
    state, batch = bare.initial(SIZES, default_limits(SIZES)), span(0, 0, 4)
    appended = (Reserve(0), Append(0, TEXT[:2]), Append(0, TEXT[2:4]))
    for action in (
        *(*appended, Allocate(batch), Write(batch), Publish(0, 4)),
        *(Reserve(1), Append(1, TEXT), Hit(1, 4)),
    ):
        state = bare.climb(state, action)

    assert pages.used(state, 0).row == pages.used(state, 1).row
