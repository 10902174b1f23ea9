"""Capacity policies: lazy copies and pages taken ahead, seen from every lower rung.

The exhaustive searches take every move in every state of a small machine, and climb each step. The
random machines of test_machines.py and test_requests.py draw a policy too, at larger sizes.
"""

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from attrs import evolve
from capacity_tools import every_step, go, reasons, rows
from deep import deep_after
from spec_tools import SERVING, geometry, limits, sequence, span

from spec import cells, ladder
from spec.machines import pages, rollback, scheduling, sharing
from spec.machines.actions import (
    Action,
    Admit,
    Allocate,
    Append,
    Clone,
    Commit,
    Free,
    Generate,
    Prefill,
    Propose,
    Release,
    Reserve,
    Round,
    Submit,
    Truncate,
    Write,
)
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import (
    STANDARD,
    Capacity,
    Geometry,
    InvalidInput,
    Params,
    Reason,
    Request,
    default_limits,
)

SHARING = ladder.machine("sharing")
DRAFTS = ladder.machine("rollback")
WINDOWS = ladder.machine("window")
LAZY, ONE, THREE = Capacity(copy="lazy"), Capacity(lookahead=1), Capacity(lookahead=3)
BOTH = Capacity(copy="lazy", lookahead=3)
SIZES = geometry(pages=9, page_size=4, slots=3, pages_per_seq=4)
SIX = (10, 11, 12, 13, 14, 15)


def written(slot: int, tokens: tuple[int, ...]) -> tuple[Action, ...]:
    """A sequence of these tokens in a new slot."""
    batch = span(slot, 0, len(tokens))
    return Reserve(slot), Append(slot, tokens), Allocate(batch), Write(batch)


def six(capacity: Capacity, machine: Machine = SHARING, sizes: Geometry = SIZES) -> State:
    """A machine with six tokens written in slot 0."""
    new = machine.initial(sizes, default_limits(sizes), capacity=capacity)
    return go(machine, new, *written(0, SIX))


# Lazy copies.


def test_a_lazy_clone_takes_no_page() -> None:
    """Six tokens in pages of four: both pages are shared, the partial one too."""
    twins = go(SHARING, six(LAZY), Clone(0))

    assert [(0, 1), (0, 1), None] == rows(twins)
    assert (2, 2) == twins.counts[:2]
    full = geometry(pages=2, page_size=4, slots=2, pages_per_seq=4)
    assert set() == reasons(SHARING, six(LAZY, sizes=full), Clone(0))
    assert {Reason.OUT_OF_PAGES} == reasons(SHARING, six(STANDARD, sizes=full), Clone(0))


def test_the_first_append_copies_and_the_last_owner_keeps_the_page() -> None:
    """Of three owners two copy, in the order of the slots, and the third appends in place."""
    three = go(SHARING, six(LAZY), Clone(0), Clone(0))
    both = Allocate(((1, 6), (0, 6)))

    assert 2 == SHARING.pages_wanted(three, both)
    grown = go(SHARING, three, both, Allocate(((2, 6),)))
    assert [(0, 2), (0, 3), (0, 1)] == rows(grown)
    assert (3, 1, 1, 1) == grown.counts[:4]
    assert grown.cells[1] == grown.cells[2] == grown.cells[3]


def test_a_batch_of_all_owners_copies_for_all_but_the_last() -> None:
    """Two siblings in one batch want one page; the second keeps the page that they shared."""
    twins = go(SHARING, six(LAZY), Clone(0))
    grown = go(SHARING, twins, Allocate(((1, 6), (0, 6))))

    assert [(0, 2), (0, 1), None] == rows(grown)
    assert (2, 1, 1, 0) == grown.counts[:4]


def test_an_append_that_must_copy_is_refused_without_a_page() -> None:
    """The same append is done as soon as the other owner is gone."""
    sizes = geometry(pages=2, page_size=4, slots=2, pages_per_seq=4)
    twins = go(SHARING, six(LAZY, sizes=sizes), Clone(0))

    assert {Reason.OUT_OF_PAGES} == reasons(SHARING, twins, Allocate(((0, 6),)))
    alone = go(SHARING, twins, Free(1), Allocate(((0, 6),)))
    assert [(0, 1), None] == rows(alone)


def test_a_batch_takes_the_pages_of_copies_and_of_new_rows_in_order() -> None:
    """Slot 0 copies its page and begins another; slot 1 keeps the old one."""
    twins = go(SHARING, six(LAZY), Clone(0))
    batch = Allocate((*span(0, 6, 9), (1, 6)))

    after = SHARING.step(twins, batch, (7, 5))
    assert [(0, 7, 5), (0, 1), None] == rows(after)


# Pages taken ahead.


@pytest.mark.parametrize(
    ("capacity", "wanted"),
    [(ONE, (1, 2, 2, 3)), (THREE, (1, 2, 2, 3)), (Capacity(lookahead=4), (2, 2, 3, 3))],
)
def test_a_row_covers_what_is_taken_ahead(capacity: Capacity, wanted: tuple[int, ...]) -> None:
    """One cell, four, five, eight: the row covers those and `lookahead` more."""
    lengths = (1, 4, 5, 8)

    assert wanted == tuple(capacity.row_pages(SIZES, length, 0) for length in lengths)
    for length, count in zip(lengths, wanted, strict=True):
        new = SHARING.initial(SIZES, default_limits(SIZES), capacity=capacity)
        state = go(SHARING, new, *written(0, tuple(range(length))))
        assert count == len(sequence(state, 0).row) == SIZES.pages - state.counts.count(0)
        assert new == go(SHARING, state, Free(0))


def test_a_long_lookahead_takes_a_full_row_and_no_more() -> None:
    """No row covers cells past `max_len`, and a sequence without cells has no page."""
    state = SHARING.initial(SIZES, default_limits(SIZES), capacity=Capacity(lookahead=10**6))
    state = go(SHARING, state, Reserve(0), Allocate(()))
    assert [(), None, None] == rows(state)

    state = go(SHARING, state, Allocate(((0, 0),)))
    assert [(0, 1, 2, 3), None, None] == rows(state)
    assert 0 == SHARING.pages_wanted(state, Allocate(span(0, 1, 16)))


def test_pages_taken_ahead_count_against_the_pool() -> None:
    """Four cells and one ahead want two pages, and are refused if there is one."""
    sizes = geometry(pages=1, page_size=4, slots=2, pages_per_seq=4)
    state = SHARING.initial(sizes, default_limits(sizes), capacity=ONE)
    state = go(SHARING, state, Reserve(0))

    assert {Reason.OUT_OF_PAGES} == reasons(SHARING, state, Allocate(span(0, 0, 4)))
    assert set() == reasons(SHARING, state, Allocate(span(0, 0, 3)))


def test_a_child_takes_pages_ahead_for_itself() -> None:
    """Pages taken ahead are never shared; a lazy child still shares the partial page."""
    eager, lazy = Capacity(lookahead=3), BOTH

    assert [(0, 1, 2), (0, 3, 4), None] == rows(go(SHARING, six(eager), Clone(0)))
    assert [(0, 1, 2), (0, 1, 3), None] == rows(go(SHARING, six(lazy), Clone(0)))


def test_a_truncation_keeps_what_the_policy_takes_ahead() -> None:
    """Cut from eight cells to four with three ahead: page 1 stays, and its cells are dead."""
    state = six(THREE, DRAFTS)
    state = go(DRAFTS, state, Propose(0, (1, 2)), Allocate(span(0, 6, 8)), Write(span(0, 6, 8)))
    assert [(0, 1, 2), None, None] == rows(state)

    cut = go(DRAFTS, state, Truncate(0, 6))
    assert [(0, 1, 2), None, None] == rows(cut)
    assert cut == six(THREE, DRAFTS)
    drafts = go(
        DRAFTS,
        DRAFTS.initial(SIZES, default_limits(SIZES), capacity=THREE),
        *written(0, SIX[:4]),
        *(Propose(0, (1,)), Allocate(span(0, 4, 5)), Write(span(0, 4, 5))),
    )
    assert (*SIX[:4], 1) == drafts.cells[1][0]
    assert (cells.POISON,) * 4 == go(DRAFTS, drafts, Truncate(0, 4)).cells[1]


# Prefill, rounds and admission.


def twins_of(length: int, new: int = 6) -> Request:
    """A request of three choices."""
    prompt = tuple(range(1, 1 + length))
    return Request(id=1, prompt=prompt, params=Params(max_new=new), n_generations=3)


@pytest.mark.parametrize(
    ("capacity", "wanted"), [(STANDARD, 4), (LAZY, 2), (THREE, 7), (BOTH, 5), (ONE, 4)]
)
def test_a_prefill_takes_the_pages_of_its_policy(capacity: Capacity, wanted: int) -> None:
    """Three choices of six tokens: the rows, less what each further choice shares."""
    state = SERVING.initial(SIZES, limits(SIZES), capacity=capacity)
    action = Prefill((twins_of(6),))

    assert wanted == SERVING.pages_wanted(state, action)
    after = go(SERVING, state, action)
    assert wanted == SIZES.pages - after.counts.count(0)
    assert set() == reasons(SERVING, after, Round())


@pytest.mark.parametrize("capacity", [STANDARD, LAZY, THREE, BOTH, Capacity(lookahead=99)])
def test_an_admitted_request_is_served_in_its_worst_case(capacity: Capacity) -> None:
    """A pool of exactly the worst case serves three choices; one of a page less refuses them."""
    request = twins_of(6)
    pages_needed = request.pages_needed(SIZES, capacity)
    exact = evolve(SIZES, pages=pages_needed)
    state = SERVING.initial(exact, limits(exact), capacity=capacity)
    state = go(SERVING, state, Submit(request), Admit(), Generate(), Generate())

    assert 3 == len(state.outputs)
    assert (0,) * pages_needed == state.counts
    less = evolve(SIZES, pages=pages_needed - 1)
    small = SERVING.initial(less, limits(less), capacity=capacity)
    assert {Reason.NEVER_FITS} == reasons(SERVING, small, Submit(request))


def test_a_request_never_fits_with_what_is_taken_ahead() -> None:
    """Four tokens, and four cells ahead, are four pages of 2: a pool of three is one short."""
    asked = Submit(Request(id=1, prompt=(1, 2), params=Params(max_new=2)))
    for count, wanted in ((3, {Reason.NEVER_FITS}), (4, set())):
        sizes = geometry(pages=count, page_size=2, slots=2, pages_per_seq=4)
        state = SERVING.initial(sizes, limits(sizes), capacity=Capacity(lookahead=4))

        assert wanted == reasons(SERVING, state, asked)


def test_a_request_that_is_too_long_needs_more_than_a_row() -> None:
    """Nothing is taken ahead past `max_len`, but tokens past it are counted."""
    long = Request(id=1, prompt=(1,), params=Params(max_new=20))

    assert [6, 6] == [long.pages_needed(SIZES, policy) for policy in (STANDARD, THREE)]
    assert 4 == evolve(long, params=Params(max_new=15)).pages_needed(SIZES, THREE)


def test_a_reset_keeps_the_policy() -> None:
    """The policy is configuration: no action changes it, and lower machines have it too."""
    state = six(BOTH)

    assert BOTH == SHARING.cleared(state).capacity == SHARING.project(state).capacity


# Every step of small machines.


def moves(state: State, *, drafts: bool, windowed: bool) -> Iterator[Action]:
    """The next token and cell of each slot, clones, drafts, and a batch of all slots.

    Cells are allocated for known tokens alone. A token names its slot.
    """
    slots = range(state.geometry.slots)
    for slot in slots:
        yield Reserve(slot)
        yield Free(slot)
        yield from (Clone(slot, child) for child in slots)
    used = {slot: found for slot, found in enumerate(state.sequences) if found}
    for slot, found in used.items():
        whole = len(found.tokens) + (len(state.proposed[slot]) if drafts else 0)
        if whole == found.written:
            yield Append(slot, (slot,))
            yield from [Propose(slot, (7,))] * drafts
        yield from [Allocate(((slot, found.allocated),))] * (found.allocated < whole)
        yield Write(((slot, found.written),))
        if drafts:
            yield from (Commit(slot, state.committed[slot] + more) for more in (1, 2))
            yield from (Truncate(slot, state.committed[slot] + more) for more in (0, 1))
        if windowed:
            yield Release(slot, found.written)
    if all(len(found.tokens) > found.allocated for found in used.values()):
        yield Allocate(tuple((slot, found.allocated) for slot, found in used.items()))


SMALL = geometry(pages=2, page_size=2, slots=2, pages_per_seq=2)
LARGER = geometry(pages=3, page_size=2, slots=2, pages_per_seq=2)
SHORT = geometry(pages=2, page_size=2, slots=2, pages_per_seq=1)
CELLS = geometry(pages=3, page_size=1, slots=2, pages_per_seq=2)
SEEN = geometry(pages=3, page_size=1, slots=1, pages_per_seq=3, window=1)


@pytest.mark.parametrize(
    ("machine", "sizes", "capacity", "found"),
    deep_after(
        2,
        [
            (SHARING, SMALL, LAZY, (2177, 7498)),
            (SHARING, SMALL, ONE, (663, 2220)),
            (DRAFTS, CELLS, ONE, (1162, 6973)),
            (WINDOWS, SEEN, ONE, (229, 1004)),
            (SHARING, LARGER, THREE, (1297, 4515)),
            (SHARING, LARGER, BOTH, (2457, 8815)),
            (DRAFTS, SHORT, LAZY, (3424, 23410)),
        ],
    ),
)
def test_every_step_of_a_small_machine(
    machine: Machine, sizes: Geometry, capacity: Capacity, found: tuple[int, int]
) -> None:
    """In every state each step is what the rungs below make of it, and keeps every clause."""
    new = machine.initial(sizes, default_limits(sizes), capacity=capacity)
    drafts, windowed = "rollback" in machine.names, "window" in machine.names

    assert found == every_step(machine, new, partial(moves, drafts=drafts, windowed=windowed))


# Planted bugs.


COPIED = pages._copied


def kept_count(state: State, slot: int, copy: int) -> State:
    """A copy that leaves the count of the old page as it was."""
    return COPIED(state, slot, copy)._replace(counts=state.counts)


def only_allocated(state: State, allocated: int, _reserved: int) -> int:
    """A row that covers nothing ahead, and nothing that is reserved."""
    return state.geometry.pages_for(allocated)


APPEND = (Clone(0), Append(0, (7,)), Allocate(((0, 6),)), Write(((0, 6),)))
DRAFT = (Propose(0, (7,)), Allocate(((0, 6),)), Truncate(0, 6))


@pytest.mark.parametrize(
    ("capacity", "module", "name", "wrong", "actions", "found"),
    [
        (
            LAZY,
            pages,
            "copy_page",
            lambda kept, *_: kept,
            APPEND,
            "rollback to sharing on Allocate",
        ),
        (LAZY, pages, "copying", lambda *_: (), APPEND, "SHARE"),
        (LAZY, pages, "_copied", kept_count, APPEND, "RC"),
        (THREE, sharing, "row_pages", only_allocated, (Clone(0),), "ROW"),
        (THREE, rollback, "row_pages", only_allocated, DRAFT, "ROW"),
        (BOTH, sharing, "_shared", lambda *_: 3, (Clone(0),), "SHARE"),
    ],
)
def test_a_planted_bug_of_a_policy_is_found(
    monkeypatch: pytest.MonkeyPatch,
    capacity: Capacity,
    module: ModuleType,
    name: str,
    wrong: Callable[..., object],
    actions: tuple[Action, ...],
    found: str,
) -> None:
    """Each breaks the edge or the clause of what goes wrong; without it the history holds."""
    state = six(capacity, DRAFTS)
    go(DRAFTS, state, *actions)

    monkeypatch.setattr(module, name, wrong)
    with pytest.raises(AssertionError, match=found):
        go(DRAFTS, state, *actions)


def test_a_prefill_that_ignores_what_is_taken_ahead_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its parts lack pages that it did not count."""
    sizes = evolve(SIZES, pages=2)
    state = SERVING.initial(sizes, limits(sizes), capacity=THREE)
    action = Prefill((evolve(twins_of(6), n_generations=1),))
    assert {Reason.OUT_OF_PAGES} == reasons(SERVING, state, action)

    monkeypatch.setattr(scheduling, "row_pages", only_allocated)
    with pytest.raises(InvalidInput, match="3 different free pages"):
        go(SERVING, state, action)


@pytest.mark.parametrize("wrong", ["late", ["lazy"], {"lazy"}, None, 1])
def test_a_policy_is_one_of_its_words(wrong: Any) -> None:
    """Anything else is refused, lists included, which no table of words can hold."""
    with pytest.raises(InvalidInput, match=r"Capacity\.copy: saw"):
        Capacity(copy=wrong)
