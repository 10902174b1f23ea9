"""A paged ring: a row names so many pages at most, and gives up those that no query can see."""

from functools import partial
from itertools import product

import pytest
from attrs import evolve
from capacity_tools import every_step, go, reasons, rows
from deep import deep_after
from spec_tools import SERVING, geometry, limits, span
from test_capacity import moves

from spec import ladder, scheduler
from spec.machines import naive
from spec.machines.actions import (
    Action,
    Admit,
    Allocate,
    Append,
    Assign,
    Clone,
    Commit,
    Hit,
    MixedRound,
    Preempt,
    Prefill,
    Propose,
    Publish,
    Release,
    Reserve,
    Round,
    Submit,
    TakeOutputs,
    Truncate,
    Write,
)
from spec.rung import Machine
from spec.state import Output, State
from spec.vocabulary import (
    INVALID,
    STANDARD,
    Capacity,
    Geometry,
    InvalidInput,
    Params,
    Reason,
    Request,
    Tokens,
    default_limits,
)

WINDOWS = ladder.machine("window")
ROUNDS = ladder.machine("preemption", "prefix", "window")
TWO, THREE = Capacity(ring=2), Capacity(ring=3)
SIZES = geometry(pages=8, page_size=2, slots=2, pages_per_seq=6, window=3)
GONE = INVALID
TURNS = 100
"""More turns of the scheduler than any of the requests here needs."""


def started(capacity: Capacity, machine: Machine = WINDOWS, sizes: Geometry = SIZES) -> State:
    """A new state with a ring."""
    return machine.initial(sizes, default_limits(sizes), capacity=capacity)


def cells(slot: int, start: int, end: int) -> tuple[Action, ...]:
    """Known tokens of a slot, with their cells."""
    batch = span(slot, start, end)
    return Append(slot, tuple(range(start, end))), Allocate(batch), Write(batch)


def served(
    machine: Machine, state: State, *requests: Request
) -> tuple[State, list[Action], list[Output]]:
    """The requests are served to their end: the state, what the scheduler did, and the outputs."""
    done, outputs, jobs = list[Action](), list[Output](), scheduler.Jobs()

    def do(action: Action) -> State:
        nonlocal state
        done.append(action)
        state = go(machine, state, action)
        return state

    for request in requests:
        jobs = scheduler.arrive(machine, state, jobs, request)
    for _ in range(TURNS):
        jobs = scheduler.turn(machine, state, jobs, do)
        outputs += state.outputs
        do(TakeOutputs())
    assert jobs == ()
    return state, done, outputs


def alone(request: Request) -> list[tuple[int, int, Tokens]]:
    """What each choice of a request has to get."""
    return [
        (
            request.id,
            choice,
            naive.generate(request.prompt, request.params, choice, window=SIZES.window)[0],
        )
        for choice in range(request.n_generations)
    ]


def told(outputs: list[Output]) -> list[tuple[int, int, Tokens]]:
    """What each choice has got, by name."""
    return sorted((one.request, one.choice, one.tokens) for one in outputs)


def test_a_row_that_needs_a_page_too_many_gives_up_its_first() -> None:
    """The query at 4 sees 2, 3 and 4: the page of 0 and 1 goes, and may be taken at once."""
    state = go(WINDOWS, started(TWO), Reserve(), *cells(0, 0, 4))
    assert [(0, 1), None] == rows(state)

    state = go(WINDOWS, state, *cells(0, 4, 5))

    assert [(GONE, 1, 0), None] == rows(state)
    assert (1, (1, 1, 0)) == (state.first_page[0], state.counts[:3])


def test_a_shared_page_that_is_given_up_stays_with_its_other_owners() -> None:
    """The row that needs a page takes a fresh one; the clone goes on to name the old one."""
    state = go(WINDOWS, started(TWO), Reserve(), *cells(0, 0, 4), Clone(0))

    state = go(WINDOWS, state, *cells(0, 4, 5))

    assert [(GONE, 1, 2), (0, 1)] == rows(state)
    assert (1, 2, 1) == state.counts[:3]


@pytest.mark.parametrize("length", range(1, 12))
def test_a_clone_of_a_longer_text_than_a_ring_is_copied_page_by_page_below(length: int) -> None:
    """Seen from below the child writes its whole history for itself, for which a ring gives way."""
    state = go(ROUNDS, started(TWO, ROUNDS), Reserve(), Assign(0, (1,) * 11, Params(max_new=1), 1))
    for position in range(length):
        batch = ((0, position),)
        state = go(ROUNDS, state, Allocate(batch), Write(batch))

    state = go(ROUNDS, state, Clone(0, choice=1))

    assert state.first_page[0] == state.first_page[1]


def test_a_batch_may_take_what_its_own_rows_give_up() -> None:
    """The pool is full, and both rows of a batch need a page: each has one to give up."""
    sizes = evolve(SIZES, pages=4)
    state = started(TWO, sizes=sizes)
    state = go(WINDOWS, state, Reserve(), *cells(0, 0, 4), Reserve(), *cells(1, 0, 4))
    assert 0 == state.counts.count(0)

    state = go(WINDOWS, state, Append(0, (4,)), Append(1, (4,)), Allocate(((1, 4), (0, 4))))

    assert [(GONE, 1, 0), (GONE, 3, 2)] == rows(state)


def test_a_row_gives_up_only_what_it_needs() -> None:
    """A ring of three keeps a page that no query can see until a fourth is needed."""
    state = go(WINDOWS, started(THREE), Reserve(), *cells(0, 0, 4), *cells(0, 4, 6))
    assert (0, 1, 2) == rows(state)[0]

    state = go(WINDOWS, state, Release(0, 2), *cells(0, 6, 7))

    assert (GONE, 1, 2, 0) == rows(state)[0]


@pytest.mark.parametrize(
    ("ring", "seen"),
    deep_after(4, [(ring, seen) for ring in range(1, 7) for seen in (1, 2, 3, 4) if ring >= seen]),
)
def test_drafts_fit_exactly_beside_the_window(ring: int, seen: int) -> None:
    """With pages of one cell, `written - committed <= ring - window + 1`; see docs/pages.md."""
    sizes = geometry(pages=20, page_size=1, slots=1, pages_per_seq=12, window=seen)
    for committed, drafts in product(range(1, 7), range(1, 7)):
        state = go(WINDOWS, started(Capacity(ring=ring), sizes=sizes), Reserve())
        for position in range(committed):
            state = go(WINDOWS, state, *cells(0, position, position + 1))
        state = go(WINDOWS, state, Propose(0, (9,) * drafts))
        more = Allocate(span(0, committed, committed + drafts))

        fits = drafts <= ring - seen + 1 or committed + drafts <= ring
        assert (set() if fits else {Reason.TOO_LONG}) == reasons(WINDOWS, state, more)
        if fits:
            written = go(WINDOWS, state, more, Write(span(0, committed, committed + drafts)))
            go(WINDOWS, written, Truncate(0, committed))
            go(WINDOWS, written, Commit(0, committed + drafts))


def test_each_refusal_in_a_ring_has_its_reason() -> None:
    """Cells past the ring, a position out of turn, and slots that hold nothing."""
    state = go(WINDOWS, started(TWO), Reserve(), *cells(0, 0, 3), Append(0, (7,) * 6))

    for action, reason in (
        (Allocate(span(0, 3, 7)), Reason.TOO_LONG),
        (Allocate(span(0, 4, 5)), Reason.BATCH_POSITIONS),
        (Allocate(((1, 0),)), Reason.SLOT_UNUSED),
        (Allocate(((7, 0),)), Reason.SLOT_RANGE),
    ):
        assert {reason} == reasons(WINDOWS, state, action)


def test_a_prompt_that_is_longer_than_the_ring_is_read_in_chunks() -> None:
    """At once it is refused, also where it would wait for ever; a chunk up to the ring is done."""
    prompt = tuple(range(9))
    request = Request(id=1, prompt=prompt, params=Params(max_new=2))
    serving = started(TWO, SERVING)
    assert {Reason.TOO_LONG} == reasons(SERVING, serving, Prefill((request,)))
    assert {Reason.TOO_LONG} == reasons(SERVING, serving, Submit(request))

    _, done, outputs = served(ROUNDS, started(TWO, ROUNDS, evolve(SIZES, pages=2)), request)

    chunks = [count for one in done if isinstance(one, MixedRound) for _, count in one.chunks]
    assert 9 == sum(chunks)
    assert 4 >= max(chunks)
    assert alone(request) == told(outputs)


def test_a_hit_is_no_longer_than_the_ring() -> None:
    """Three whole pages of the text are in the index, and a ring of two begins with two of them."""
    text, params = (1, 2, 3, 4, 5, 6, 7), Params(max_new=2)
    state = started(TWO, ROUNDS)
    state = go(ROUNDS, state, Reserve(), Assign(0, text, params, 1))
    for start, count in ((0, 2), (2, 2), (4, 2)):
        state = go(ROUNDS, state, MixedRound(((0, count),)), Publish(0, start + count))
    state = go(ROUNDS, state, Reserve(), Assign(1, text, params, 2))

    assert {Reason.TOO_LONG} == reasons(ROUNDS, state, Hit(1, 6))
    state = go(ROUNDS, state, Hit(1, 4), MixedRound(((1, 2),)))
    assert ((GONE, 1, 3), 1) == (rows(state)[1], state.first_page[1])


@pytest.mark.parametrize(
    "capacity", [Capacity(ring=ring, copy=copy) for ring in (2, 3) for copy in ("eager", "lazy")]
)
def test_an_admitted_request_is_served_with_a_ring_for_each_choice(capacity: Capacity) -> None:
    """A pool of exactly the worst case serves three choices; one of a page less refuses them."""
    request = Request(
        id=1, prompt=(1, 2, 3), params=Params(max_new=8, temperature=1.0), n_generations=3
    )
    sizes = evolve(SIZES, slots=3)
    exact = evolve(sizes, pages=request.pages_needed(sizes, capacity))
    assert 3 * capacity.ring == exact.pages
    state = SERVING.initial(exact, limits(exact), capacity=capacity)
    state = go(SERVING, state, Submit(request), Admit())
    while len(state.outputs) < 3:
        state = go(SERVING, state, Round())
    assert (0,) * exact.pages == state.counts
    less = evolve(exact, pages=exact.pages - 1)
    small = SERVING.initial(less, limits(less), capacity=capacity)
    assert {Reason.NEVER_FITS} == reasons(SERVING, small, Submit(request))


@pytest.mark.parametrize(
    ("capacity", "sizes", "named"),
    [
        (Capacity(ring=1), SIZES, r"Capacity\.ring: saw 1, allowed: 0, or 2 and more"),
        (Capacity(ring=2, lookahead=1), SIZES, r"Capacity\.lookahead: saw 1, allowed: 0 beside"),
        (
            Capacity(ring=5),
            evolve(SIZES, window=None),
            r"saw 5, .* 6 and more.*give the geometry a",
        ),
        (Capacity(ring=2, reserve="request"), SIZES, r"Capacity\.reserve: saw 'request'"),
    ],
)
def test_a_ring_that_cannot_serve_is_refused(
    capacity: Capacity, sizes: Geometry, named: str
) -> None:
    """A ring has room for a window and the next cell, and nothing is reserved in a shorter one."""
    with pytest.raises(InvalidInput, match=named):
        started(capacity, sizes=sizes)


def test_a_request_needs_no_more_pages_than_the_rings_of_its_choices() -> None:
    """The choice that lags behind keeps what the others have given up, and a ring in all."""
    sizes = geometry(pages=4, page_size=2, slots=2, pages_per_seq=4, window=5)
    two = Request(id=1, prompt=(1,) * 6, params=Params(max_new=2), n_generations=2)
    assert [5, 4, 5] == [
        two.pages_needed(sizes, capacity) for capacity in (STANDARD, THREE, Capacity(ring=4))
    ]
    state = go(SERVING, started(THREE, SERVING, sizes), Submit(two), Admit(), Round())
    assert [2, 2] == [len(one.tokens) for one in state.outputs]

    long = Request(id=1, prompt=(1,) * 9, params=Params(max_new=2), n_generations=2)
    for capacity, wanted in ((TWO, 4), (THREE, 6), (Capacity(ring=6), 8)):
        assert wanted == scheduler.pages_needed(ROUNDS, started(capacity, ROUNDS), long)


def test_requests_in_rings_begin_as_soon_as_their_rings_fit() -> None:
    """Two texts of four pages run beside each other in four; two choices of one wait for four."""
    one, two = (
        Request(id=name, prompt=(name,) * 7, params=Params(max_new=new), n_generations=name)
        for name, new in ((1, 5), (2, 3))
    )
    four, five = (started(TWO, ROUNDS, evolve(SIZES, pages=pages, slots=3)) for pages in (4, 5))

    _, together, _ = served(ROUNDS, four, one, evolve(one, id=3))
    _, apart, _ = served(ROUNDS, five, one, two)

    for done, begun in ((together, 2), (apart, 1)):
        before = done[: [type(action) for action in done].index(MixedRound)]
        assert begun == sum(isinstance(action, Assign) for action in before)
        assert not any(isinstance(action, Preempt) for action in done)


def test_the_scheduler_hits_no_more_than_a_ring() -> None:
    """Longer and longer texts put more pages in the index than a row may name."""
    state, hits = started(THREE, ROUNDS, evolve(SIZES, pages=12)), list[int]()
    for name, length in enumerate((6, 10, 10)):
        request = Request(id=name, prompt=tuple(range(length)), params=Params(max_new=2))
        state, done, outputs = served(ROUNDS, state, request)
        hits += [one.length for one in done if isinstance(one, Hit)]
        assert alone(request) == told(outputs)

    assert 5 == len([key for key in state.indexed if key])
    assert [6, 6] == hits


def test_a_machine_that_releases_nothing_has_no_ring() -> None:
    """Without the rung window a ring could give nothing up."""
    with pytest.raises(InvalidInput, match=r"capacity: saw .*ring=3"):
        started(THREE, ladder.machine("rollback"))


TWO_SLOTS = geometry(pages=2, page_size=1, slots=2, pages_per_seq=2, window=1)
ONE_CELL = geometry(pages=3, page_size=1, slots=1, pages_per_seq=4, window=1)
ONE_SLOT = geometry(pages=3, page_size=1, slots=1, pages_per_seq=4, window=2)
PAGES_OF_2 = geometry(pages=3, page_size=2, slots=1, pages_per_seq=3, window=2)


@pytest.mark.parametrize(
    ("sizes", "capacity", "found"),
    deep_after(
        3,
        [
            (ONE_SLOT, Capacity(ring=2), (153, 568)),
            (PAGES_OF_2, Capacity(ring=2), (683, 2746)),
            (ONE_CELL, Capacity(ring=2), (483, 2164)),
            (TWO_SLOTS, Capacity(ring=1), (6032, 48902)),
        ],
    ),
)
def test_every_step_of_a_small_ring(
    sizes: Geometry, capacity: Capacity, found: tuple[int, int]
) -> None:
    """In every state each step is what the full history makes of it, and keeps every clause."""
    new = started(capacity, sizes=sizes)

    assert found == every_step(WINDOWS, new, partial(moves, drafts=True, windowed=True))


@pytest.mark.parametrize("machine", [ROUNDS, ladder.machine("preemption", "window")])
@pytest.mark.parametrize("ring", deep_after(1, [2, 3, 6]))
@pytest.mark.parametrize("pages", [0, 3])
def test_the_scheduler_serves_requests_in_rings(machine: Machine, ring: int, pages: int) -> None:
    """Short and long prompts, and several choices, get their own tokens, in any pool that fits."""
    text = (1, 2, 3, 4, 5, 6, 7)
    requests = [
        Request(id=name, prompt=prompt, params=Params(max_new=5, temperature=1.0), n_generations=n)
        for name, prompt, n in ((1, text, 2), (2, text[:3], 1), (3, text[:2], 2), (4, text[:6], 1))
    ]
    sizes, capacity = evolve(SIZES, slots=3), Capacity(ring=ring)
    most = max(
        scheduler.pages_needed(machine, started(capacity, machine, sizes), request)
        for request in requests
    )
    sizes = evolve(sizes, pages=most + pages)

    _, _, outputs = served(machine, started(capacity, machine, sizes), *requests)

    assert [text for request in requests for text in alone(request)] == told(outputs)
