"""Steps in flight: hand examples with exact states, a random walk, and planted bugs."""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from random import Random

import flight_draws
import pytest
from attrs import evolve
from deep import deep_after
from flight_draws import WHOLE
from spec_draws import free_slots
from spec_tools import FLYING as MACHINE
from spec_tools import ONE, climb_in, geometry, limits, sequence

from spec import clauses, view
from spec.machines import flights, lifecycle, naive, scheduling
from spec.machines.actions import (
    Action,
    Allocate,
    Append,
    Assign,
    Clone,
    Commit,
    Deliver,
    Dispatch,
    Drop,
    Enqueue,
    Free,
    FreeFinished,
    Generate,
    Hit,
    Merge,
    MixedRound,
    Pack,
    Preempt,
    Prefill,
    Propose,
    Publish,
    Purge,
    Release,
    Replay,
    Reserve,
    Reset,
    Retire,
    Round,
    Share,
    Submit,
    TakeOutputs,
    Truncate,
    Write,
)
from spec.machines.pages import with_entry
from spec.machines.rollback import cut
from spec.rung import LadderBroken, Machine
from spec.state import Flight, InFlight, Queued, State
from spec.vocabulary import (
    INVALID,
    LAG,
    Capacity,
    CleanupMode,
    FinishReason,
    Params,
    Reason,
    Refusal,
    Request,
    Tokens,
)

SIZES = geometry(pages=8, page_size=2, slots=3, pages_per_seq=4)
PROMPT = (1, 2, 3, 4, 5)
FOUR = Params(max_new=3)
DRAWN, _ = naive.generate(PROMPT, FOUR)
BOTH = (Retire(), Deliver())


def climb(state: State, *actions: Action) -> State:
    """Take actions, and check every edge of the ladder and every clause at each step."""
    return climb_in(MACHINE, state, *actions)


def new(window: int | None = None, capacity: Capacity | None = None, **changed: int) -> State:
    """A new machine, which keeps what is finished."""
    sizes = evolve(SIZES, window=window)
    given = limits(sizes, **{"round_tokens": 8, **changed})
    return MACHINE.initial(sizes, given, CleanupMode.NONE, capacity or Capacity())


def begun(
    state: State,
    slot: int = 0,
    prompt: Tokens = PROMPT,
    params: Params = FOUR,
    request: int | None = None,
) -> State:
    """A slot has a prompt, and no cell."""
    number = slot if request is None else request
    return climb(state, Reserve(slot), Assign(slot, prompt, params, number))


def decoding(state: State, slot: int = 0, prompt: Tokens = PROMPT, params: Params = FOUR) -> State:
    """A slot has read its prompt, and its first token is queued."""
    return climb(begun(state, slot, prompt, params), Dispatch(((slot, len(prompt)),)), *BOTH)


def lengths(state: State, slot: int = 0) -> tuple[int, int, int]:
    """How many cells are dispatched, retired and delivered."""
    found = sequence(state, slot)
    return found.allocated, found.written, state.committed[slot]


def why(state: State, action: Action) -> tuple[Refusal, ...]:
    """The refusals of an action, in order of their reasons."""
    return tuple(sorted(MACHINE.refusals(state, action), key=lambda one: one.reason))


def refused(state: State, action: Action) -> tuple[Reason, object, object]:
    """The one refusal of an action: its reason, what was seen, and what is allowed."""
    (found,) = why(state, action)
    return found.reason, found.seen, found.allowed


def held(state: State) -> tuple[int, ...]:
    """For each page, how many steps in flight name it."""
    return view.of(MACHINE, state).held or ()


def test_two_chunks_of_a_prompt_are_in_flight_and_the_last_one_draws() -> None:
    """Each count rises at its own point, and the token is known at the delivery of the last one."""
    state = climb(begun(new()), Dispatch(((0, 3),)), Dispatch(((0, 2),)))
    assert (5, 0, 0) == lengths(state)
    assert (1, 1, 1, 0, 0, 0, 0, 0) == state.counts
    assert (2, 2, 1, 0, 0, 0, 0, 0) == held(state)
    first = InFlight(0, first=0, count=3, draws=False, pages=(0, 1))
    last = InFlight(0, first=3, count=2, draws=True, pages=(0, 1, 2))
    assert (Flight((first,)), Flight((last,))) == state.flights

    state = climb(state, Retire())
    assert (5, 3, 0) == lengths(state)
    assert (Flight((first,), retired=True), Flight((last,))) == state.flights
    state = climb(state, Retire())
    assert (5, 5, 0) == lengths(state)
    assert (PROMPT, (DRAWN[0],)) == (sequence(state, 0).tokens, state.proposed[0])

    state = climb(state, Deliver())
    assert (5, 5, 3) == lengths(state)
    assert (Flight((last,), retired=True),) == state.flights
    assert (PROMPT, (DRAWN[0],)) == (sequence(state, 0).tokens, state.proposed[0])
    state = climb(state, Deliver())
    assert (5, 5, 5) == lengths(state)
    assert ((*PROMPT, DRAWN[0]), ()) == (sequence(state, 0).tokens, state.proposed[0])
    assert (Queued(DRAWN[0], 0, 5),) == state.queue
    assert ((), (0,) * 8) == (state.flights, held(state))


def test_a_slot_is_dispatched_before_its_last_token_is_known() -> None:
    """A step has the position of a token that another draws, which is therefore never queued."""
    state = climb(decoding(new()), Dispatch(((0, 1),)))
    assert () == state.queue

    state = climb(state, Dispatch(((0, 1),)))
    first = InFlight(0, first=5, count=1, draws=True, pages=(0, 1, 2))
    second = InFlight(0, first=6, count=1, draws=True, pages=(0, 1, 2, 3))
    assert (Flight((first,)), Flight((second,))) == state.flights
    assert ((7, 5, 5), (*PROMPT, DRAWN[0])) == (lengths(state), sequence(state, 0).tokens)

    state = climb(state, Retire(), Retire())
    assert ((7, 7, 5), DRAWN[1:3]) == (lengths(state), state.proposed[0])
    state = climb(state, Deliver())
    assert ((7, 7, 6), (DRAWN[2],), ()) == (lengths(state), state.proposed[0], state.queue)
    state = climb(state, Deliver())
    assert (DRAWN, FinishReason.LIMIT) == (state.outputs[0].tokens, state.outputs[0].reason)
    assert ((7, 7, 7), (), (0,)) == (lengths(state), state.queue, state.finished)


def stopped() -> State:
    """Two later steps are in flight as the second token of slot 0 turns out to end it."""
    params = Params(max_new=9, stops=((_tokens(9)[1],),))
    sizes = evolve(SIZES, pages_per_seq=8, pages=9)
    state = MACHINE.initial(sizes, limits(sizes, round_tokens=8), CleanupMode.NONE)
    state = decoding(state, params=params)
    return climb(state, *[Dispatch(((0, 1),))] * 3, Retire(), Retire(), Deliver())


def _tokens(count: int) -> Tokens:
    return naive.generate(PROMPT, Params(max_new=count))[0]


def test_a_stop_is_noticed_at_its_delivery_with_two_later_steps_in_flight() -> None:
    """Cells and tokens past the end are cut, while its pages are held until nothing names them."""
    state = stopped()
    assert (0,) == state.finished
    assert (6, 6, 6) == lengths(state)
    assert ((*PROMPT, *_tokens(2)), ()) == (sequence(state, 0).tokens, state.proposed[0])
    assert ((), ((), ())) == (state.queue, state.cells[3])
    assert (1, 1, 1, 0, 0, 0, 0, 0, 0) == state.counts
    assert (2, 2, 2, 2, 0, 0, 0, 0, 0) == held(state)
    kept = InFlight(0, pages=(0, 1, 2, 3), current=False)
    assert (Flight((kept,), retired=True), Flight((kept,))) == state.flights

    state = climb(state, Retire())
    assert ((6, 6, 6), ((), ())) == (lengths(state), state.cells[3])
    state = climb(state, Deliver())
    assert (1, 1, 1, 1, 0, 0, 0, 0, 0) == held(state)
    state = climb(state, Deliver())
    assert (0,) * 9 == held(state)
    (output,) = state.outputs
    assert (_tokens(2), FinishReason.STOP) == (output.tokens, output.reason)


def test_a_slot_whose_sequence_has_ended_is_cleaned_up_and_still_held() -> None:
    """The slot is freed as the cleanup mode says, and taken again once no step has it."""
    state = stopped()._replace(cleanup=CleanupMode.INCREMENTAL)
    state = climb(state, FreeFinished())
    assert ((0,) * 9, None) == (state.counts, state.sequences[0])
    assert (2, 2, 2, 2, 0, 0, 0, 0, 0) == held(state)
    assert (1, 2) == state.unused_slots
    state = climb(state, Deliver(), Retire(), Deliver())
    assert ((0,) * 9, (0, 1, 2)) == (held(state), state.unused_slots)


def test_nothing_is_dispatched_past_the_last_token() -> None:
    """Once a step in flight draws the last token of a limit, no step may write that token."""
    state = climb(decoding(new()), Dispatch(((0, 1),)), Dispatch(((0, 1),)))

    assert (Reason.TOO_LONG, 2, "fewer than 2 generated tokens") == refused(
        state, Dispatch(((0, 1),))
    )
    assert (Reason.BATCH_UNKNOWN, 2, "at most 1 tokens of slot 0") == refused(
        state, Dispatch(((0, 2),))
    )
    state = climb(state, Retire(), Retire(), Deliver())
    assert {Reason.TOO_LONG} == {one.reason for one in why(state, Dispatch(((0, 1),)))}
    assert {Reason.SLOT_FINISHED} == {
        one.reason for one in why(climb(state, Deliver()), Dispatch(((0, 1),)))
    }


def test_as_many_steps_are_in_flight_as_the_lag_allows() -> None:
    """A step may be dispatched while two are not delivered, and no further one."""
    state = climb(begun(new()), *[Dispatch(((0, 1),))] * 3)

    assert (LAG + 1, (Reason.FLIGHTS_FULL, 3, "at most 2 steps in flight")) == (
        len(state.flights),
        refused(state, Dispatch(((0, 1),))),
    )
    climb(state, Retire(), Deliver(), Dispatch(((0, 1),)))


def test_a_slot_that_is_freed_in_flight_is_held_with_its_pages() -> None:
    """A new tenant gets another slot and the lowest pages that no step names, until delivery."""
    state = climb(begun(new()), Dispatch(((0, 3),)), Free(0))
    assert ((0,) * 8, (1, 1, 0, 0, 0, 0, 0, 0)) == (state.counts, held(state))
    assert (Flight((InFlight(0, pages=(0, 1), current=False),)),) == state.flights
    assert (Reason.IN_FLIGHT, 0, "a slot that no step in flight holds") == refused(
        state, Reserve(0)
    )

    state = climb(state, Reserve(), Assign(1, PROMPT, FOUR, 1), Dispatch(((1, 5),)))
    assert (None, (2, 3, 4)) == (state.sequences[0], sequence(state, 1).row)
    state = climb(state, Retire())
    assert ((), ()) == state.cells[0]
    state = climb(state, Deliver(), Reserve(), Assign(0, PROMPT, FOUR, 0), Dispatch(((0, 5),)))
    assert ((0, 1, 5), (2, 3, 4)) == (sequence(state, 0).row, sequence(state, 1).row)
    state = climb(state, Retire(), Deliver(), *BOTH)
    assert ((5, 5, 5), (5, 5, 5)) == (lengths(state, 0), lengths(state, 1))


def test_a_pool_whose_pages_are_all_held_has_no_page() -> None:
    """Pages that no row names are not free while a step names them, and are then."""
    state = climb(begun(new()), Dispatch(((0, 5),)), Free(0))
    state = climb(state, *_filled(1), *_filled(2))
    assert ((0, 0, 0, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1, 1, 1)) == (state.counts, held(state))
    state = climb(state, *BOTH)
    assert (0, 0, 0) == state.in_use[:3]


def _filled(slot: int) -> tuple[Action, ...]:
    length = 6 if slot == 1 else 4
    prompt = Assign(slot, tuple(range(length)), ONE, slot)
    return Reserve(slot), prompt, Dispatch(((slot, length),))


def test_a_request_is_preempted_in_flight_and_reads_its_tokens_again() -> None:
    """What it had drawn and the host had not heard is lost, and drawn again as before."""
    state = climb(decoding(new()), Dispatch(((0, 1),)), Dispatch(((0, 1),)), Retire())
    assert DRAWN[1:2] == state.proposed[0]

    state = climb(state, Preempt(0))
    assert ((0,) * 8, ((),) * 3) == (state.counts, state.proposed)
    assert (2, 2, 2, 1, 0, 0, 0, 0) == held(state)
    state = climb(begun(state, 1, request=0), Replay(1, DRAWN[:1]), Deliver(), *BOTH)
    state = climb(state, Dispatch(((1, 6),)), Dispatch(((1, 1),)), *BOTH, *BOTH)
    assert [DRAWN] == [output.tokens for output in state.outputs]


def test_a_reset_leaves_steps_in_flight_that_only_hold() -> None:
    """Once they are delivered the machine is a new one."""
    state = climb(decoding(new()), Dispatch(((0, 1),)), Retire(), Dispatch(((0, 1),)), Reset())
    kept = (
        InFlight(0, pages=(0, 1, 2), current=False),
        InFlight(0, pages=(0, 1, 2, 3), current=False),
    )
    assert (Flight(kept[:1], retired=True), Flight(kept[1:])) == state.flights
    assert new() == state._replace(flights=())

    state = climb(state, Deliver())
    assert (1, 1, 1, 1, 0, 0, 0, 0) == held(state)
    assert new() == climb(state, *BOTH)


def test_what_is_in_flight_at_a_drop_is_stale() -> None:
    """Its cells are computed with weights from before, though none was written yet."""
    state = climb(begun(new()), Dispatch(((0, 4),)))
    assert 0 == sequence(state, 0).written

    state = climb(begun(state, 1), Drop())
    assert (True, False, False) == state.stale
    state = climb(state, *BOTH)
    assert Reason.STALE == refused(state, Publish(0, 4))[0]


def test_only_delivered_cells_are_published() -> None:
    """Neither a dispatched nor a retired count is a fact."""
    state = climb(begun(new()), Dispatch(((0, 4),)))
    uncommitted = Reason.UNCOMMITTED, 2, "at most 0 committed cells"
    assert uncommitted == refused(state, Publish(0, 2))
    assert uncommitted == refused(climb(state, Retire()), Publish(0, 2))

    state = climb(state, *BOTH, Dispatch(((0, 1),)), Publish(0, 4))
    assert [(0, 2), (1, 4)] == [
        (page, len(entry.chain)) for page, entry in enumerate(state.indexed) if entry
    ]


def test_a_merge_keeps_the_old_page_for_the_step_that_names_it() -> None:
    """The row has the page of the index, and nothing takes its own page before delivery."""
    state = climb(decoding(new()), Publish(0, 4))
    state = climb(begun(state, 1), Dispatch(((1, 4),)), *BOTH, Dispatch(((1, 1),)))
    assert (3, 4, 5) == sequence(state, 1).row

    state = climb(state, Merge(1, 0))
    assert (0, 4, 5) == sequence(state, 1).row
    assert ((2, 1, 1, 0, 1, 1, 0, 0), (0, 0, 0, 1, 1, 1, 0, 0)) == (state.counts, held(state))
    state = climb(begun(state, 2, (8,)), Dispatch(((2, 1),)))
    assert (6,) == sequence(state, 2).row
    state = climb(state, *BOTH, *BOTH)
    assert ((0,) * 8, (5, 5, 5)) == (held(state), lengths(state, 1))


def test_a_release_beside_a_step_goes_by_what_is_delivered() -> None:
    """The released page is held, and what the step writes releases nothing before it is known."""
    state = climb(begun(new(window=2)), Dispatch(((0, 4),)), *BOTH, Dispatch(((0, 1),)))

    state = climb(state, Release(0, 2))
    assert ((0, 1, 1, 0, 0, 0, 0, 0), 1) == (state.counts, state.first_page[0])
    assert (1, 1, 1, 0, 0, 0, 0, 0) == held(state)
    for seen in (state, climb(state, Retire())):
        assert (Reason.WINDOW, 4, "at most 3") == refused(seen, Release(0, 4))
    state = climb(state, *BOTH, Release(0, 4))
    assert ((0, 0, 1, 0, 0, 0, 0, 0), 2) == (state.counts, state.first_page[0])


def test_a_lazy_copy_is_made_at_the_dispatch() -> None:
    """The first slot that appends takes a page, which its step names, and the other one keeps."""
    state = climb(decoding(new(capacity=Capacity(copy="lazy"))), Clone(0, 1, 1))
    assert (2, 2, 2, 0, 0, 0, 0, 0) == state.counts

    state = climb(state, Dispatch(((1, 1), (0, 1))))
    assert ((0, 1, 3), (0, 1, 2)) == (sequence(state, 0).row, sequence(state, 1).row)
    assert [(0, 1, 3), (0, 1, 2)] == [part.pages for part in state.flights[0].parts]
    assert (2, 2, 1, 1, 0, 0, 0, 0) == state.counts
    assert state.cells[2] == state.cells[3] == (PROMPT, ())
    state = climb(state, Retire())
    assert state.cells[2][1] == state.cells[3][1] == (*PROMPT, DRAWN[0])


def in_a_ring(pages: int) -> State:
    """A row names two pages at most, and the step in flight that has position 3 names both."""
    sizes = evolve(SIZES, pages=pages, window=2)
    given = limits(sizes, round_tokens=8)
    state = MACHINE.initial(sizes, given, CleanupMode.NONE, Capacity(ring=2))
    return climb(begun(state), Dispatch(((0, 3),)), *BOTH, Dispatch(((0, 1),)))


def test_a_page_that_a_ring_gives_up_is_held() -> None:
    """A dispatch gives a page up that an older step names, and takes another one."""
    state = climb(in_a_ring(3), Dispatch(((0, 1),)))
    assert ((INVALID, 1, 2), 1) == (sequence(state, 0).row, state.first_page[0])
    assert ((0, 1, 1), (1, 2, 1)) == (state.counts, held(state))

    assert (Reason.OUT_OF_PAGES, 1, "at most 0 pages") == refused(in_a_ring(2), Dispatch(((0, 1),)))
    climb(in_a_ring(2), *BOTH, Dispatch(((0, 1),)))


def test_the_outputs_have_room_for_what_is_in_flight() -> None:
    """A step that may leave an output is refused if those in flight may fill them."""
    state = new(outputs=3)
    for number in (4, 5):
        state = climb(begun(state, 0, (1,), ONE, number), Dispatch(((0, 1),)), *BOTH, Free(0))
    state = climb(begun(begun(state, 0), 1), Dispatch(((0, 5),)), Dispatch(((1, 4),)))
    assert (2, frozenset({0})) == (len(state.outputs), state.promised)

    assert (Reason.OUTPUTS_FULL, 4, "up to 3 outputs") == refused(state, Dispatch(((1, 1),)))
    climb(state, Dispatch(((0, 1),)))
    climb(state, TakeOutputs(), Dispatch(((1, 1),)), *BOTH, *BOTH, *BOTH)


def test_the_queue_has_room_for_what_is_in_flight() -> None:
    """A token that a step draws has its place in the queue from the dispatch on."""
    state = climb(begun(new(queue=3)), Dispatch(((0, 5),)))
    state = climb(begun(state, 1, (1,)), Enqueue(1, 7), Enqueue(1, 7))
    assert (2, frozenset({0})) == (len(state.queue), state.promised)

    longer = begun(state, 2, (1,))
    assert (Reason.QUEUE_FULL, 4, "up to 3") == refused(longer, Enqueue(2, 7))
    assert (Reason.QUEUE_FULL, 4, "up to 3") == refused(longer, Dispatch(((2, 1),)))
    state = climb(state, *BOTH)
    assert (3, frozenset()) == (len(state.queue), state.promised)


def beside() -> State:
    """Slot 0 is in a step that has retired, as another is that holds slot 2; slot 1 decodes."""
    sizes = evolve(SIZES, slots=4)
    state = MACHINE.initial(sizes, limits(sizes, round_tokens=8), CleanupMode.NONE)
    state = climb(begun(decoding(state, 1), 2), Dispatch(((2, 1),)), Free(2))
    return climb(begun(state), Dispatch(((0, 3),)), Retire(), Retire())


HAS, HOLDS = "a slot that no step in flight has", "a slot that no step in flight holds"
NONE_OPEN = 2, "0 steps in flight"
GUARDED: tuple[tuple[Action, object, str], ...] = (
    (Allocate(((0, 3),)), 0, HAS),
    (Append(0, (7,)), 0, HAS),
    (Enqueue(0, 7), 0, HAS),
    (Propose(0, (7,)), 0, HAS),
    (Replay(0, (7,)), 0, HAS),
    (Commit(0, 3), 0, HAS),
    (Truncate(0, 3), 0, HAS),
    (Write(()), *NONE_OPEN),
    (Prefill((Request(id=9, prompt=(1, 2), params=ONE),)), *NONE_OPEN),
    (Round(), *NONE_OPEN),
    (MixedRound(()), *NONE_OPEN),
    (Reserve(2), 2, HOLDS),
    (Clone(1, 2, 1), 2, HOLDS),
    (Clone(0, 3, 1), 0, "a parent that no step in flight has"),
)
"""Actions that are refused beside steps in flight: what each sees, and what is allowed."""


@pytest.mark.parametrize(
    ("action", "seen", "allowed"), GUARDED, ids=lambda value: type(value).__name__
)
def test_an_action_waits_for_a_step_in_flight(action: Action, seen: object, allowed: str) -> None:
    """It is refused for that reason alone, and not for it once every step is delivered."""
    state = beside()
    assert (Reason.IN_FLIGHT, seen, allowed) == refused(state, action)

    after = climb(state, Deliver(), Deliver())
    assert Reason.IN_FLIGHT not in {one.reason for one in why(after, action)}


def test_generate_does_no_round_beside_a_step_in_flight() -> None:
    """The loop of rounds stops before its first one, and is not refused."""
    state = beside()
    assert (Queued(DRAWN[0], 1, 5),) == state.queue

    assert state == climb(state, Generate())
    state = climb(state, Deliver(), Deliver(), Generate())
    assert [(1, DRAWN)] == [(output.request, output.tokens) for output in state.outputs]


def test_every_guard_of_the_rung_is_met() -> None:
    """The table leaves out no action that the rung guards."""
    met = {type(action) for action, _, _ in GUARDED}

    assert flights.RUNG.guards.keys() == met - {Enqueue}


WALKS, STEPS = 16, 70
OFTEN = (Assign, Free, Preempt, Publish, Purge, Release, Reserve, TakeOutputs)
SELDOM = (Drop, Enqueue, FreeFinished, Hit, Merge, Pack, Reset, Share, Submit)
"""Actions that are done while a step is in flight, beside those of the rung."""


def keeps_promises(state: State) -> bool:
    """Queue and outputs are as long as the limits allow, and no step has a last token's position.

    No clause says so, since a view shows neither limits nor parameters.
    """
    ends = {
        slot: detail.prompt_len + detail.params.max_new - 1
        for slot, detail in enumerate(state.details)
        if detail is not None
    }
    parts = [part for flight in state.flights for part in flight.parts if part.current]
    short = len(state.queue) <= state.limits.queue and len(state.outputs) <= state.limits.outputs
    return short and all(part.end <= ends[part.slot] for part in parts)


def walk(
    seed: int, machine: Machine, *, climbs: bool = True
) -> Iterator[tuple[State, Action, State]]:
    """A random history: each state, the action that follows, and the next state.

    Raises AssertionError if an edge of the ladder breaks or a clause is violated. climbs: whether
    the edges are checked.
    """
    rng = Random(f"flights {seed}")
    state = flight_draws.begin(rng)
    seen = view.of(machine, state)
    for number in range(STEPS):
        action = flight_draws.drawn(machine, state, rng, number)
        if action is None:
            return
        after = (machine.climb if climbs else machine.step)(state, action)
        before, seen = seen, view.of(machine, after)
        wrong = [*clauses.violations(seen), *clauses.step_violations(before, seen)]
        assert not wrong, wrong[0]
        assert keeps_promises(after)
        yield state, action, after
        state = after


@pytest.mark.parametrize(("walks", "seldom"), deep_after(1, [(WALKS, ()), (500, SELDOM)]))
def test_a_random_walk_beside_steps_in_flight(walks: int, seldom: tuple[type, ...]) -> None:
    """Every edge and every clause holds, and each action that may be done in flight is."""
    done, stops = Counter[type](), 0
    for seed in range(walks):
        for before, action, after in walk(seed, WHOLE):
            done[type(action)] += bool(before.flights)
            stops += isinstance(action, Deliver) and len(after.outputs) > len(before.outputs)

    wanted = {Dispatch, Retire, Deliver, *OFTEN, *seldom}
    assert set() == wanted - {kind for kind in done if done[kind]}
    assert stops > 5


# Plants: a machine with one mistake, and what notices it.

Plant = Callable[[pytest.MonkeyPatch], Machine]
WRITTEN, HEARD = flights._written, flights._heard
ABANDONED = flights._abandoned


def pages_let_go(patch: pytest.MonkeyPatch) -> Machine:
    """A part that only holds has forgotten its pages."""

    def abandoned(state: State, slots: frozenset[int]) -> State:
        bare = tuple(
            evolve(
                flight,
                parts=tuple(
                    one if one.current else InFlight(one.slot, current=False)
                    for one in flight.parts
                ),
            )
            for flight in ABANDONED(state, slots).flights
        )
        return state._replace(flights=bare)

    patch.setattr(flights, "_abandoned", abandoned)
    return WHOLE


def held_pages_given_out(patch: pytest.MonkeyPatch) -> Machine:
    """A page is free as soon as no row names it."""
    patch.setattr(State, "in_use", property(lambda state: state.counts))
    patch.setattr(State, "held", property(lambda _: frozenset()))
    return WHOLE


def slots_not_held(patch: pytest.MonkeyPatch) -> Machine:
    """A slot is unused as soon as it has no sequence."""
    unused = property(lambda state: tuple(free_slots(state)))
    patch.setattr(State, "unused_slots", unused)
    return WHOLE


def part_lost(patch: pytest.MonkeyPatch) -> Machine:
    """A step forgets a slot whose sequence has ended, with its pages."""

    def abandoned(state: State, slots: frozenset[int]) -> State:
        lost = (
            evolve(flight, parts=tuple(one for one in flight.parts if one.slot not in slots))
            for flight in state.flights
        )
        return state._replace(flights=tuple(lost))

    patch.setattr(flights, "_abandoned", abandoned)
    return WHOLE


def committed_at_retire(patch: pytest.MonkeyPatch) -> Machine:
    """What is written is committed, though the host has not heard of it."""

    def written(machine: Machine, state: State, part: InFlight) -> State:
        state = WRITTEN(machine, state, part)
        return state._replace(committed=with_entry(state.committed, part.slot, part.end))

    patch.setattr(flights, "_written", written)
    return WHOLE


def queued_beside_a_step(patch: pytest.MonkeyPatch) -> Machine:
    """A token that is known is queued, though a step has its position."""

    def heard(state: State, part: InFlight) -> State:
        state = HEARD(state, part)
        return (
            scheduling.last_queued(state, part.slot)
            if flights.parts_of(state, part.slot)
            else state
        )

    patch.setattr(flights, "_heard", heard)
    return WHOLE


def never_queued(patch: pytest.MonkeyPatch) -> Machine:
    """A token that is known waits nowhere."""
    patch.setattr(flights, "last_queued", lambda state, _slot: state)
    return WHOLE


def another_token(patch: pytest.MonkeyPatch) -> Machine:
    """The token that becomes known is not the one that was proposed."""

    def heard(state: State, part: InFlight) -> State:
        if part.draws:
            (token, *later) = state.proposed[part.slot]
            drawn = (token + 1, *later)
            state = state._replace(proposed=with_entry(state.proposed, part.slot, drawn))
        return HEARD(state, part)

    patch.setattr(flights, "_heard", heard)
    return WHOLE


def output_doubled(patch: pytest.MonkeyPatch) -> Machine:
    """A sequence that ends leaves two outputs."""

    def ended(state: State, slot: int) -> State:
        after = lifecycle.ended(state, slot)
        again = after.outputs[len(state.outputs) :]
        return after._replace(outputs=(*after.outputs, *again))

    patch.setattr(flights, "ended", ended)
    return WHOLE


def cut_forgotten(patch: pytest.MonkeyPatch) -> Machine:
    """What is past the end of a sequence stays."""

    def stopped(state: State, slot: int) -> State:
        state = state._replace(proposed=with_entry(state.proposed, slot, ()))
        return ABANDONED(state, frozenset({slot}))

    patch.setattr(flights, "_stopped", stopped)
    return WHOLE


def drafts_kept(patch: pytest.MonkeyPatch) -> Machine:
    """What was drawn past the end of a sequence stays."""

    def stopped(state: State, slot: int) -> State:
        return ABANDONED(cut(state, slot, state.committed[slot]), frozenset({slot}))

    patch.setattr(flights, "_stopped", stopped)
    return WHOLE


def drawn_otherwise(patch: pytest.MonkeyPatch) -> Machine:
    """A step draws another token than the sequence alone would get."""

    def written(machine: Machine, state: State, part: InFlight) -> State:
        state = WRITTEN(machine, state, part)
        if not part.draws:
            return state
        *older, token = state.proposed[part.slot]
        drawn = (*older, token + 1)
        return state._replace(proposed=with_entry(state.proposed, part.slot, drawn))

    patch.setattr(flights, "_written", written)
    return WHOLE


def never_tidied(patch: pytest.MonkeyPatch) -> Machine:
    """A delivery cleans nothing up."""
    patch.setattr(flights, "tidied", lambda _machine, state: state)
    return WHOLE


def promise_forgotten(patch: pytest.MonkeyPatch) -> Machine:
    """Nothing is reserved for what a step in flight draws."""
    patch.setattr(State, "promised", property(lambda _: frozenset()))
    return WHOLE


VIOLATED: tuple[tuple[Plant, str], ...] = (
    (pages_let_go, "HELD"),
    (held_pages_given_out, "HELD"),
    (slots_not_held, "FENCE"),
    (part_lost, "SNAP"),
    (committed_at_retire, "SETTLED"),
    (queued_beside_a_step, "Q"),
    (never_queued, "Q"),
    (another_token, "RB"),
    (output_doubled, "OUT"),
)
"""Mistakes, and the clause that is violated before any other."""
BROKEN = (output_doubled, cut_forgotten, drafts_kept, drawn_otherwise, never_tidied)
"""Mistakes for which the edge does not hold."""


def noticed(machine: Machine, *, climbs: bool) -> Exception | None:
    """What a few walks of a machine end with."""
    for seed in range(400):
        try:
            deque(walk(seed, machine, climbs=climbs), maxlen=0)
        except AssertionError as error:
            return error
    return None


@pytest.mark.parametrize(("plant", "clause"), VIOLATED)
def test_a_clause_notices_a_mistake(
    plant: Plant, clause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No clause before it is violated, without a look at any edge."""
    found = noticed(plant(monkeypatch), climbs=False)

    assert found is not None
    assert f"('{clause}', " in str(found)


def test_the_walk_notices_a_forgotten_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue or the outputs become longer than they may."""
    found = noticed(promise_forgotten(monkeypatch), climbs=False)

    assert found is not None
    assert "keeps_promises" in str(found)


@pytest.mark.parametrize("plant", BROKEN)
def test_the_edge_notices_a_mistake(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The edge to the rungs below breaks at a delivery."""
    found = noticed(plant(monkeypatch), climbs=True)

    assert isinstance(found, LadderBroken)
    assert "on Deliver()" in str(found)
