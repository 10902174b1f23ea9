"""The values that histories are drawn with: how often each kind comes up."""

from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
from spec_engine import SpecEngine, small

from conformance.fuzzing import campaign, settings
from conformance.fuzzing.state_machine import Campaign, Session
from conformance.history import Step
from conformance.rungs.shared_generators import LARGE, LARGEST, NAMES
from spec.machines import actions as act
from spec.state import State
from spec.table import Batch
from spec.vocabulary import CleanupMode, Params, Reason

TURNS = 12
STEPS = 6_000
LEAST = {
    "a name used again after it was freed": 5,
    "a name used again while it is taken": 40,
    "the largest id": 60,
    "the largest choice": 15,
    "a large seed": 120,
    "the largest limit": 45,
    "a small temperature": 250,
    "a usual temperature": 250,
    "a stop as long as the limit": 35,
    "a stop that is too long": 10,
    "as many stops as the limit": 90,
    "too many stops": 30,
    "two stops that share a beginning": 45,
    "a stop that ends at a page boundary": 100,
    "position -1 alone": 2,
    "nothing but padding": 25,
    "a position past every row alone": 2,
    "a batch of exactly the width": 130,
    "a batch one wider": 45,
    "a prefill of exactly the most prompts": 130,
    "a prefill of one prompt more": 6,
    "pack an empty queue": 6,
    "queue in a full queue": 4,
    "a round with a full queue": 2,
    "take no outputs": 8,
    "outputs full": 140,
    "a clone into the last free slot": 35,
    "a clone without a free slot": 20,
    "the smallest slot": 15,
}
"""Each kind of value, and how often it comes up at least in that many steps."""


def kinds(state: State, action: Step, names: set[tuple[int, int]]) -> Iterator[str]:
    """The kinds of values of an action. names: the names that sequences have had."""
    for name, prompt, params in _requests(action):
        if name in names:
            is_taken = name in {(one.request, one.choice) for one in state.details if one}
            there = "while it is taken" if is_taken else "after it was freed"
            yield f"a name used again {there}"
        if name[0] == LARGEST:
            yield "the largest id"
        yield from _params(state, len(prompt), params)
    match action:
        case act.Assign(choice=choice) | act.Clone(choice=choice) if choice == LARGEST:
            yield "the largest choice"
        case act.Allocate(batch) | act.Write(batch):
            yield from _batch(state, batch)
        case act.Prefill(requests):
            more = len(requests) - state.limits.prefill_seqs
            yield from ["a prefill of exactly the most prompts"] * (more == 0)
            yield from ["a prefill of one prompt more"] * (more == 1)
        case act.Clone():
            free = state.sequences.count(None)
            yield from ["a clone into the last free slot"] * (free == 1)
            yield from ["a clone without a free slot"] * (free == 0)
        case _:
            yield from _buffers(state, action)
    if getattr(action, "slot", None) == -(2**31):
        yield "the smallest slot"


def _batch(state: State, batch: Batch) -> Iterator[str]:
    width, positions = state.limits.prefill_tokens, {entry and entry[1] for entry in batch}
    yield from ["position -1 alone"] * (positions == {-1})
    yield from ["nothing but padding"] * (positions == {None})
    if len(batch) == 1 and batch[0] and batch[0][1] >= state.geometry.max_len:
        yield "a position past every row alone"
    yield from ["a batch of exactly the width"] * (len(batch) == width)
    yield from ["a batch one wider"] * (len(batch) > width)


def _buffers(state: State, action: Step) -> Iterator[str]:
    full = len(state.queue) == state.limits.queue
    match action:
        case act.Pack() if not state.queue:
            yield "pack an empty queue"
        case act.Enqueue() if full:
            yield "queue in a full queue"
        case act.Round() | act.Generate() if full:
            yield "a round with a full queue"
        case act.TakeOutputs() if not state.outputs:
            yield "take no outputs"


def _requests(action: Step) -> list[tuple[tuple[int, int], tuple[int, ...], Params]]:
    match action:
        case act.Assign(prompt=prompt, params=params):
            return [((action.request, action.choice), prompt, params)]
        case act.Prefill(requests):
            return [((one.id, 0), one.prompt, one.params) for one in requests]
        case act.Submit(one):
            return [((one.id, 0), one.prompt, one.params)]
    return []


def _params(state: State, prompt: int, params: Params) -> Iterator[str]:
    limits, stops = state.limits, params.stops
    yield from ["a large seed"] * (params.seed in LARGE)
    yield from ["the largest limit"] * (params.max_new == LARGEST)
    if 0 < params.temperature < 0.1:
        yield "a small temperature"
    if params.temperature in {0.5, 1.5}:
        yield "a usual temperature"
    longest = max(map(len, stops), default=0)
    if longest == limits.stop_len > 1:
        yield "a stop as long as the limit"
    if longest > limits.stop_len:
        yield "a stop that is too long"
    if len(stops) == limits.stops > 1:
        yield "as many stops as the limit"
    if len(stops) > limits.stops:
        yield "too many stops"
    if len({*stops}) > len({stop[0] for stop in stops}):
        yield "two stops that share a beginning"
    size = state.geometry.page_size
    if any((prompt + len(stop)) % size == 0 for stop in stops) and size > 1:
        yield "a stop that ends at a page boundary"


@pytest.fixture(scope="module")
def drawn() -> tuple[Counter[str], int]:
    """How often each kind came up in the turns at the usual settings, and the number of steps."""
    counted, steps = Counter[str](), 0
    taken, names = Session.take, set[tuple[int, int]]()

    def take(session: Session, step: Step) -> None:
        before = session.state
        if not session.history:
            names.clear()
        counted.update(kinds(before, step, names))
        if isinstance(step, act.Prefill | act.Round | act.Admit):
            full = Reason.OUTPUTS_FULL in session.lockstep.reasons(step)
            counted.update(["outputs full"] * full)
        taken(session, step)
        names.update((one.request, one.choice) for one in session.state.details if one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "take", take)
        targets = [
            Campaign(make=partial(settings.make, SpecEngine, *setting))
            for setting in settings.usual(small())
        ]
        for number in range(TURNS):
            report = campaign.Run()
            level = campaign.TURNS[number % len(campaign.TURNS)]
            campaign._take_turn(targets[number % len(targets)], level, number, report)
            assert None is report.finding
            steps += report.steps
    return counted, steps


def test_there_are_as_many_steps_as_the_table_says(drawn: tuple[Counter[str], int]) -> None:
    """The table is for so many steps, and counts every kind."""
    counted, steps = drawn

    assert STEPS < steps < 1.5 * STEPS
    assert LEAST.keys() == counted.keys()


@pytest.mark.parametrize("kind", LEAST)
def test_each_kind_of_value_comes_up(kind: str, drawn: tuple[Counter[str], int]) -> None:
    """Often enough that a run of a minute, of some 40,000 steps, has many of them."""
    counted, _ = drawn

    assert LEAST[kind] <= counted[kind]


def test_no_new_request_has_a_name_that_is_used_again() -> None:
    """The ids that a session gives are apart from those that several requests have on purpose."""
    made = partial(settings.make, SpecEngine, small(), CleanupMode.NONE)
    session = Session(Campaign(make=made), "lifecycle")

    assert {*NAMES, *LARGE}.isdisjoint(session.next_id() for _ in range(1000))
