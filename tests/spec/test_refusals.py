"""Every reason to refuse is reached, and says what was seen, what is allowed and what to do."""

from collections.abc import Callable
from itertools import permutations

import pytest
from attrs import evolve
from spec_tools import FLYING as MACHINE
from spec_tools import climb_in, geometry, limits, span

from spec import ladder
from spec.machines import admission
from spec.machines.actions import (
    Action,
    Admit,
    Allocate,
    Append,
    Assign,
    Clone,
    Commit,
    Deliver,
    Dispatch,
    Drop,
    Enqueue,
    Evict,
    Free,
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
    Retire,
    Round,
    Sample,
    Share,
    Submit,
    Truncate,
    Write,
)
from spec.state import State
from spec.vocabulary import (
    Capacity,
    CleanupMode,
    Geometry,
    Params,
    Reason,
    Refusal,
    Refused,
    Request,
    refused,
)
from spec.vocabulary.errors import (
    BatchRefused,
    CapacityRefused,
    Family,
    FlightRefused,
    RequestRefused,
    SlotRefused,
)

SERVING = ladder.machine("admission", "preemption", "window", "prefix", "flights")
SIZES = geometry(pages=6, page_size=2, slots=2, pages_per_seq=4)
SHORT = Params(max_new=1)
LONG = Params(max_new=4)


def ask(number: int, *, prompt: int = 2, params: Params = LONG, n: int = 1) -> Request:
    """A request of a given size."""
    return Request(id=number, prompt=(1,) * prompt, params=params, n_generations=n)


def climb(state: State, *actions: Action) -> State:
    """Take actions, and check every edge of the ladder and every clause at each step."""
    return climb_in(MACHINE, state, *actions)


def machine(sizes: Geometry, **changed: int) -> State:
    """A new machine, which keeps what is finished."""
    return MACHINE.initial(sizes, limits(sizes, **changed), CleanupMode.NONE)


def empty() -> State:
    """A new machine."""
    return machine(SIZES, queue=2, outputs=2, prefill_seqs=1)


def reserved(state: State | None = None) -> State:
    """Slot 0 is used and has no prompt."""
    return climb(state or empty(), Reserve(0))


def assigned(state: State | None = None) -> State:
    """Slot 0 has a prompt of three tokens, and no cell."""
    return climb(reserved(state), Assign(0, (1, 2, 3), LONG, request=0))


def covered() -> State:
    """Slot 0 has four cells for its three tokens, none of them written."""
    return climb(assigned(), Allocate(span(0, 0, 4)))


def written(state: State | None = None) -> State:
    """Slot 0 has written its three tokens."""
    return climb(assigned(state), Allocate(span(0, 0, 3)), Write(span(0, 0, 3)))


def waiting() -> State:
    """Slot 0 has a token in the queue, which holds two."""
    return climb(written(), Enqueue(0, 7))


def published() -> State:
    """Slot 0 has written its three tokens, and the first two are in the index."""
    return climb(written(), Publish(0, 2))


def alike() -> State:
    """Slot 0 has written three tokens, with which the four of slot 1 begin."""
    return climb(written(), Reserve(1), Assign(1, (1, 2, 3, 4), LONG, request=1))


def ended() -> State:
    """Slot 0 has finished and is not cleaned up; its output is not taken."""
    return climb(empty(), Prefill((ask(0, params=SHORT),)))


def full() -> State:
    """Both slots are used, five of six pages taken."""
    state = climb(waiting(), Reserve(1), Assign(1, (1, 2, 3, 4), LONG, request=1))
    return climb(state, Allocate(span(1, 0, 4)), Write(span(1, 0, 4)), Allocate(span(0, 3, 6)))


def flying() -> State:
    """A step in flight writes the first token of slot 0, one of three, and draws nothing."""
    return climb(assigned(), Dispatch(((0, 1),)))


CASES: dict[Reason, tuple[Callable[[], State], Action, type[Refused], str]] = {
    Reason.SLOT_RANGE: (empty, Free(2), SlotRefused, "saw 2, allowed 0 to 1"),
    Reason.SLOT_UNUSED: (empty, Purge(1), SlotRefused, "saw 1, allowed a slot in use"),
    Reason.SLOT_USED: (reserved, Reserve(0), SlotRefused, "saw 0, allowed an unused slot"),
    Reason.SLOT_FINISHED: (
        ended,
        Allocate(((0, 2),)),
        SlotRefused,
        "saw 0, allowed a sequence that has not finished",
    ),
    Reason.SLOT_ASSIGNED: (
        assigned,
        Assign(0, (1,), LONG, request=1),
        SlotRefused,
        "saw 0, allowed a slot without a prompt",
    ),
    Reason.SLOT_EMPTY: (reserved, Enqueue(0, 1), SlotRefused, "saw 0, allowed a slot with a pro"),
    Reason.NO_FREE_SLOT: (full, Reserve(), SlotRefused, "saw 0, allowed at least 1 free slot"),
    Reason.BATCH_WIDTH: (
        empty,
        Allocate((None,) * 9),
        BatchRefused,
        "saw 9, allowed at most 8 entries",
    ),
    Reason.BATCH_POSITIONS: (
        written,
        Allocate(((0, 4), None, (0, 4))),
        BatchRefused,
        "saw (0, [4, 4]), allowed (0, [3, 4])",
    ),
    Reason.BATCH_UNKNOWN: (covered, Write(span(0, 0, 4)), BatchRefused, "saw 3, allowed below 3"),
    Reason.UNWRITTEN: (
        covered,
        Clone(0, choice=1),
        BatchRefused,
        "saw 0, allowed 4 written",
    ),
    Reason.BATCH_QUEUED: (
        lambda: climb(waiting(), Allocate(((0, 3),))),
        Write(((0, 3),)),
        BatchRefused,
        "saw [(0, 3)], allowed tokens that have left the queue",
    ),
    Reason.SLOT_BEGUN: (published, Hit(0, 2), SlotRefused, "saw 3, allowed 0 cells"),
    Reason.STALE: (
        lambda: climb(written(), Drop()),
        Publish(0, 2),
        SlotRefused,
        "saw 0, allowed a slot whose cells were all written since the last Drop",
    ),
    Reason.UNCOMMITTED: (
        covered,
        Publish(0, 2),
        BatchRefused,
        "saw 2, allowed at most 0 committed cells",
    ),
    Reason.NOT_INDEXED: (assigned, Hit(0, 2), BatchRefused, "saw 2, allowed 1 to 0 whole pages of"),
    Reason.NOT_COMMON: (
        alike,
        Share(0, 1, 3),
        CapacityRefused,
        "saw 3, allowed 1 to 1 whole pages of 2 cells",
    ),
    Reason.NOT_IDLE: (
        published,
        Evict((1, 2)),
        CapacityRefused,
        "saw 1, allowed a page with count 0",
    ),
    Reason.OUT_OF_PAGES: (
        full,
        Allocate(span(1, 4, 8)),
        CapacityRefused,
        "saw 2, allowed at most 1 pages",
    ),
    Reason.TOO_LONG: (
        reserved,
        Assign(0, (1,) * 5, LONG, request=0),
        CapacityRefused,
        "saw 9, allowed at most 8 tokens",
    ),
    Reason.QUEUE_FULL: (
        lambda: climb(waiting(), Enqueue(0, 8)),
        Enqueue(0, 9),
        CapacityRefused,
        "saw 3, allowed up to 2",
    ),
    Reason.QUEUE_EMPTY: (written, Round(), CapacityRefused, "saw 0, allowed at least 1 queued"),
    Reason.OUTPUTS_FULL: (
        lambda: climb(ended(), Free(0), Prefill((ask(1, params=SHORT),)), Free(0)),
        Prefill((ask(2),)),
        CapacityRefused,
        "saw 3, allowed up to 2 outputs",
    ),
    Reason.PREFILL_WIDTH: (
        empty,
        Prefill((ask(1), ask(2))),
        CapacityRefused,
        "saw 2 prompts, 4 tokens, allowed 1 to 1 prompts, at most 8 tokens",
    ),
    Reason.PROPOSED: (
        lambda: climb(waiting(), Propose(0, (8,))),
        Clone(0, choice=1),
        BatchRefused,
        "saw 1, allowed 0 proposed tokens",
    ),
    Reason.COMMITTED: (
        waiting,
        Truncate(0, 1),
        BatchRefused,
        "saw 1, allowed at least 3",
    ),
    Reason.WINDOW: (
        lambda: written(machine(evolve(SIZES, window=2))),
        Release(0, 3),
        BatchRefused,
        "saw 3, allowed at most 2",
    ),
    Reason.NOT_LIVE: (
        ended,
        Preempt(0),
        RequestRefused,
        "saw 0, allowed a request with a choice that has not finished",
    ),
    Reason.STOPS: (
        empty,
        Prefill((ask(1, params=Params(max_new=1, stops=((1, 2, 3, 4, 5),))),)),
        RequestRefused,
        "saw 1, the longest of 5 tokens, allowed at most 2 of 4 tokens",
    ),
    Reason.CHOICE_TAKEN: (
        ended,
        Prefill((ask(0),)),
        RequestRefused,
        "saw 0, allowed an unused request id",
    ),
    Reason.IN_FLIGHT: (
        flying,
        Truncate(0, 1),
        FlightRefused,
        "saw 0, allowed a slot that no step in flight has",
    ),
    Reason.FLIGHTS_FULL: (
        lambda: climb(flying(), Dispatch(((0, 1),)), Dispatch(((0, 1),))),
        Dispatch(((0, 1),)),
        FlightRefused,
        "saw 3, allowed at most 2 steps in flight",
    ),
    Reason.NO_FLIGHT: (
        flying,
        Deliver(),
        FlightRefused,
        "saw 1, allowed a step in flight that has retired",
    ),
}
"""For each reason a state, an action that is refused for it, its class, and its message."""


@pytest.mark.parametrize("reason", CASES, ids=lambda reason: reason.name)
def test_a_reason_is_reached(reason: Reason) -> None:
    """The action is refused with that reason, and the message is complete without the source."""
    begin, action, kind, seen_and_allowed = CASES[reason]
    state = begin()

    with pytest.raises(kind) as caught:
        MACHINE.step(state, action)
    assert reason in caught.value.reasons
    assert f"{reason.name}: {seen_and_allowed}" in str(caught.value)
    assert reason.meaning in str(caught.value)


@pytest.mark.parametrize(
    ("request_", "pages", "message"),
    [
        (ask(1, n=3), 9, "NEVER_FITS: saw 3, allowed at most 2 slots, one per choice"),
        (ask(1, params=Params(max_new=6), n=2), 6, "saw 7, allowed at most 6 pages in the pool"),
        (ask(1, prompt=4), 6, "NEVER_FITS: saw 4, allowed at most 3 tokens in one prefill"),
    ],
)
def test_never_fits_is_reached_at_submission(request_: Request, pages: int, message: str) -> None:
    """A request that no empty engine could run is refused for good, whatever makes it too large."""
    sizes = evolve(SIZES, pages=pages)
    state = SERVING.initial(sizes, limits(sizes, prefill_tokens=3))

    with pytest.raises(RequestRefused) as caught:
        SERVING.step(state, Submit(request_))
    assert {Reason.NEVER_FITS} == caught.value.reasons
    assert message in str(caught.value)
    assert Reason.NEVER_FITS.meaning in str(caught.value)


MORE: tuple[tuple[Reason, Callable[[], State], Action, str], ...] = (
    (Reason.SLOT_RANGE, written, Clone(0, 5), "saw 5, allowed 0 to 1"),
    (Reason.SLOT_RANGE, empty, Reserve(-1), "saw -1, allowed 0 to 1"),
    (Reason.SLOT_USED, written, Clone(0, 0), "saw 0, allowed an unused slot"),
    (Reason.SLOT_FINISHED, ended, Clone(0, choice=1), "saw 0, allowed a parent that has not fin"),
    (Reason.SLOT_EMPTY, reserved, Clone(0, choice=1), "saw 0, allowed a parent with a prompt"),
    (
        Reason.SLOT_EMPTY,
        lambda: climb(reserved(), Allocate(((0, 0),))),
        Write(((0, 0),)),
        "saw 0, allowed a slot with a prompt",
    ),
    (Reason.NO_FREE_SLOT, full, Clone(1, choice=1), "saw 0, allowed at least 1 free slot"),
    (Reason.NO_FREE_SLOT, written, Prefill((ask(5, n=2),)), "saw 2, allowed at most 1 choices"),
    (
        Reason.BATCH_POSITIONS,
        lambda: climb(assigned(), Allocate(span(0, 0, 2))),
        Write(span(0, 0, 3)),
        "saw 2, allowed below 2",
    ),
    (Reason.BATCH_POSITIONS, covered, Write(((0, 1),)), "saw (0, [1]), allowed (0, [0])"),
    (Reason.BATCH_POSITIONS, written, Allocate(((0, 2),)), "saw (0, [2]), allowed (0, [3])"),
    (
        Reason.UNWRITTEN,
        lambda: climb(assigned(), Allocate(span(0, 0, 3)), Enqueue(0, 7)),
        Round(),
        "saw [0], allowed slots whose allocated cells are written",
    ),
    (
        Reason.OUT_OF_PAGES,
        lambda: written(machine(evolve(SIZES, pages=2))),
        Clone(0, choice=1),
        "saw 1, allowed at most 0 pages",
    ),
    (Reason.TOO_LONG, written, Allocate(span(0, 3, 9)), "saw 9, allowed at most 8 positions"),
    (
        Reason.TOO_LONG,
        lambda: climb(assigned(), Enqueue(0, 7), Enqueue(0, 7), Pack(), Enqueue(0, 7)),
        Enqueue(0, 7),
        "saw 3, allowed fewer than 3 generated tokens",
    ),
    (Reason.TOO_LONG, assigned, Hit(0, 3), "saw 3, allowed below 3 tokens"),
    (Reason.TOO_LONG, alike, Share(0, 1, 4), "saw 4, allowed below 4 tokens"),
    (Reason.SLOT_BEGUN, alike, Share(1, 0, 2), "saw 3, allowed 0 cells"),
    (Reason.SLOT_EMPTY, reserved, Hit(0, 0), "saw 0, allowed a slot with a prompt"),
    (Reason.UNCOMMITTED, published, Merge(0, 1), "saw 4, allowed at most 3 committed cells"),
    (Reason.NOT_INDEXED, published, Merge(0, 0), "saw 0, allowed an entry whose key another page"),
    (Reason.NOT_INDEXED, published, Evict((1, 2), 1), "saw (1, 2), allowed the key of a page"),
    (Reason.TOO_LONG, empty, Prefill((ask(1, prompt=5),)), "saw 9, allowed at most 8 tokens"),
    (
        Reason.QUEUE_FULL,
        lambda: climb(waiting(), Enqueue(0, 8)),
        Prefill((ask(1),)),
        "saw 3, allowed up to 2",
    ),
    (
        Reason.QUEUE_FULL,
        lambda: climb(waiting(), Enqueue(0, 8)),
        Clone(0, choice=1),
        "saw 4, allowed up to 2",
    ),
    (
        Reason.OUTPUTS_FULL,
        lambda: climb(ended(), Free(0), Prefill((ask(1),)), Clone(0, choice=1)),
        Round(),
        "saw 3, allowed up to 2 outputs",
    ),
    (
        Reason.CHOICE_TAKEN,
        lambda: empty()._replace(limits=limits(SIZES)),
        Prefill((ask(1), ask(1))),
        "saw 1, allowed an unused request id",
    ),
    (Reason.CHOICE_TAKEN, written, Clone(0, choice=0), "saw (0, 0), allowed an unused pair"),
)
"""Other ways to meet some of them."""


@pytest.mark.parametrize(
    ("reason", "begin", "action", "message"),
    [pytest.param(*case, id=f"{type(case[2]).__name__}-{case[0].name}") for case in MORE],
)
def test_a_reason_is_reached_in_another_way(
    reason: Reason, begin: Callable[[], State], action: Action, message: str
) -> None:
    """The action is refused with this reason alone."""
    with pytest.raises(Refused) as caught:
        MACHINE.step(begin(), action)

    assert {reason} == caught.value.reasons
    assert f"{reason.name}: {message}" in str(caught.value)


def test_no_reason_is_left_out() -> None:
    """The cases above cover every reason."""
    assert set(Reason) == {*CASES, Reason.NEVER_FITS}


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_a_meaning_says_what_is_wrong_and_what_to_do(reason: Reason) -> None:
    """Every meaning is a cause and a remedy, separated by a semicolon."""
    cause, _, remedy = reason.meaning.partition("; ")

    assert cause
    assert remedy
    assert reason.family in Family


THREE_STOPS = Params(max_new=1, stops=((1,),) * 3)


def served(*actions: Action, **changed: int) -> State:
    """A new machine with admission, after these actions."""
    sizes = evolve(SIZES, **changed)
    state = SERVING.initial(sizes, limits(sizes, queue=2, outputs=2, prefill_seqs=1))
    for action in actions:
        state = SERVING.climb(state, action)
    return state


def proposed() -> State:
    """Slot 0 has written its three tokens, and one is proposed."""
    return climb(written(), Propose(0, (8,)))


def at_its_end() -> State:
    """Slot 0 has written as many tokens as a row has cells."""
    state = MACHINE.step(written(), Append(0, (1,) * 5))
    return climb(state, Allocate(span(0, 3, 8)), Write(span(0, 3, 8)))


def unfit() -> State:
    """Slot 0 is used and rows cover what a prompt may need, in a pool of three pages."""
    sizes = evolve(SIZES, pages=3)
    capacity = Capacity(reserve="request")
    state = MACHINE.initial(sizes, limits(sizes), CleanupMode.NONE, capacity)
    return MACHINE.step(state, Reserve(0))


def hit_beside_a_queue() -> State:
    """Slot 1 has the prompt (1,), and the next two tokens are queued; (1, 2) is in the index."""
    state = climb(published(), Reserve(1), Assign(1, (1,), LONG, request=1))
    return climb(state._replace(limits=limits(SIZES)), Enqueue(1, 2), Enqueue(1, 3))


def hit_without_room() -> State:
    """The two pages of slot 0 are all that there are, and a row covers two cells ahead."""
    capacity = Capacity(lookahead=2)
    sizes = evolve(SIZES, pages=2)
    state = MACHINE.initial(sizes, limits(sizes), CleanupMode.NONE, capacity)
    state = climb(state, Reserve(0), Assign(0, (1, 2), LONG, request=0))
    state = climb(state, Allocate(span(0, 0, 2)), Write(span(0, 0, 2)), Publish(0, 2))
    return climb(state, Reserve(1), Assign(1, (1, 2, 3), LONG, request=1))


def queued_behind_a_gap() -> State:
    """A token of slot 0 is queued behind one that has left the queue and was not written."""
    return climb(written(), Enqueue(0, 7), Pack(), Enqueue(0, 8))


def longer_than_a_ring() -> State:
    """Slot 0 has a prompt of three tokens; its row names one page of two cells at most."""
    sizes = evolve(SIZES, window=1)
    wide = limits(sizes, round_tokens=3)
    state = SERVING.initial(sizes, wide, capacity=Capacity(ring=1))
    return climb(state, Reserve(0), Assign(0, (1, 2, 3), LONG, request=0))


def queued_past_a_ring() -> State:
    """Slot 0 has a cell in the one page that its row may name; two more tokens are queued."""
    sizes = evolve(SIZES, window=1)
    state = SERVING.initial(sizes, limits(sizes), capacity=Capacity(ring=1))
    state = climb(state, Reserve(0), Assign(0, (1,), LONG, request=0))
    state = climb(state, Allocate(span(0, 0, 1)), Write(span(0, 0, 1)))
    return climb(state, Enqueue(0, 7), Enqueue(0, 7))


def short_of_a_page() -> State:
    """Slot 0 has both pages of the pool, and slot 1 a prompt without cells."""
    state = written(machine(evolve(SIZES, pages=2)))
    return climb(state, Reserve(1), Assign(1, (1,), LONG, request=1))


def flying_beside_a_queue() -> State:
    """A step in flight writes the first token of slot 1, and slot 0 has a token in the queue."""
    state = climb(waiting(), Reserve(1), Assign(1, (1, 2), LONG, request=1))
    return climb(state, Dispatch(((1, 1),)))


FURTHER: tuple[tuple[Callable[[], State], Action, set[Reason]], ...] = (
    (empty, Append(2, (1,)), {Reason.SLOT_RANGE}),
    (empty, Append(0, (1,)), {Reason.SLOT_UNUSED}),
    (ended, Append(0, (1,)), {Reason.SLOT_FINISHED}),
    (reserved, Append(0, (1,)), {Reason.SLOT_EMPTY}),
    (proposed, Append(0, (1,)), {Reason.PROPOSED}),
    (written, Append(0, (1,) * 6), {Reason.TOO_LONG}),
    (empty, Allocate(((2, 0),)), {Reason.SLOT_RANGE}),
    (empty, Allocate(((0, 0),)), {Reason.SLOT_UNUSED}),
    (empty, Write(((2, 0),)), {Reason.SLOT_RANGE}),
    (empty, Write(((0, 0),)), {Reason.SLOT_UNUSED}),
    (ended, Write(((0, 2),)), {Reason.SLOT_FINISHED}),
    (empty, Write((None,) * 9), {Reason.BATCH_WIDTH}),
    (empty, Sample(2), {Reason.SLOT_RANGE}),
    (empty, Sample(0), {Reason.SLOT_UNUSED}),
    (ended, Sample(0), {Reason.SLOT_FINISHED}),
    (reserved, Sample(0), {Reason.SLOT_EMPTY}),
    (covered, Sample(0), {Reason.SLOT_EMPTY}),
    (proposed, Sample(0), {Reason.PROPOSED}),
    (at_its_end, Sample(0), {Reason.TOO_LONG}),
    (empty, Free(0), {Reason.SLOT_UNUSED}),
    (empty, Clone(0, choice=1), {Reason.SLOT_UNUSED}),
    (empty, Propose(2, (1,)), {Reason.SLOT_RANGE}),
    (empty, Propose(0, (1,)), {Reason.SLOT_UNUSED}),
    (ended, Propose(0, (1,)), {Reason.SLOT_FINISHED}),
    (reserved, Propose(0, (1,)), {Reason.SLOT_EMPTY}),
    (written, Propose(0, (1,) * 6), {Reason.TOO_LONG, Reason.QUEUE_FULL}),
    (waiting, Propose(0, (1, 2)), {Reason.QUEUE_FULL}),
    (empty, Commit(2, 1), {Reason.SLOT_RANGE}),
    (empty, Commit(0, 1), {Reason.SLOT_UNUSED}),
    (written, Commit(0, 4), {Reason.UNWRITTEN}),
    (written, Commit(0, 3), {Reason.COMMITTED}),
    (empty, Truncate(2, 1), {Reason.SLOT_RANGE}),
    (empty, Truncate(0, 1), {Reason.SLOT_UNUSED}),
    (written, Truncate(0, 4), {Reason.TOO_LONG}),
    (empty, Release(2, 0), {Reason.SLOT_RANGE}),
    (empty, Release(0, 0), {Reason.SLOT_UNUSED}),
    (empty, Hit(2, 2), {Reason.SLOT_RANGE}),
    (empty, Hit(0, 2), {Reason.SLOT_UNUSED}),
    (ended, Hit(0, 2), {Reason.SLOT_FINISHED}),
    (hit_beside_a_queue, Hit(1, 2), {Reason.BATCH_QUEUED}),
    (hit_without_room, Hit(1, 2), {Reason.OUT_OF_PAGES}),
    (empty, Share(2, 0, 2), {Reason.SLOT_RANGE}),
    (written, Share(0, 2, 2), {Reason.SLOT_RANGE}),
    (empty, Share(0, 1, 2), {Reason.SLOT_UNUSED}),
    (written, Share(0, 1, 2), {Reason.SLOT_UNUSED}),
    (ended, Share(0, 0, 2), {Reason.SLOT_FINISHED}),
    (lambda: climb(written(), Reserve(1)), Share(0, 1, 2), {Reason.SLOT_EMPTY}),
    (hit_beside_a_queue, Share(0, 1, 2), {Reason.BATCH_QUEUED}),
    (hit_without_room, Share(0, 1, 2), {Reason.OUT_OF_PAGES}),
    (empty, Publish(2, 0), {Reason.SLOT_RANGE}),
    (empty, Publish(0, 0), {Reason.SLOT_UNUSED}),
    (empty, Merge(2, 0), {Reason.SLOT_RANGE}),
    (empty, Merge(0, 0), {Reason.SLOT_UNUSED}),
    (lambda: climb(written(), Drop()), Merge(0, 0), {Reason.STALE}),
    (empty, Assign(2, (1,), LONG, request=1), {Reason.SLOT_RANGE}),
    (empty, Assign(0, (1,), LONG, request=1), {Reason.SLOT_UNUSED}),
    (unfit, Assign(0, (1, 2, 3), LONG, request=1), {Reason.OUT_OF_PAGES}),
    (reserved, Assign(0, (1,), THREE_STOPS, request=1), {Reason.STOPS}),
    (
        lambda: climb(written(), Reserve(1)),
        Assign(1, (1,), LONG, request=0),
        {Reason.CHOICE_TAKEN},
    ),
    (empty, Enqueue(2, 1), {Reason.SLOT_RANGE}),
    (empty, Enqueue(0, 1), {Reason.SLOT_UNUSED}),
    (ended, Enqueue(0, 1), {Reason.SLOT_FINISHED}),
    (proposed, Enqueue(0, 1), {Reason.PROPOSED}),
    (empty, Purge(2), {Reason.SLOT_RANGE}),
    (
        lambda: machine(evolve(SIZES, pages=2)),
        Prefill((ask(1, prompt=5, params=SHORT),)),
        {Reason.OUT_OF_PAGES},
    ),
    (queued_behind_a_gap, Round(), {Reason.BATCH_POSITIONS}),
    (proposed, Round(), {Reason.PROPOSED}),
    (queued_past_a_ring, Round(), {Reason.TOO_LONG}),
    (
        lambda: climb(machine(evolve(SIZES, pages=2)), Prefill((ask(1, prompt=4),))),
        Round(),
        {Reason.OUT_OF_PAGES},
    ),
    (assigned, MixedRound(((0, 1), (0, 1))), {Reason.BATCH_POSITIONS}),
    (assigned, MixedRound(((0, 0),)), {Reason.BATCH_POSITIONS}),
    (
        lambda: climb(queued_behind_a_gap(), Reserve(1), Assign(1, (1,), LONG, request=1)),
        MixedRound(((1, 1),)),
        {Reason.BATCH_POSITIONS},
    ),
    (assigned, MixedRound(((2, 1),)), {Reason.SLOT_RANGE}),
    (assigned, MixedRound(((0, 1), (1, 1))), {Reason.SLOT_UNUSED}),
    (reserved, MixedRound(((0, 1),)), {Reason.SLOT_EMPTY}),
    (ended, MixedRound(((0, 1),)), {Reason.SLOT_FINISHED}),
    (written, MixedRound(()), {Reason.QUEUE_EMPTY}),
    (written, MixedRound(((0, 1),)), {Reason.BATCH_UNKNOWN}),
    (lambda: climb(assigned(), Enqueue(0, 7)), MixedRound(((0, 1),)), {Reason.BATCH_QUEUED}),
    (lambda: assigned(machine(SIZES, round_tokens=2)), MixedRound(((0, 3),)), {Reason.BATCH_WIDTH}),
    (
        lambda: climb(waiting(), Reserve(1), Assign(1, (1, 2), LONG, request=1)),
        MixedRound(((1, 2),)),
        {Reason.BATCH_WIDTH},
    ),
    (
        lambda: climb(assigned(), Allocate(span(0, 0, 2))),
        MixedRound(((0, 1),)),
        {Reason.UNWRITTEN},
    ),
    (
        lambda: climb(assigned(), Propose(0, (8,)), Purge(0)),
        MixedRound(((0, 1),)),
        {Reason.PROPOSED},
    ),
    (longer_than_a_ring, MixedRound(((0, 3),)), {Reason.TOO_LONG}),
    (longer_than_a_ring, MixedRound(((0, 2),)), set()),
    (short_of_a_page, MixedRound(((1, 1),)), {Reason.OUT_OF_PAGES}),
    (
        lambda: climb(
            empty(),
            *(
                step
                for number in (0, 1)
                for step in (Prefill((ask(number, params=SHORT),)), Free(0))
            ),
            *(Reserve(1), Assign(1, (1,), LONG, request=2)),
        ),
        MixedRound(((1, 1),)),
        {Reason.OUTPUTS_FULL},
    ),
    (assigned, Preempt(1), {Reason.NOT_LIVE}),
    (assigned, Replay(2, (7,)), {Reason.SLOT_RANGE}),
    (assigned, Replay(1, (7,)), {Reason.SLOT_UNUSED}),
    (reserved, Replay(0, (7,)), {Reason.SLOT_EMPTY}),
    (ended, Replay(0, (7,)), {Reason.SLOT_FINISHED}),
    (waiting, Replay(0, (7,)), {Reason.BATCH_QUEUED}),
    (proposed, Replay(0, (7,)), {Reason.BATCH_QUEUED}),
    (lambda: climb(assigned(), Propose(0, (8,)), Purge(0)), Replay(0, (7,)), {Reason.PROPOSED}),
    (assigned, Replay(0, (7, 7, 7, 7)), {Reason.TOO_LONG}),
    (lambda: climb(assigned(), Replay(0, (7, 7))), Replay(0, (7, 7)), {Reason.TOO_LONG}),
    (served, Submit(ask(1, prompt=5)), {Reason.TOO_LONG}),
    (served, Submit(ask(1, params=THREE_STOPS)), {Reason.STOPS}),
    (lambda: served(Submit(ask(1))), Submit(ask(1)), {Reason.CHOICE_TAKEN}),
    (served, Submit(ask(1, n=3)), {Reason.NEVER_FITS}),
    (served, Admit(), {Reason.QUEUE_EMPTY}),
    (
        lambda: served(Reserve(0), Reserve(1), Submit(ask(1))),
        Admit(),
        {Reason.NO_FREE_SLOT},
    ),
    (
        lambda: served(*(Reserve(0), Allocate(span(0, 0, 8)), Submit(ask(1, prompt=4))), pages=5),
        Admit(),
        {Reason.OUT_OF_PAGES},
    ),
    (
        lambda: served(
            *(Reserve(0), Assign(0, (1,), LONG, request=0)),
            *(Enqueue(0, 7), Enqueue(0, 7), Submit(ask(1))),
        ),
        Admit(),
        {Reason.QUEUE_FULL},
    ),
    (
        lambda: served(
            *(Prefill((ask(0, params=SHORT),)), Prefill((ask(1, params=SHORT),))),
            Submit(ask(2)),
        ),
        Admit(),
        {Reason.OUTPUTS_FULL},
    ),
    (
        lambda: served(Submit(ask(1)), Reserve(0), Assign(0, (1,), LONG, request=1)),
        Admit(),
        {Reason.CHOICE_TAKEN},
    ),
    (assigned, Dispatch(((2, 1),)), {Reason.SLOT_RANGE}),
    (assigned, Dispatch(((0, 1), (1, 1))), {Reason.SLOT_UNUSED}),
    (assigned, Dispatch(((0, 1), (0, 1))), {Reason.BATCH_POSITIONS}),
    (assigned, Dispatch(((0, 0),)), {Reason.BATCH_POSITIONS}),
    (reserved, Dispatch(((0, 1),)), {Reason.SLOT_EMPTY}),
    (ended, Dispatch(((0, 1),)), {Reason.SLOT_FINISHED}),
    (waiting, Dispatch(()), {Reason.QUEUE_EMPTY}),
    (
        lambda: climb(assigned(), Allocate(span(0, 0, 2))),
        Dispatch(((0, 1),)),
        {Reason.UNWRITTEN},
    ),
    (
        lambda: climb(assigned(), Propose(0, (8,)), Purge(0)),
        Dispatch(((0, 1),)),
        {Reason.PROPOSED},
    ),
    (written, Dispatch(((0, 1),)), {Reason.BATCH_UNKNOWN}),
    (
        lambda: climb(reserved(), Assign(0, (1, 2), SHORT, request=0), Dispatch(((0, 2),))),
        Dispatch(((0, 1),)),
        {Reason.TOO_LONG},
    ),
    (longer_than_a_ring, Dispatch(((0, 3),)), {Reason.TOO_LONG}),
    (lambda: assigned(machine(SIZES, round_tokens=2)), Dispatch(((0, 3),)), {Reason.BATCH_WIDTH}),
    (short_of_a_page, Dispatch(((1, 1),)), {Reason.OUT_OF_PAGES}),
    (
        lambda: climb(waiting(), Enqueue(0, 8), Reserve(1), Assign(1, (1,), LONG, request=1)),
        Dispatch(((1, 1),)),
        {Reason.QUEUE_FULL},
    ),
    (
        lambda: climb(
            empty(),
            *(
                step
                for number in (0, 1)
                for step in (Prefill((ask(number, params=SHORT),)), Free(0))
            ),
            *(Reserve(1), Assign(1, (1,), LONG, request=2)),
        ),
        Dispatch(((1, 1),)),
        {Reason.OUTPUTS_FULL},
    ),
    (assigned, Retire(), {Reason.NO_FLIGHT}),
    (lambda: climb(flying(), Retire()), Retire(), {Reason.NO_FLIGHT}),
    (assigned, Deliver(), {Reason.NO_FLIGHT}),
    (flying, Append(0, (1,)), {Reason.IN_FLIGHT}),
    (flying, Enqueue(0, 7), {Reason.IN_FLIGHT}),
    (flying, Propose(0, (8,)), {Reason.IN_FLIGHT}),
    (flying, Replay(0, (7,)), {Reason.IN_FLIGHT}),
    (flying, Allocate(((0, 1),)), {Reason.IN_FLIGHT}),
    (flying, Write(()), {Reason.IN_FLIGHT}),
    (flying, Prefill((ask(1),)), {Reason.IN_FLIGHT}),
    (flying_beside_a_queue, Round(), {Reason.IN_FLIGHT}),
    (flying_beside_a_queue, MixedRound(()), {Reason.IN_FLIGHT}),
    (lambda: climb(flying(), Retire()), Commit(0, 1), {Reason.IN_FLIGHT}),
    (lambda: climb(flying(), Retire()), Clone(0, choice=1), {Reason.IN_FLIGHT}),
    (lambda: climb(flying_beside_a_queue(), Free(1)), Clone(0, 1, 1), {Reason.IN_FLIGHT}),
    (lambda: climb(flying_beside_a_queue(), Free(1)), Clone(0, None, 1), {Reason.NO_FREE_SLOT}),
    (lambda: climb(flying_beside_a_queue(), Free(1)), Reserve(1), {Reason.IN_FLIGHT}),
    (lambda: climb(flying_beside_a_queue(), Free(1)), Reserve(), {Reason.NO_FREE_SLOT}),
    (
        lambda: served(
            *(Reserve(0), Assign(0, (1, 2, 3), LONG, request=0), Dispatch(((0, 1),))),
            Submit(ask(1)),
        ),
        Admit(),
        {Reason.IN_FLIGHT},
    ),
)
"""Every further pair of action and reason: a state, an action, and all of its reasons."""


@pytest.mark.parametrize(
    ("begin", "action", "reasons"),
    FURTHER,
    ids=lambda value: type(value).__name__ if isinstance(value, Action) else "",
)
def test_a_refusal_has_exactly_its_reasons(
    begin: Callable[[], State], action: Action, reasons: set[Reason]
) -> None:
    """No reason too few, and none too many."""
    assert reasons == {one.reason for one in SERVING.refusals(begin(), action)}


def test_every_pair_of_action_and_reason_is_worked_out_by_hand() -> None:
    """The specification says which pairs there are, so that a new guard needs its case."""
    by_hand = {(type(action), reason) for reason, (_, action, _, _) in CASES.items()}
    by_hand |= {(type(action), reason) for reason, _, action, _ in MORE}
    by_hand |= {(type(action), reason) for _, action, reasons in FURTHER for reason in reasons}

    assert by_hand == {(kind, reason) for kind in SERVING.rules for reason in SERVING.reasons(kind)}


def test_admission_says_why_nobody_is_admitted() -> None:
    """If no request is waiting the queue is empty; a known id is refused at submission."""
    state = SERVING.initial(SIZES, limits(SIZES))

    with pytest.raises(Refused, match="saw 0, allowed at least 1 waiting request"):
        SERVING.step(state, Admit())
    waits = SERVING.step(state, Submit(ask(5)))
    with pytest.raises(RequestRefused, match="CHOICE_TAKEN: saw 5, allowed an id that nothing"):
        SERVING.step(waits, Submit(ask(5)))


@pytest.mark.parametrize(
    "request_",
    [
        ask(1),
        ask(1, prompt=5),
        ask(1, params=THREE_STOPS),
        ask(1, n=3),
        ask(1, prompt=9, params=evolve(THREE_STOPS, max_new=40), n=4),
    ],
)
def test_a_request_fits_if_an_empty_engine_may_take_it(request_: Request) -> None:
    """What is asked of the sizes alone is what a new machine says, word for word."""
    state = served()
    asked = admission.fit_refusals(state.geometry, state.limits, request_)
    refused_ = SERVING.refusals(state, Submit(request_))

    assert sorted(map(str, refused_)) == sorted(map(str, {*asked}))


def test_every_reason_that_holds_is_reported() -> None:
    """A refusal carries all its reasons, in order, in the class of the first."""
    state = climb(written(), Reserve(1))
    action = Assign(0, (1,) * 9, Params(max_new=1, stops=((1,),) * 3), request=0)

    with pytest.raises(SlotRefused) as caught:
        MACHINE.step(state, action)
    names = ["SLOT_ASSIGNED", "TOO_LONG", "STOPS", "CHOICE_TAKEN"]
    assert names == [refusal.reason.name for refusal in caught.value.refusals]
    assert frozenset(caught.value.refusals) == MACHINE.refusals(state, action)
    assert [name for name in names if f"{name}: saw " in str(caught.value)] == names


def test_refusals_are_compared_by_reason() -> None:
    """Refusals are equal if their reasons are, whatever values they report."""
    one, other = Refusal(Reason.STOPS, 1, 2), Refusal(Reason.STOPS, 3, 4)

    assert one == other
    assert 1 == len({one, other})
    assert frozenset({Reason.STOPS}) == refused([one]).reasons


def test_the_lowest_code_decides_the_class_of_a_refusal() -> None:
    """In whichever order the reasons are given, they are reported by their codes."""
    for pair in permutations(Reason, 2):
        found = refused(Refusal(reason) for reason in pair)

        assert sorted(pair) == [refusal.reason for refusal in found.refusals]
        assert type(refused(min(pair))) is type(found)


def test_a_slot_of_the_rung_cache_is_named_only_between_reserving_and_freeing() -> None:
    """The machine of that rung has checks of its own: no other rung uses them."""
    cache = ladder.machine("cache")
    state = cache.initial(SIZES, limits(SIZES))
    for action in (Reserve(0), Append(0, (1,))):
        state = cache.step(state, action)

    def reasons(action: Action) -> set[Reason]:
        return {one.reason for one in cache.refusals(state, action)}

    for unused in (Append(1, (1,)), Write(((1, 0),)), Sample(1), Free(1)):
        assert {Reason.SLOT_UNUSED} == reasons(unused)
    for used in (Append(0, (1,)), Write(((0, 0),)), Free(0)):
        assert set() == reasons(used)
