"""The policy that reserves the pages of a request with its prompt, seen from every lower rung."""

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType

import pytest
from attrs import evolve
from capacity_tools import every_step, go, reasons, rows
from deep import deep_after
from spec_tools import SERVING, geometry, limits, planted, sequence, span

from spec import ladder, view
from spec.machines import lifecycle, pages, rollback, scheduling, sharing
from spec.machines.actions import (
    Action,
    Admit,
    Allocate,
    Append,
    Assign,
    Clone,
    Commit,
    Free,
    Generate,
    Prefill,
    Propose,
    Release,
    Reserve,
    Reset,
    Round,
    Submit,
    Truncate,
    Write,
)
from spec.rung import Machine, Pages
from spec.state import State
from spec.vocabulary import (
    Capacity,
    Geometry,
    InvalidInput,
    Params,
    Reason,
    Request,
    default_limits,
)

TABLES = ladder.machine("lifecycle")
DRAFTS = ladder.machine("rollback", "lifecycle")
WINDOWS = ladder.machine("window", "lifecycle")
WHOLE = Capacity(reserve="request")
LAZY = Capacity(copy="lazy", reserve="request")
AHEAD = Capacity(lookahead=1, reserve="request")
SIZES = geometry(pages=9, page_size=4, slots=3, pages_per_seq=4)
SIX = (10, 11, 12, 13, 14, 15)


def assign(slot: int, prompt: tuple[int, ...], max_new: int) -> Assign:
    """A prompt for a slot; the request is the slot."""
    return Assign(slot, prompt, Params(max_new=max_new), slot)


def six(
    capacity: Capacity = WHOLE,
    machine: Machine = TABLES,
    sizes: Geometry = SIZES,
    max_new: int = 7,
) -> State:
    """Six tokens are written in slot 0, and `max_new` may follow."""
    new = machine.initial(sizes, default_limits(sizes), capacity=capacity)
    batch = span(0, 0, 6)
    return go(machine, new, Reserve(0), assign(0, SIX, max_new), Allocate(batch), Write(batch))


def test_a_prompt_takes_the_pages_of_its_request() -> None:
    """Six tokens and seven more are four pages of four cells; the allocation takes none."""
    state = TABLES.initial(SIZES, default_limits(SIZES), capacity=WHOLE)
    state = go(TABLES, state, Reserve(0))
    action = assign(0, SIX, 7)

    assert 4 == TABLES.pages_wanted(state, action)
    state = go(TABLES, state, action)
    assert [(0, 1, 2, 3), None, None] == rows(state)
    assert (13, 0) == (sequence(state, 0).reserved, sequence(state, 0).allocated)
    assert 0 == TABLES.pages_wanted(state, Allocate(span(0, 0, 13)))


def test_a_prompt_takes_no_page_without_the_policy() -> None:
    """Nothing is reserved, and a full pool does not refuse a prompt."""
    sizes = evolve(SIZES, pages=1)
    state = TABLES.initial(sizes, default_limits(sizes))
    state = go(TABLES, state, Reserve(0), Reserve(1), Allocate(span(0, 0, 4)))

    assert set() == reasons(TABLES, state, assign(1, SIX, 7))
    assert [(0,), (), None] == rows(go(TABLES, state, assign(1, SIX, 7)))
    assert () == view.of(TABLES, state).reserved


def test_a_prompt_that_lacks_a_page_is_refused_and_takes_none() -> None:
    """Three free pages hold twelve cells, and not thirteen."""
    sizes = evolve(SIZES, pages=3)
    state = TABLES.initial(sizes, default_limits(sizes), capacity=WHOLE)
    state = go(TABLES, state, Reserve(0))

    assert {Reason.OUT_OF_PAGES} == reasons(TABLES, state, assign(0, SIX, 7))
    assert {Reason.TOO_LONG} == reasons(TABLES, state, assign(0, SIX, 11))
    assert [(0, 1, 2), None, None] == rows(go(TABLES, state, assign(0, SIX, 6)))


def test_the_caller_chooses_the_pages_of_a_prompt() -> None:
    """Pages that are allocated before the prompt stay the first ones of the row."""
    state = TABLES.initial(SIZES, default_limits(SIZES), capacity=WHOLE)
    state = go(TABLES, state, Reserve(0), Allocate(((0, 0),)))

    assert 2 == TABLES.pages_wanted(state, assign(0, SIX, 6))
    assert [(0, 7, 5), None, None] == rows(TABLES.step(state, assign(0, SIX, 6), (7, 5)))


def test_a_longer_sequence_than_its_request_takes_further_pages() -> None:
    """A row covers the larger of what is allocated, with what is taken ahead, and reserved."""
    state = six(max_new=1)
    assert [(0, 1), None, None] == rows(state)
    eighth = go(TABLES, state, Append(0, (1, 2)), Allocate(span(0, 6, 8)))
    assert [(0, 1), None, None] == rows(eighth)
    assert [(0, 1, 2), None, None] == rows(go(TABLES, eighth, Allocate(((0, 8),))))

    ahead = six(AHEAD, max_new=1)
    assert [(0, 1), None, None] == rows(ahead)
    assert [(0, 1, 2), None, None] == rows(go(TABLES, ahead, Allocate(span(0, 6, 8))))


@pytest.mark.parametrize(
    ("capacity", "wanted"),
    [(WHOLE, [(0, 1, 2, 3), (0, 4, 5, 6), None]), (LAZY, [(0, 1, 2, 3), (0, 1, 4, 5), None])],
)
def test_a_child_has_as_many_reserved_cells_in_pages_of_its_own(
    capacity: Capacity, wanted: list[tuple[int, ...] | None]
) -> None:
    """Reserved pages are never shared; a lazy child shares the partial page alone."""
    twins = go(TABLES, six(capacity), Clone(0, 1, 1))

    assert wanted == rows(twins)
    assert 13 == sequence(twins, 1).reserved
    assert [None, wanted[1], None] == rows(go(TABLES, twins, Free(0)))
    few = evolve(SIZES, pages=5)
    assert {Reason.OUT_OF_PAGES} == reasons(TABLES, six(capacity, sizes=few), Clone(0, 1, 1))


def test_the_end_of_a_sequence_releases_what_is_reserved() -> None:
    """Free and Reset give every page back, and a new sequence has nothing reserved."""
    twins = go(TABLES, six(), Clone(0, 1, 1))
    new = TABLES.initial(SIZES, default_limits(SIZES), capacity=WHOLE)

    assert new == go(TABLES, twins, Free(1), Free(0)) == go(TABLES, twins, Reset())
    assert 0 == sequence(go(TABLES, six(), Free(0), Reserve(0)), 0).reserved


def test_a_truncation_keeps_what_is_reserved() -> None:
    """Drafts past the reservation take a page; cut off, the reserved pages stay."""
    state = six(machine=DRAFTS, max_new=4)
    assert [(0, 1, 2), None, None] == rows(state)
    drafts = go(DRAFTS, state, Propose(0, (1, 2)), Allocate(span(0, 6, 13)), Write(span(0, 6, 8)))
    assert [(0, 1, 2, 3), None, None] == rows(drafts)

    assert state == go(DRAFTS, drafts, Truncate(0, 6))


def test_a_release_keeps_what_is_reserved() -> None:
    """The window has left the first page; the reserved ones stay."""
    state = six(machine=WINDOWS, sizes=evolve(SIZES, window=2))

    released = go(WINDOWS, state, Release(0, 5))
    assert (1, 2, 3) == sequence(released, 0).pages
    assert (0,) * 9 == go(WINDOWS, released, Free(0)).counts


def twins_of(length: int, max_new: int) -> Request:
    """A request of three choices."""
    prompt = tuple(range(1, 1 + length))
    return Request(id=1, prompt=prompt, params=Params(max_new=max_new), n_generations=3)


@pytest.mark.parametrize(("capacity", "wanted"), [(WHOLE, 10), (LAZY, 8), (AHEAD, 10)])
def test_a_prefill_takes_the_pages_of_its_requests(capacity: Capacity, wanted: int) -> None:
    """Three choices of six tokens and seven more: four pages each, less what is shared."""
    sizes = evolve(SIZES, pages=10)
    state = SERVING.initial(sizes, limits(sizes), capacity=capacity)
    action = Prefill((twins_of(6, 7),))

    assert wanted == SERVING.pages_wanted(state, action)
    after = go(SERVING, state, action)
    assert wanted == 10 - after.counts.count(0)
    less = evolve(sizes, pages=wanted - 1)
    small = SERVING.initial(less, limits(less), capacity=capacity)
    assert {Reason.OUT_OF_PAGES} == reasons(SERVING, small, action)


@pytest.mark.parametrize("capacity", [WHOLE, LAZY, AHEAD])
def test_an_admitted_request_is_served_in_its_worst_case(capacity: Capacity) -> None:
    """A pool of exactly the worst case serves three choices; one of a page less refuses them."""
    request = twins_of(6, 7)
    exact = evolve(SIZES, pages=request.pages_needed(SIZES, capacity))
    assert 10 == exact.pages
    state = SERVING.initial(exact, limits(exact), capacity=capacity)
    state = go(SERVING, state, Submit(request), Admit())
    while not SERVING.refusals(state, Round()):
        state = go(SERVING, state, Generate())

    assert 3 == len(state.outputs)
    assert (0,) * 10 == state.counts
    less = evolve(exact, pages=9)
    small = SERVING.initial(less, limits(less), capacity=capacity)
    assert {Reason.NEVER_FITS} == reasons(SERVING, small, Submit(request))


# Every step of small machines.


def moves(
    state: State, prompts: tuple[Assign, ...], *, drafts: bool, windowed: bool
) -> Iterator[Action]:
    """These prompts, the next token and cell of each slot, clones, drafts, releases.

    A cell is also allocated before the prompt. A token names its slot.
    """
    yield from prompts
    yield from (Reserve(slot) for slot in sorted({prompt.slot for prompt in prompts}))
    slots = range(state.geometry.slots)
    for slot in slots:
        yield Free(slot)
        yield from (Clone(slot, child, child) for child in slots)
    for slot, found in enumerate(state.sequences):
        if found is None:
            continue
        whole = len(found.tokens) + (len(state.proposed[slot]) if drafts else 0)
        if whole == found.written:
            yield Append(slot, (slot,))
            yield from [Propose(slot, (7,))] * drafts
        if found.allocated < max(whole, 1):
            yield Allocate(((slot, found.allocated),))
        yield Write(((slot, found.written),))
        if drafts:
            yield from (Commit(slot, state.committed[slot] + more) for more in (1, 2))
            yield from (Truncate(slot, state.committed[slot] + more) for more in (0, 1))
        if windowed:
            yield Release(slot, found.written)
    ready = [
        (slot, found.allocated)
        for slot, found in enumerate(state.sequences)
        if found and len(found.tokens) > found.allocated
    ]
    if len(ready) > 1:
        yield Allocate(tuple(ready))


SMALL = geometry(pages=2, page_size=2, slots=2, pages_per_seq=2)
LARGER = geometry(pages=3, page_size=2, slots=2, pages_per_seq=2)
CELLS = geometry(pages=3, page_size=1, slots=2, pages_per_seq=3)
PARTIAL = geometry(pages=2, page_size=2, slots=2, pages_per_seq=1)
SEEN = geometry(pages=4, page_size=1, slots=1, pages_per_seq=4, window=1)
ONE = (assign(0, (0,), 2),)
TWO = tuple(assign(slot, (slot,), max_new) for slot in (0, 1) for max_new in (1, 2))


@pytest.mark.parametrize(
    ("machine", "sizes", "capacity", "prompts", "found"),
    deep_after(
        3,
        [
            (TABLES, SMALL, AHEAD, TWO, (462, 1494)),
            (DRAFTS, CELLS, AHEAD, TWO, (170, 817)),
            (WINDOWS, SEEN, WHOLE, TWO[:2], (118, 490)),
            (TABLES, SMALL, WHOLE, TWO, (1118, 3812)),
            (DRAFTS, PARTIAL, LAZY, TWO, (408, 2578)),
            (TABLES, LARGER, LAZY, ONE, (2325, 7944)),
            (DRAFTS, CELLS, WHOLE, TWO, (1634, 8930)),
        ],
    ),
)
def test_every_step_of_a_small_machine(
    machine: Machine,
    sizes: Geometry,
    capacity: Capacity,
    prompts: tuple[Assign, ...],
    found: tuple[int, int],
) -> None:
    """In every state each step is what the rungs below make of it, and keeps every clause."""
    new = machine.initial(sizes, default_limits(sizes), capacity=capacity)
    drafts, windowed = "rollback" in machine.names, "window" in machine.names
    tried = partial(moves, prompts=prompts, drafts=drafts, windowed=windowed)

    assert found == every_step(machine, new, tried)


# Planted bugs.


RESERVED, RELEASED = pages.with_reserved, pages.release_row


def one_page_less(state: State, slot: int, reserved: int, taken: Pages | None) -> State:
    """A reservation without its last page."""
    right = RESERVED(state, slot, reserved, taken)
    found = sequence(right, slot)
    less = evolve(found, row=found.row[:-1])
    return RELEASED(pages.with_sequence(right, slot, less), found.row[-1:])


def allocated_too(state: State, slot: int, reserved: int, taken: Pages | None) -> State:
    """A reservation whose cells count as allocated."""
    right = RESERVED(state, slot, reserved, taken)
    return pages.with_sequence(right, slot, evolve(sequence(right, slot), allocated=reserved))


def only_allocated(state: State, allocated: int, _reserved: int) -> int:
    """A row that covers nothing that is reserved."""
    return state.geometry.pages_for(allocated)


SHARED = sharing._shared


def every_page(state: State, parent: int) -> int:
    """The whole row of a parent, what is reserved included."""
    found = sequence(state, parent)
    return len(found.row) if found.reserved else SHARED(state, parent)


PROMPT = (Reserve(1), assign(1, (5,), 8))
DRAFT = (Propose(0, (7,)), Allocate(((0, 6),)), Truncate(0, 6))


@pytest.mark.parametrize(
    ("module", "name", "wrong", "actions", "found"),
    [
        (lifecycle, "with_reserved", one_page_less, PROMPT, "ROW"),
        (lifecycle, "with_reserved", allocated_too, PROMPT, "rollback on Assign"),
        (sharing, "row_pages", only_allocated, (Clone(0, 1, 1),), "ROW"),
        (sharing, "_shared", every_page, (Clone(0, 1, 1),), "SHARE"),
        (rollback, "row_pages", only_allocated, DRAFT, "ROW"),
        (
            pages,
            "release_row",
            lambda state, row: RELEASED(state, row[:2]),
            (Free(0),),
            "to rollback on Free",
        ),
    ],
)
def test_a_planted_bug_of_a_reservation_is_found(
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    name: str,
    wrong: Callable[..., object],
    actions: tuple[Action, ...],
    found: str,
) -> None:
    """Each breaks the edge or the clause of what goes wrong; without it the history holds."""
    state = six(LAZY, DRAFTS)
    go(DRAFTS, state, *actions)

    monkeypatch.setattr(module, name, wrong)
    with pytest.raises(AssertionError, match=found):
        go(DRAFTS, state, *actions)


@pytest.mark.parametrize(
    ("machine", "action"),
    [(TABLES, assign(0, SIX, 7)), (SERVING, Prefill((evolve(twins_of(6, 7), n_generations=1),)))],
)
def test_a_reservation_that_is_not_counted_is_found(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, action: Action
) -> None:
    """The prompt takes pages for which the check did not ask."""
    sizes = evolve(SIZES, pages=3)
    state = machine.initial(sizes, limits(sizes), capacity=WHOLE)
    state = go(machine, state, *[Reserve(0)] * isinstance(action, Assign))
    assert {Reason.OUT_OF_PAGES} == reasons(machine, state, action)

    monkeypatch.setattr(scheduling, "row_pages", only_allocated)
    unchecked = planted(machine, Assign, pages_wanted=lambda *_: 0)
    with pytest.raises(InvalidInput, match="4 different free pages"):
        go(unchecked, state, action)
