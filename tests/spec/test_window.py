"""The rung window: what a release gives back, how far it may go, and what a query then reads.

The last tests plant a bug each, and name the edge or the clause that is the first to see it.
"""

from itertools import product

import pytest
from attrs import evolve
from spec_tools import MACHINE, climb, geometry, machine, planted, rows, span

from spec import cells, clauses, ladder, table, view
from spec.attention import visible
from spec.machines import naive, pages, window
from spec.machines.actions import (
    Action,
    Allocate,
    Append,
    Clone,
    Free,
    FreeFinished,
    Prefill,
    Propose,
    Release,
    Reserve,
    Reset,
    Round,
    Sample,
    Truncate,
    Write,
)
from spec.rung import LadderBroken, Machine, Pages
from spec.state import State
from spec.vocabulary import INVALID, Params, Reason, Refused, Request, default_limits

SIZES = geometry(pages=12, page_size=2, slots=3, pages_per_seq=6, window=3)
PROMPT = (1, 2, 3, 4, 5)
GONE = INVALID


def asked(n: int = 1, *, max_new: int = 7) -> Prefill:
    """A prompt of five tokens, of n choices."""
    params = Params(max_new=max_new, temperature=1.0, seed=3)
    return Prefill((Request(id=0, prompt=PROMPT, params=params, n_generations=n),))


def prefilled(n: int = 1, *, seen: int | None = 3) -> State:
    """Five cells of each choice are written and committed; a query sees `seen` positions."""
    return climb(machine(evolve(SIZES, window=seen)), asked(n))


def reasons(state: State, action: Action) -> set[Reason]:
    """Why an action is refused."""
    return {refusal.reason for refusal in MACHINE.refusals(state, action)}


def test_a_release_gives_back_the_pages_that_no_query_can_see() -> None:
    """The next query is at 5 and sees 3, 4 and 5: page 0 goes, and page 1 holds position 3."""
    state = climb(prefilled(), Release(0, 3))

    assert ((GONE, 1, 2), None, None) == rows(state)
    assert (1, 0, 0) == state.first_page
    assert (0, 1, 1) == state.counts[:3]
    assert (cells.POISON, cells.POISON) == state.cells[0]
    grown = climb(state, Round(), Round())
    assert (GONE, 1, 2, 0) == rows(grown)[0]


def test_a_plan_keeps_the_places_of_released_pages() -> None:
    """The page of a position stands in the entry that its number says, released or not."""
    state = climb(climb(prefilled(), Release(0, 3)), Allocate(((0, 5),)))

    plan = table.plan(state.sequences, ((0, 5),), 2)

    assert ((GONE, 1, 2),) == plan.page_indices
    assert ((6,), (5,)) == (plan.kv_lens, plan.destinations)


@pytest.mark.parametrize("seen", [1, 2, 3, 4, 5, 6, 12])
def test_a_release_goes_up_to_what_the_next_query_sees(seen: int) -> None:
    """`before <= committed - w + 1` is done, and one cell more is refused."""
    state = prefilled(seen=seen)
    most = max(0, 5 - seen + 1)

    assert {Reason.WINDOW} == reasons(state, Release(0, most + 1))
    assert most // 2 == climb(state, Release(0, most)).first_page[0]


def test_without_a_window_nothing_is_released() -> None:
    """Every query sees its whole history; to release nothing is legal, and does nothing."""
    state = prefilled(seen=None)

    assert {Reason.WINDOW} == reasons(state, Release(0, 1))
    assert state == climb(state, Release(0, 0))


def test_a_release_is_of_a_used_slot() -> None:
    """Any other slot is refused, as everywhere."""
    assert {Reason.SLOT_UNUSED} == reasons(prefilled(), Release(1, 0))
    assert {Reason.SLOT_RANGE} == reasons(prefilled(), Release(3, 0))


def test_a_release_twice_is_one_release() -> None:
    """What is released stays so, and releasing less gives nothing back."""
    state = climb(prefilled(), Release(0, 2))

    assert state == climb(state, Release(0, 3), Release(0, 1), Release(0, 0))


def test_cells_that_are_not_committed_do_not_move_the_window() -> None:
    """Drafts are written up to position 7; cut off again, the next query is at 5."""
    drafted = climb(prefilled(), Round(), Propose(0, (7, 7)), Allocate(span(0, 6, 8)))
    assert 6 == drafted.committed[0]
    assert {Reason.WINDOW} == reasons(drafted, Release(0, 5))

    released = climb(drafted, Release(0, 4))
    assert (GONE, GONE, 2, 3) == rows(released)[0]
    assert (GONE, GONE, 2) == rows(climb(released, Truncate(0, 6)))[0]


def test_a_clone_has_the_same_released_pages_and_each_releases_for_itself() -> None:
    """A shared page returns when the last row lets it go."""
    state = climb(prefilled(), Release(0, 2), Clone(0, 1, 1))
    assert ((GONE, 1, 2), (GONE, 1, 0), None) == rows(state)
    assert (1, 1, 0) == state.first_page

    state = climb(state, Round(), Release(0, 4))
    assert (0, 1) == (state.counts[1] - 1, state.first_page[1])
    assert 0 == climb(state, Release(1, 4)).counts[1]


def test_a_slot_that_is_freed_or_reset_has_released_nothing() -> None:
    """The next sequence in the slot begins at page 0."""
    state = climb(prefilled(), Release(0, 2))

    assert (0, 0, 0) == climb(state, Free(0)).first_page
    assert machine(SIZES) == climb(state, Reset())


@pytest.mark.parametrize("seen", [1, 2, 3, 7, 12])
def test_each_choice_gets_the_tokens_of_naive_decode_with_that_window(seen: int) -> None:
    """Whether pages are released on the way or not."""
    kept = released = prefilled(2, seen=seen)
    for _ in range(6):
        kept = climb(kept, Round())
        for slot in released.live:
            released = climb(released, Release(slot, window.first_visible(released, slot)))
        released = climb(released, Round())

    assert kept.outputs == released.outputs
    for choice, output in enumerate(kept.outputs):
        params = asked().requests[0].params
        assert (output.tokens, output.reason) == naive.generate(PROMPT, params, choice, window=seen)
    short = seen < len(PROMPT) + 6
    whole = climb(prefilled(2, seen=None), *[Round()] * 6, FreeFinished())
    assert short == (kept.outputs != whole.outputs)


BARE = ladder.machine("window")


def sampled_from(window: int) -> State:
    """A machine without requests: five cells of slot 0 are written, and no token is drawn."""
    sizes = evolve(SIZES, window=window)
    state = BARE.initial(sizes, default_limits(sizes))
    batch = span(0, 0, 5)
    for action in (Reserve(0), Append(0, PROMPT), Allocate(batch), Write(batch)):
        state = BARE.climb(state, action)
    return state


def test_no_token_is_drawn_from_a_query_that_sees_a_released_page() -> None:
    """With a window of 2 the query at 4 sees 3 and 4; page 1 is released for the one at 5."""
    state = BARE.climb(sampled_from(2), Release(0, 2))
    assert frozenset() == BARE.refusals(state, Sample(0))
    assert 6 == len(pages.used(BARE.climb(state, Sample(0)), 0).tokens)

    released = BARE.climb(state, Release(0, 4))
    with pytest.raises(Refused, match="saw 0, allowed a last query whose pages are there"):
        BARE.step(released, Sample(0))
    grown = BARE.climb(released, Append(0, (9,)))
    for action in (Allocate(((0, 5),)), Write(((0, 5),)), Sample(0)):
        grown = BARE.climb(grown, action)


# Planted bugs.


def test_a_limit_off_by_one_breaks_window_to_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Position 1 is the first that the query at 5 sees through a window of 5, and page 0 has it."""
    state, honest = prefilled(seen=5), window.first_visible
    assert {Reason.WINDOW} == reasons(state, Release(0, 2))

    monkeypatch.setattr(window, "first_visible", lambda found, slot: honest(found, slot) + 1)
    with pytest.raises(LadderBroken, match=r"^window to rollback on Release"):
        MACHINE.climb(state, Release(0, 2))
    after = view.of(MACHINE, MACHINE.step(state, Release(0, 2)))
    assert ["WIN"] == [clause for clause, _ in clauses.violations(after)]


def one_page_too_many(
    machine: Machine, state: State, action: Release, taken: Pages | None
) -> State:
    """What a release does with a page more."""
    more = evolve(action, before=action.before + state.geometry.page_size)
    return MACHINE.rules[Release].effect(machine, state, more, taken)


def test_a_release_of_one_page_too_many_breaks_the_edge_and_win() -> None:
    """The edge sees that a visible cell is elsewhere; the clause sees it in any engine's view."""
    lavish = planted(MACHINE, Release, effect=one_page_too_many)
    after = lavish.step(prefilled(), Release(0, 2))

    wrong = (
        "slot 0 has released 2 pages, should be 1 at most: a query at position 5 sees position 3"
    )
    assert [("WIN", wrong)] == list(clauses.violations(view.of(lavish, after)))
    with pytest.raises(LadderBroken, match=r"^window to rollback on Release"):
        lavish.climb(prefilled(), Release(0, 2))


def test_a_clone_that_forgets_its_first_page_breaks_row() -> None:
    """Its row lacks an entry that it claims to have."""
    rung = evolve(window.RUNG, follows={Free: window.RUNG.follows[Free]})
    forgetful = Machine(
        tuple(rung if one.name == "window" else one for one in MACHINE.rungs), MACHINE.registry
    )
    state = forgetful.climb(climb(prefilled(), Release(0, 2)), Clone(0, 1, 1))

    assert ("ROW", "row 1 is [-, 1, 0, -, -, -], should have 3 pages") in list(
        clauses.violations(view.of(forgetful, state))
    )


def test_a_read_past_the_window_breaks_pages_to_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draw depends on a cell that the query must not see."""
    monkeypatch.setattr(pages, "visible", lambda at, length, _window: visible(at, length))

    with pytest.raises(LadderBroken, match=r"^pages to cache on Sample"):
        BARE.climb(sampled_from(3), Sample(0))


def test_a_release_that_kills_a_shared_page_breaks_content(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one sequence lets go another one still names."""
    state, honest = prefilled(2), pages.release_row

    def kills(state: State, released: Pages) -> State:
        after = honest(state, released)
        return after._replace(cells=cells.kill(after.cells, released))

    monkeypatch.setattr("spec.machines.window.release_row", kills)
    with pytest.raises(AssertionError, match=r"'CONTENT', 'slot 1 position 0 holds \(\)"):
        climb(state, Release(0, 2))


@pytest.mark.parametrize("window", [None, 1, 2, 3, 9])
def test_a_query_reads_what_three_conditions_allow(window: int | None) -> None:
    """Causal, below `kv_len`, and within the window of the query, also past the last cell."""
    for query, kv_len in product(range(-2, 7), range(7)):
        near = [at for at in range(kv_len) if window is None or query - at < window]
        assert [at for at in near if at <= query] == [*visible(query, kv_len, window)]
