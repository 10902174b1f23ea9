"""The scheduler with steps in flight: the same outputs at each lag, no preemption for nothing."""

from collections import Counter
from itertools import permutations
from typing import Any

import pytest
from attrs import evolve
from deep import deep_after
from scheduled_cases import ANY, FLYING, MACHINE, Served, flying

from spec import pool, scheduler
from spec.machines import naive
from spec.machines.actions import (
    Action,
    Assign,
    Deliver,
    Dispatch,
    Enqueue,
    Free,
    MixedRound,
    Preempt,
    Prefill,
    Publish,
    Purge,
    Reserve,
    Reset,
    Retire,
    Share,
    TakeOutputs,
)
from spec.machines.flights import reach
from spec.rung import Machine
from spec.state import State
from spec.table import Entry
from spec.vocabulary import (
    LAG,
    CleanupMode,
    Geometry,
    InvalidInput,
    Params,
    Request,
    Tokens,
    default_limits,
)

TWO = Geometry(pages=4, page_size=2, slots=2, pages_per_seq=4)
LAGS = (0, 1, 2, ANY)


class Turns:
    """Turns of the scheduler, their actions, and the state after them."""

    def __init__(self, state: State, jobs: scheduler.Jobs) -> None:
        self.state, self.jobs, self.actions = state, jobs, list[Action]()

    def do(self, action: Action) -> State:
        """Take an action that nothing may refuse."""
        self.actions.append(action)
        self.state = FLYING.step(self.state, action)
        return self.state

    def turn(self, lag: int | None) -> list[Action]:
        """The actions of another turn."""
        self.actions.clear()
        self.jobs = scheduler.turn(FLYING, self.state, self.jobs, self.do, lag=lag)
        return [*self.actions]


def begun(sizes: Geometry, *asked: Request, steps: tuple[Dispatch, ...] = (), **more: int) -> Turns:
    """Requests in slots, by arrival, and steps that have retired and are not delivered."""
    limits = evolve(default_limits(sizes), **more)
    jobs = tuple(scheduler.Job(one, None) for one in asked)
    turns = Turns(FLYING.initial(sizes, limits, CleanupMode.INCREMENTAL), jobs)
    for slot, one in enumerate(asked):
        turns.do(Reserve(slot))
        turns.do(Assign(slot, one.prompt, one.params, one.id))
    for step in steps:
        turns.do(step)
        turns.do(Retire())
    return turns


def asking(name: int, prompt: Tokens, **params: Any) -> Request:
    """A request that draws as many tokens as a row of TWO has room for."""
    whole = {"max_new": TWO.max_len - len(prompt), **params}
    return Request(id=name, prompt=prompt, params=Params(**whole))


@pytest.mark.parametrize("block", deep_after(1, [range(100), range(100, 500), range(500, 900)]))
def test_outputs_are_the_same_at_each_lag(block: range) -> None:
    """Each is that of its request alone, no action is refused, and the oldest goes on in time."""
    kinds, stalled = Counter[type](), dict.fromkeys(LAGS, 0)
    for seed in block:
        outputs = list[object]()
        for lag in LAGS:
            served = Served(flying(seed), lag=lag)
            assert [] == served.wrong, (seed, lag)
            assert served.in_flight <= (LAG if lag == ANY else lag) + 1
            outputs.append(served.outputs)
            kinds += served.kinds
            stalled[lag] = max(stalled[lag], served.stalled)
        assert all(outputs[0] == other for other in outputs[1:]), seed

    needed = (scheduler.actions_of(FLYING, lag=0) | {MixedRound, TakeOutputs}) - {Purge}
    assert needed <= kinds.keys(), needed - kinds.keys()
    assert (0, 1, 2) == tuple(stalled[lag] for lag in (0, 1, 2))  # as many as there may be


def test_nobody_is_preempted_whose_pages_are_held() -> None:
    """Two deliveries come first, before which the only victim would free none of its pages."""
    turns = full()
    after = FLYING.effect(turns.state, Preempt(1))
    assert (1, 1, 0, 0) == after.counts
    assert 0 == pool.free_count(turns.state.in_use) == pool.free_count(after.in_use)

    taken = turns.turn(2)
    assert [Deliver(), Deliver(), Preempt(1), Dispatch(((0, 1),)), Retire()] == without_index(taken)
    assert 1 == pool.free_count(turns.state.in_use)


def test_a_delivery_may_show_that_nobody_need_be_preempted() -> None:
    """The newer request has drawn its stop: its pages are free when no step holds them any more."""
    drawn, _ = naive.generate((2, 2, 2), Params(max_new=5))
    turns = full(stops=((drawn[0],),))

    taken = turns.turn(2)
    assert [Deliver(), Deliver(), Dispatch(((0, 1),)), Retire()] == without_index(taken)
    assert (1,) == tuple(output.request for output in turns.state.outputs)


def test_pages_that_a_stale_step_holds_are_not_free_for_a_request() -> None:
    """Its count is 0, and a step in flight may still write there: nobody begins with it."""
    both = Dispatch(((0, 3),)), Dispatch(((0, 1),))
    turns = begun(TWO, asking(0, (1, 1, 1)), steps=both, round_tokens=8)
    waits = scheduler.Job(asking(1, (3,) * 5), ((0, ()),))
    turns.do(Free(0))
    assert (4, 2) == tuple(map(pool.free_count, (turns.state.counts, turns.state.in_use)))

    assert not scheduler._fits(FLYING, turns.state, waits)
    for _ in both:
        turns.do(Deliver())
    assert scheduler._fits(FLYING, turns.state, waits)


def full(**params: Any) -> Turns:
    """Two requests have two pages each of the four, and each has a token in two steps in flight.

    The oldest one needs a page for its next token.
    """
    both = Dispatch(((0, 3), (1, 3))), Dispatch(((0, 1), (1, 1)))
    asked = asking(0, (1, 1, 1)), asking(1, (2, 2, 2), **params)
    return begun(TWO, *asked, steps=both, round_tokens=8)


def without_index(actions: list[Action]) -> list[Action]:
    """The actions that do not concern the index."""
    return [action for action in actions if not isinstance(action, Publish)]


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_so_many_steps_stay_in_flight(lag: int) -> None:
    """One request that decodes is in a step of each turn, of which the oldest are delivered."""
    turns = begun(TWO, asking(0, (1, 1)))
    found = list[tuple[int, int]]()
    while turns.jobs:
        taken = turns.turn(lag)
        found.append((len(turns.state.flights), taken.count(Deliver())))

    steps = TWO.max_len - 2
    open_after = [min(lag, number) for number in range(1, steps)]
    assert open_after == [flights for flights, _ in found[: steps - 1]]
    assert steps == sum(delivered for _, delivered in found)
    assert (0, 1) == found[-1] if lag == 0 else (0, lag) == found[-1]


def test_a_slot_sits_out_when_its_last_token_is_drawn_in_flight() -> None:
    """It is in no third step; the newer one goes on, and the delivery ends it."""
    turns = begun(TWO, asking(0, (1, 1, 1), max_new=2), asking(1, (2,)), round_tokens=8)
    steps = [action for _ in range(4) for action in turns.turn(2) if isinstance(action, Dispatch)]

    assert [((0, 3), (1, 1)), ((0, 1), (1, 1)), ((1, 1),), ((1, 1),)] == [
        step.chunks for step in steps
    ]
    assert (0,) == tuple(output.request for output in turns.state.outputs)


def most_stalled(turns: Turns, lag: int, *, often: int) -> int:
    """In how many turns in a row the oldest of the requests goes no further, at most."""
    names, stalled, most = [job.request.id for job in turns.jobs], 0, 0
    for _ in range(often):
        before = scheduler.ranks(turns.state, turns.jobs, names)
        turns.turn(lag)
        after = scheduler.ranks(turns.state, turns.jobs, names)
        stalled = scheduler.turns_stalled(stalled, before, after)
        most = max(most, stalled)
    return most


def crowded() -> Turns:
    """The oldest reads its prompt beside two that decode; an output of three is not taken."""
    sizes = evolve(TWO, slots=3, pages=24, pages_per_seq=8)
    asked = [
        Request(id=name, prompt=prompt, params=Params(max_new=10))
        for name, prompt in enumerate(((1,) * 6, (2,), (3,)))
    ]
    turns = begun(sizes, round_tokens=4, outputs=3)
    turns.do(Prefill((Request(id=9, prompt=(4,), params=Params(max_new=1)),)))
    for slot, one in enumerate(asked):
        turns.do(Reserve(slot))
        turns.do(Assign(slot, one.prompt, one.params, one.id))
    for action in (Dispatch(((1, 1), (2, 1))), Retire(), Deliver()):
        turns.do(action)
    turns.jobs = tuple(scheduler.Job(one, None) for one in asked)
    return turns


def test_newer_requests_leave_the_oldest_a_place_in_the_outputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of the two sits out; if both drew, the oldest could not as long as they do."""
    turns = crowded()
    assert [Dispatch(((0, 3), (1, 1))), Retire()] == turns.turn(2)
    assert 0 == most_stalled(crowded(), 2, often=6)
    monkeypatch.setattr(scheduler._Plan, "with_place_for", lambda plan, _oldest: plan)
    assert most_stalled(crowded(), 2, often=6) > 2


def filled() -> Turns:
    """A newer request decodes, and fills the budget of a step; nothing of the oldest is read."""
    turns = begun(TWO, asking(0, (1, 1)), asking(1, (2,)), round_tokens=1)
    for action in (Dispatch(((1, 1),)), Retire(), Deliver()):
        turns.do(action)
    return turns


def test_the_oldest_has_a_token_in_a_step_that_newer_ones_would_fill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The newest one that decodes sits out, and its token stays in the queue."""
    turns = filled()
    assert [Dispatch(((0, 1),)), Retire()] == turns.turn(2)
    assert (1,) == tuple(queued.slot for queued in turns.state.queue)
    monkeypatch.setattr(scheduler, "_ahead_in_step", lambda *_: None)
    assert most_stalled(filled(), 2, often=4) > 2


def test_steps_that_another_caller_left_open_are_delivered() -> None:
    """A reset leaves a step that has not retired, and it holds the only slot. A round waits too."""
    for lag in (0, 1, 2, None):
        turns = begun(evolve(TWO, slots=1, pages=4), asking(0, (1, 1)), round_tokens=8)
        turns.do(Dispatch(((0, 2),)))
        turns.do(Reset())
        turns.jobs = scheduler.arrive(FLYING, turns.state, (), asking(1, (1, 2)))
        taken = [*turns.turn(lag), *turns.turn(lag)]
        assert [Retire(), Deliver(), Reserve(0)] == taken[:3]
        assert {MixedRound if lag is None else Dispatch} <= set(map(type, taken))


def test_tokens_that_a_caller_has_queued_early_are_taken_back() -> None:
    """They fill the queue, so that it would have no room for what a step draws."""
    turns = begun(TWO, asking(0, (1,)), asking(1, (2,)), queue=4)
    for token in range(4):
        turns.do(Enqueue(0, token))

    assert FLYING.refusals(turns.state, Dispatch(((0, 1), (1, 1))))
    assert [Purge(0), Dispatch(((0, 2),)), Retire()] == turns.turn(2)


def test_a_choice_begins_with_pages_as_soon_as_they_are_delivered() -> None:
    """It waits while the step that writes them is open, since a dispatched count is no fact."""
    one = Request(id=0, prompt=(1,) * 5, params=Params(max_new=3), n_generations=2)
    sizes = evolve(TWO, pages=8)
    state = FLYING.initial(sizes, evolve(default_limits(sizes), round_tokens=8), CleanupMode.END)
    turns = Turns(state, scheduler.arrive(FLYING, state, (), one))
    taken = [turns.turn(1) for _ in range(3)]

    assert [Dispatch(((0, 5),)), Retire()] == taken[0][-2:]
    assert [Dispatch(((0, 1),)), Retire(), Deliver(), Publish(0, 4)] == taken[1]
    assert [Share(0, 1, 4), Dispatch(((0, 1), (1, 1)))] == taken[2][:2]


def test_a_lag_that_no_machine_has_is_refused() -> None:
    """More steps than the rung allows, or a machine without steps in flight."""
    state = FLYING.initial(TWO, default_limits(TWO), CleanupMode.END)
    for machine, lag in ((FLYING, LAG + 1), (FLYING, -1), (MACHINE, 0)):
        with pytest.raises(InvalidInput, match="lag"):
            scheduler.turn(machine, state, (), lambda _: state, lag=lag)


def preempts_at_once(
    machine: Machine, state: State, order: tuple[int, ...], requester: int, batch: tuple[Entry, ...]
) -> tuple[Action, ...]:
    """A wrong rule: nobody waits for the pages of a victim that steps in flight hold."""
    bare = state._replace(flights=())
    return tuple(map(Preempt, scheduler.victims(machine, bare, order, requester, batch)))


@pytest.mark.parametrize(
    ("name", "wrong", "told", "seeds"),
    [
        ("_before_another", preempts_at_once, "PROG: a preemption", range(40, 42)),
        ("_deliver_beyond", lambda _m, state, _most, _do: state, "LAG", range(20)),
        ("_cells_to_come", reach, "REFUSED: TOO_LONG", range(20)),
        ("_Plan.room_of", lambda _plan, _slot: 99, "REFUSED: BATCH_WIDTH", range(20)),
        ("_Plan.room_of", lambda _plan, _slot: 1, "KNOB", range(20)),
        (
            "_Plan.drawn_within",
            lambda _plan, _state, wanted: wanted,
            "REFUSED: OUTPUTS_FULL",
            range(100),
        ),
        ("most_cells", lambda *_: 99, "REFUSED: TOO_LONG", range(100)),
        ("_waits", lambda *_: True, "PROG: the rank", range(20)),
    ],
)
def test_a_wrong_rule_is_found(
    name: str, wrong: object, told: str, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rule is needed: some action is refused, or the oldest request goes no further."""
    monkeypatch.setattr(f"spec.scheduler.{name}", wrong)

    assert any(
        one.startswith(told)
        for seed in seeds
        for lag in (1, 2)
        for one in Served(flying(seed), lag=lag).wrong
    )


def test_every_order_of_arrival_goes_on_in_time() -> None:
    """Three requests arrive in any order, in any turn, and the outputs are taken, or not yet."""
    counts, params = (2, 1, 1), Params(max_new=5)
    asked = tuple(
        Request(id=number, prompt=prompt, params=params, n_generations=counts[number])
        for number, prompt in enumerate(((1, 1, 1), (1, 1), (2,)))
    )
    sizes = evolve(TWO, pages=7, slots=3)
    limits = evolve(default_limits(sizes), round_tokens=3, outputs=3)
    new = FLYING.initial(sizes, limits, CleanupMode.INCREMENTAL)
    stack = [(Turns(new, ()), order, 0) for order in permutations(asked)]
    seen, preempted, worst = set[object](), 0, 0
    while stack:
        turns, coming, stalled = stack.pop()
        at = turns.state, turns.jobs, coming, stalled
        if at in seen:
            continue
        seen.add(at)
        if coming:
            jobs = scheduler.arrive(FLYING, turns.state, turns.jobs, coming[0])
            stack.append((Turns(turns.state, jobs), coming[1:], stalled))
        if turns.state.outputs:
            taken = FLYING.step(turns.state, TakeOutputs())
            stack.append((Turns(taken, turns.jobs), coming, stalled))
        if turns.jobs:
            after = Turns(turns.state, turns.jobs)
            preempted += any(isinstance(action, Preempt) for action in after.turn(2))
            stalled = stalled_after(turns, after, stalled)
            worst = max(worst, stalled)
            stack.append((after, coming, stalled))
    assert (5076, 10, 1) == (len(seen), preempted, worst)


def stalled_after(before: Turns, after: Turns, stalled: int) -> int:
    """In how many turns in a row the oldest has gone no further; others began without room."""
    oldest = [before.jobs[0].request.id]
    ranks = [scheduler.ranks(turns.state, turns.jobs, oldest) for turns in (before, after)]
    room = len(before.state.outputs) < before.state.limits.outputs
    counts = room or not scheduler.oldest_stalls(*ranks)
    return scheduler.turns_stalled(stalled, *ranks) if counts else stalled
