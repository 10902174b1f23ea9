"""The scheduler: requests cannot tell that it runs, and the oldest one goes on in every turn."""

from collections import Counter
from itertools import permutations

import pytest
from attrs import evolve
from scheduled_cases import MACHINE, Served, case

from spec import scheduler
from spec.machines import naive
from spec.machines.actions import (
    Action,
    Allocate,
    Assign,
    Free,
    Hit,
    MixedRound,
    Preempt,
    Prefill,
    Publish,
    Purge,
    Replay,
    Reserve,
    Share,
    TakeOutputs,
)
from spec.machines.pages import used
from spec.machines.preemption import slots_of_request
from spec.rung import Machine
from spec.state import State
from spec.table import Entry
from spec.vocabulary import (
    Capacity,
    CleanupMode,
    Geometry,
    InvalidInput,
    Params,
    Reason,
    Refused,
    Request,
    Tokens,
    default_limits,
)

TINY = Geometry(pages=3, page_size=2, slots=3, pages_per_seq=4)
Orders = tuple[int, ...]


def test_requests_cannot_tell_and_the_oldest_goes_on() -> None:
    """Each output is that of its request alone, each turn lowers the rank of the oldest request."""
    kinds = Counter[type]()
    for seed in range(250):
        served = Served(case(seed))
        assert [] == served.wrong, seed
        kinds += served.kinds

    asked = {Hit, MixedRound, Preempt, Publish, Purge, Replay, Share}
    assert asked <= kinds.keys(), asked - kinds.keys()


def test_a_request_that_sits_out_is_overtaken() -> None:
    """No newer request has the page that it lacks, so they go on, and it waits a round."""
    served = Served(case(605))

    assert [] == served.wrong
    assert {2: 1} == served.overtaken


def test_every_order_of_arrival_goes_on() -> None:
    """Three requests arrive in any order, each in any turn: the oldest goes on in every state."""
    counts, params = (2, 1, 1), Params(max_new=5)
    asked = tuple(
        Request(id=number, prompt=prompt, params=params, n_generations=counts[number])
        for number, prompt in enumerate(((1, 1, 1), (1, 1), (2,)))
    )
    sizes = evolve(TINY, pages=7)
    limits = evolve(default_limits(sizes), round_tokens=3)
    new = MACHINE.initial(sizes, limits, CleanupMode.INCREMENTAL)
    stack: list[tuple[State, scheduler.Jobs, tuple[Request, ...]]] = [
        (new, (), order) for order in permutations(asked)
    ]
    seen, preempted = set[object](), 0
    while stack:
        state, jobs, coming = at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        if coming:
            stack.append((state, scheduler.arrive(MACHINE, state, jobs, coming[0]), coming[1:]))
        if jobs:
            after, oldest = Turn(state), jobs[0].request.id
            left = scheduler.turn(MACHINE, state, jobs, after.do)
            rank = scheduler.ranks(after.state, left, [oldest]).get(oldest, 0)
            assert rank < scheduler.ranks(state, jobs, [oldest])[oldest]
            preempted += any(isinstance(action, Preempt) for action in after.actions)
            if after.state.outputs:
                after.do(TakeOutputs())
            stack.append((after.state, left, coming))
    assert (865, 27) == (len(seen), preempted)


class Turn:
    """The actions of a turn, and the state after them."""

    def __init__(self, state: State) -> None:
        self.state, self.actions = state, list[Action]()

    def do(self, action: Action) -> State:
        """Take an action that nothing may refuse."""
        self.actions.append(action)
        self.state = MACHINE.step(self.state, action)
        return self.state


def newest_alone(
    machine: Machine, state: State, order: Orders, requester: int, batch: tuple[Entry, ...]
) -> Orders:
    """A wrong rule of victims: one request alone must have the pages."""
    for one in reversed(order[order.index(requester) + 1 :]):
        after = machine.effect(state, Preempt(one))
        if machine.pages_wanted(after, Allocate(batch)) <= after.counts.count(0):
            return (one,)
    return ()


def oldest_first(
    machine: Machine, state: State, order: Orders, requester: int, batch: tuple[Entry, ...]
) -> Orders:
    """A wrong rule: of the newer requests the oldest are victims."""
    chosen: Orders = ()
    for one in order[order.index(requester) + 1 :]:
        state, chosen = machine.effect(state, Preempt(one)), (*chosen, one)
        if machine.pages_wanted(state, Allocate(batch)) <= state.counts.count(0):
            return chosen
    return ()


def begun(
    sizes: Geometry, prompts: tuple[Tokens, ...], **more: int
) -> tuple[State, scheduler.Jobs]:
    """Requests in slots, by arrival, of which nothing is read."""
    limits = evolve(default_limits(sizes), **more)
    state, asked = MACHINE.initial(sizes, limits, CleanupMode.INCREMENTAL), list[Request]()
    for slot, prompt in enumerate(prompts):
        params = Params(max_new=sizes.max_len - len(prompt))
        asked.append(Request(id=slot, prompt=prompt, params=params))
        state = MACHINE.step(state, Reserve(slot))
        state = MACHINE.step(state, Assign(slot, prompt, params, slot))
    return state, tuple(scheduler.Job(one, None) for one in asked)


def test_no_more_are_preempted_than_are_needed_for_a_token() -> None:
    """A chunk would need both pages; its first token needs the one of the newest."""
    state, jobs = begun(TINY, ((1,) * 6, (2, 2, 2), (3, 3, 3)))
    for chunk in ((0, 2), (1, 2), (2, 2)):
        state = MACHINE.step(state, MixedRound((chunk,)))

    assert (Preempt(2),) == scheduler.next_round(MACHINE, state, jobs)


def test_the_newest_makes_room_for_the_oldest() -> None:
    """Of two newer requests that fill the budget of a round, the older one stays in it."""
    state, jobs = begun(evolve(TINY, pages=9), ((1, 1), (2,), (3,)), round_tokens=2)
    state = MACHINE.step(state, MixedRound(((2, 1), (1, 1))))

    assert (Purge(2),) == scheduler.next_round(MACHINE, state, jobs)


def test_a_preempted_request_begins_again_if_what_it_had_drawn_fits() -> None:
    """Its prompt alone would fit."""
    sizes = evolve(TINY, pages=4)
    state, (old, new) = begun(sizes, ((1,) * 4, (2,)), round_tokens=4)
    state = MACHINE.step(MACHINE.step(state, Free(1)), MixedRound(((0, 4),)))
    for drawn, begins in (((5, 6), False), ((5,), True)):
        after = Turn(state)
        scheduler.turn(MACHINE, state, (old, new._replace(kept=((0, drawn),))), after.do)
        assert begins == any(isinstance(action, Reserve) for action in after.actions)


def test_a_choice_that_has_finished_is_not_begun_again() -> None:
    """A preempted request keeps the other one alone, under its own number, with what it drew."""
    sizes, warm = evolve(TINY, pages=9), Params(max_new=5, temperature=1.0, seed=1)
    texts = [naive.generate((1, 1), warm, choice)[0] for choice in (0, 1)]
    assert texts[0][1] not in texts[1]
    params = evolve(warm, stops=((texts[0][1],),))
    one = Request(id=1, prompt=(1, 1), params=params, n_generations=2)
    state = MACHINE.initial(sizes, default_limits(sizes), CleanupMode.INCREMENTAL)
    jobs = scheduler.arrive(MACHINE, state, (), one)
    while not state.outputs:
        after = Turn(state)
        jobs, state = scheduler.turn(MACHINE, state, jobs, after.do), after.state

    stopped = scheduler._stopped(state, jobs[0], 1)
    drawn = len(used(state, slots_of_request(state, 1)[0]).tokens) - 2
    assert ((1, texts[1][:drawn]),) == stopped.kept


def test_what_may_end_waits_for_room_in_the_outputs() -> None:
    """Nobody draws as long as the outputs are full of what the caller has not taken."""
    sizes = evolve(TINY, pages=9, slots=1)
    state = MACHINE.initial(sizes, default_limits(sizes), CleanupMode.INCREMENTAL)
    asked = [Request(id=n, prompt=(n, n), params=Params(max_new=1)) for n in range(3)]
    state = with_outputs(state, asked[:-1])
    assert state.limits.outputs == len(state.outputs)
    after = Turn(state)
    left = scheduler.turn(MACHINE, state, scheduler.arrive(MACHINE, state, (), asked[-1]), after.do)
    assert MixedRound(((0, 1),)) == after.actions[-1]
    assert not scheduler.next_round(MACHINE, after.state, left)


def with_outputs(state: State, asked: list[Request]) -> State:
    """The state with the outputs of these requests, which are not taken."""
    for one in asked:
        state = MACHINE.step(state, Prefill((one,)))
    return state


def test_choices_share_with_each_other_and_not_with_a_copy() -> None:
    """A hit of the same text elsewhere would leave them with too few pages in the end."""
    sizes = Geometry(pages=6, page_size=3, slots=3, pages_per_seq=4)
    state = MACHINE.initial(sizes, default_limits(sizes), CleanupMode.INCREMENTAL)
    one = Request(id=0, prompt=(1,) * 6, params=Params(max_new=2))
    two = Request(id=1, prompt=(1,) * 7, params=Params(max_new=4), n_generations=2)
    jobs = scheduler.arrive(MACHINE, state, scheduler.arrive(MACHINE, state, (), one), two)
    for _ in range(20):
        after = Turn(state)
        jobs = scheduler.turn(MACHINE, state, jobs, after.do)
        state = after.do(TakeOutputs())
    assert () == jobs


@pytest.mark.parametrize("policy", [Capacity(lookahead=1), Capacity(reserve="request")])
def test_a_policy_that_takes_pages_early_is_refused(policy: Capacity) -> None:
    """The scheduler counts known tokens; it says so before anything is begun."""
    state = MACHINE.initial(TINY, default_limits(TINY), CleanupMode.INCREMENTAL, policy)
    with pytest.raises(InvalidInput, match="capacity"):
        scheduler.arrive(MACHINE, state, (), Request(id=1, prompt=(1,), params=Params(max_new=1)))


def deadlocked() -> tuple[State, scheduler.Jobs]:
    """The oldest holds all pages but one, which two newer requests share by a hit.

    Nobody can write a token: each needs one more page.
    """
    params, limits = Params(max_new=4), default_limits(TINY)
    prompts = ((2, 2, 2), (1, 1, 1), (1, 1, 1))
    asked = [Request(id=n, prompt=one, params=params) for n, one in enumerate(prompts)]
    state = MACHINE.initial(TINY, limits, CleanupMode.INCREMENTAL)
    for slot, one in enumerate(asked):
        state = MACHINE.step(state, Reserve(slot))
        state = MACHINE.step(state, Assign(slot, one.prompt, params, one.id))
    for action in (
        *(MixedRound(((0, 3),)), MixedRound(((1, 2),))),
        *(Publish(1, 2), Hit(2, 2)),
    ):
        state = MACHINE.step(state, action)
    assert (2, 1, 1) == tuple(sorted(state.counts, reverse=True))
    return state, tuple(scheduler.Job(one, None) for one in asked)


def test_the_oldest_takes_the_pages_of_two_that_share_them() -> None:
    """Either victim alone would gain nothing; the oldest goes on, and both begin again later."""
    state, jobs = deadlocked()
    for victim in (1, 2):
        assert state.counts.count(0) == MACHINE.effect(state, Preempt(victim)).counts.count(0) == 0

    after = Turn(state)
    left = scheduler.turn(MACHINE, state, jobs, after.do)
    assert [Preempt(2), Preempt(1), MixedRound(())] == after.actions
    assert [None, ((0, ()),), ((0, ()),)] == [job.kept for job in left]


def test_a_rule_that_asks_for_one_victim_deadlocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is preempted, nobody writes a token, and so it stays."""
    monkeypatch.setattr(scheduler, "victims", newest_alone)
    state, jobs = deadlocked()
    for _ in range(3):
        after = Turn(state)
        left = scheduler.turn(MACHINE, state, jobs, after.do)
        names = [job.request.id for job in jobs]
        assert scheduler.ranks(after.state, left, names) == scheduler.ranks(state, jobs, names)
        state, jobs = after.state, left


def forgets(state: State, job: scheduler.Job, name: int) -> scheduler.Job:
    """A wrong job of a preempted request: its last token is drawn again, with the same numbers."""
    right = RIGHT_STOPPED(state, job, name)
    kept = right.kept and tuple(
        (choice, (*drawn[:-1], 9)[: len(drawn)]) for choice, drawn in right.kept
    )
    return right._replace(kept=kept)


RIGHT_STOPPED = scheduler._stopped


def skips(
    machine: Machine, state: State, jobs: scheduler.Jobs, do: scheduler.Do
) -> tuple[State, scheduler.Jobs]:
    """A wrong order: what fits begins before what waits longer and does not fit. Row CP5."""
    for job in jobs:
        if job.kept is not None and scheduler._fits(machine, state, job):
            state, (begun,) = RIGHT_BEGIN(machine, state, (job,), do)
            jobs = tuple(begun if one is job else one for one in jobs)
    return state, jobs


def cut_short(machine: Machine, state: State, jobs: scheduler.Jobs) -> tuple[Action, ...]:
    """A wrong pass: while a preempted request waits, the last chunk of a round is left out. CP4."""
    actions = RIGHT_NEXT_ROUND(machine, state, jobs)
    if any(job.kept for job in jobs) and isinstance(actions[-1], MixedRound):
        chunks = actions[-1].chunks
        return (MixedRound(chunks[:-1]),) if state.queue or chunks[1:] else actions
    return actions


def goes_last(
    machine: Machine, state: State, jobs: scheduler.Jobs, do: scheduler.Do
) -> tuple[State, scheduler.Jobs]:
    """A wrong order: a preempted request goes on after all that have arrived since."""
    state, left = RIGHT_ROUND(machine, state, jobs, do)
    ran = {job.request.id for job in jobs if job.kept is None}
    preempted = [job for job in left if job.kept is not None and job.request.id in ran]
    return state, (*(job for job in left if job not in preempted), *preempted)


RIGHT_BEGIN, RIGHT_NEXT_ROUND = scheduler._begin, scheduler.next_round
RIGHT_ROUND = scheduler._round


@pytest.mark.parametrize(
    ("name", "wrong", "seeds"),
    [
        ("victims", oldest_first, range(260, 280)),
        ("_begin", skips, range(40)),
        ("next_round", cut_short, range(40)),
        ("_stopped", forgets, range(40, 60)),
        ("_round", goes_last, range(250)),
        ("_waits", lambda _machine, _state, _slot: True, range(20)),
    ],
)
def test_a_wrong_rule_is_found(
    name: str, wrong: object, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rule is needed: some case ends otherwise, or does not go on."""
    monkeypatch.setattr(scheduler, name, wrong)

    assert any(Served(case(seed)).wrong for seed in seeds)


def test_what_can_never_run_does_not_arrive() -> None:
    """It is refused with what it needs; a prompt longer than a prefill is read in parts."""
    state = MACHINE.initial(TINY, evolve(default_limits(TINY), prefill_tokens=1), CleanupMode.END)
    long = Request(id=1, prompt=(1,) * 4, params=Params(max_new=2))

    assert 1 == len(scheduler.arrive(MACHINE, state, (), long))
    with pytest.raises(Refused) as refused:
        scheduler.arrive(MACHINE, state, (), evolve(long, params=Params(max_new=4)))
    assert {Reason.NEVER_FITS} == {one.reason for one in refused.value.refusals}


def test_an_id_that_is_in_use_does_not_arrive() -> None:
    """Whether the other request waits, runs, or has an output that is not taken."""
    state = MACHINE.initial(TINY, default_limits(TINY), CleanupMode.INCREMENTAL)
    one = Request(id=1, prompt=(1,), params=Params(max_new=1))
    jobs = scheduler.arrive(MACHINE, state, (), one)
    with pytest.raises(Refused, match="CHOICE_TAKEN"):
        scheduler.arrive(MACHINE, state, jobs, one)

    ended = Turn(state)
    assert () == scheduler.turn(MACHINE, state, jobs, ended.do)
    with pytest.raises(Refused, match="CHOICE_TAKEN"):
        scheduler.arrive(MACHINE, ended.state, (), one)
    assert scheduler.arrive(MACHINE, ended.do(TakeOutputs()), (), one)


def test_the_oldest_has_a_token_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where newer requests fill the budget of a round, the newest one waits."""
    limits = evolve(default_limits(TINY), round_tokens=1)
    old, new = (Request(id=n, prompt=(n,) * 2, params=Params(max_new=4)) for n in (1, 2))
    state = MACHINE.initial(TINY, limits, CleanupMode.INCREMENTAL)
    for action in (Prefill((new,)), Reserve(1), Assign(1, old.prompt, old.params, old.id)):
        state = MACHINE.step(state, action)
    jobs = (scheduler.Job(old, None), scheduler.Job(new, None))

    after = Turn(state)
    scheduler.turn(MACHINE, state, jobs, after.do)
    assert [Purge(0), MixedRound(((1, 1),))] == after.actions
    monkeypatch.setattr(scheduler, "_ahead_of_oldest", lambda _state, _order, _batch: None)
    assert (MixedRound(()),) == scheduler.next_round(MACHINE, state, jobs)


@pytest.mark.parametrize(
    ("after", "late"),
    [
        ({1: 5, 2: 5, 3: 5}, ()),
        ({1: 4, 2: 5, 3: 5}, ()),
        ({1: 4, 2: 5, 3: 4}, (2,)),
        ({2: 7, 3: 4}, (2,)),
        ({1: 5, 2: 5}, (1, 2)),
    ],
)
def test_a_request_is_overtaken_by_newer_ones_alone(after: dict[int, int], late: Orders) -> None:
    """What counts is a round in which a newer request goes on, or ends, and it does not."""
    assert late == scheduler.overtaken({1: 5, 2: 5, 3: 5}, after)
