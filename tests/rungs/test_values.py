"""The values that histories are drawn with: how often each kind comes up."""

import random
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from functools import partial
from itertools import product
from typing import Any, Final, cast

import attrs
import pytest
from spec_engine import MACHINE, SpecEngine, small

from conformance.fuzzing import campaign, settings
from conformance.fuzzing.state_machine import LEVELS, Campaign, Session
from conformance.history import Step
from conformance.rungs.shared_generators import BEFORE_ZERO, LARGE, LARGEST, NAMES, ROUND, WIDTH
from spec import model
from spec.machines import actions as act
from spec.machines import prefix, scheduling
from spec.state import State
from spec.table import Batch
from spec.vocabulary import CleanupMode, Params, Reason, Tokens

make = partial(SpecEngine, actions=MACHINE.calls - prefix.RUNG.rules.keys())
"""An engine without an index: the rung prefix has values of its own."""
EXAMPLES = 22
"""The histories at each of three settings and levels: some 9,000 steps."""
LEAST = {
    "a name used again after it was freed": 10,
    "a name used again while it is taken": 37,
    "the largest id": 35,
    "the largest choice": 12,
    "a large seed": 98,
    "the largest limit": 18,
    "a small temperature": 226,
    "a usual temperature": 208,
    "a stop as long as the limit": 27,
    "a stop that is too long": 12,
    "one too long, with others before it": 6,
    "one too long, with others after it": 10,
    "as many stops as the limit": 66,
    "too many stops": 11,
    "two stops that share a beginning": 34,
    "a stop that ends at a page boundary": 64,
    "a stop that begins anew inside a begun match": 10,
    "position -1 alone": 4,
    "nothing but padding": 6,
    "a position past every row alone": 4,
    "a name that a slot alone keeps": 4,
    "a name whose output was just taken": 4,
    "two requests of several choices that fit": 12,
    "a batch of exactly the width": 111,
    "a batch one wider": 54,
    "a prefill of exactly the most prompts": 34,
    "a prefill of one prompt more": 4,
    "pack an empty queue": 3,
    "queue in a full queue": 2,
    "a round with a full queue": 13,
    "a round of exactly the width, of several tokens of a slot": 2,
    "a round that takes not all of the queue": 30,
    "a round that begins more pages than it may have sequences": 2,
    "take no outputs": 16,
    "outputs full": 77,
    "a clone into the last free slot": 38,
    "a choice that collides": 4,
    "the token 0 as a stop that is drawn": 3,
    "the prompt of another sequence": 40,
    "the largest token": 10,
    "a clone without a free slot": 13,
    "the smallest slot": 22,
}
"""Each kind of value, and how often it comes up at least in these histories."""
FROM_ONE: Final = {"max_new", "n_generations"}
"""Numbers that are at least 1."""
OFTEN: Final = 100
"""A field that comes up less often in these histories has no bound."""


def kinds(state: State, action: Step, names: set[tuple[int, int]]) -> Iterator[str]:
    """The kinds of values of an action. names: the names that sequences have had."""
    for name, prompt, params in _requests(action):
        if name in names:
            is_taken = name in {(one.request, one.choice) for one in state.details if one}
            there = "while it is taken" if is_taken else "after it was freed"
            yield f"a name used again {there}"
        yield from ["a name that a slot alone keeps"] * (name in _kept(state))
        if name[0] == LARGEST:
            yield "the largest id"
        yield from _params(state, prompt, params)
    match action:
        case act.Assign(choice=choice) | act.Clone(choice=choice) if choice == LARGEST:
            yield "the largest choice"
        case act.Allocate(batch) | act.Write(batch):
            yield from _batch(state, batch)
        case act.Prefill(requests):
            more = len(requests) - state.limits.prefill_seqs
            yield from ["a prefill of exactly the most prompts"] * (more == 0)
            yield from ["a prefill of one prompt more"] * (more == 1)
            several = sum(one.n_generations > 1 for one in requests) > 1
            done = several and not MACHINE.refusals(state, action)
            yield from ["two requests of several choices that fit"] * done
        case act.Clone():
            yield from ["a choice that collides"] * _collides(state, action)
            free = state.sequences.count(None)
            yield from ["a clone into the last free slot"] * (free == 1)
            yield from ["a clone without a free slot"] * (free == 0)
        case _:
            yield from _buffers(state, action)
    if LARGEST in _tokens(action):
        yield "the largest token"
    if getattr(action, "slot", None) == -(2**31):
        yield "the smallest slot"


def _kept(state: State) -> set[tuple[int, int]]:
    """The names of sequences that have finished and whose outputs were taken."""
    held = {(one.request, one.choice) for one in state.details if one and one.finished}
    return held - {(one.request, one.choice) for one in state.outputs}


def _given(state: State, action: Step) -> tuple[int, int] | None:
    """The name that a prompt or a clone is given."""
    match action:
        case act.Assign():
            return action.request, action.choice
        case act.Clone(parent=parent, choice=choice) if detail := state.details[parent]:
            return detail.request, choice
    return None


def _collides(state: State, action: act.Clone) -> bool:
    """Whether the child has the name of another sequence, if both numbers are packed into one."""
    details = state.details
    parent = details[action.parent] if 0 <= action.parent < len(details) else None
    return parent is not None and any(
        (one.request - parent.request) * base + one.choice == action.choice
        for one, base in product((*details, *state.outputs), ROUND)
        if one is not None and one.request != parent.request
    )


def _batch(state: State, batch: Batch) -> Iterator[str]:
    width, positions = state.limits.prefill_tokens, {entry and entry[1] for entry in batch}
    yield from ["position -1 alone"] * (positions == {-1})
    yield from ["nothing but padding"] * (positions == {None})
    if len(batch) == 1 and batch[0] and batch[0][1] >= state.geometry.max_len:
        yield "a position past every row alone"
    yield from ["a batch of exactly the width"] * (len(batch) == width)
    yield from ["a batch one wider"] * (len(batch) > width)


def _rounds(state: State) -> Iterator[str]:
    """Of a round that is done."""
    most, queued = state.limits.round_tokens, len(state.queue)
    several = len({one.slot for one in state.queue}) < queued
    yield from ["a round of exactly the width, of several tokens of a slot"] * (
        queued == most and several
    )
    yield from ["a round that takes not all of the queue"] * (queued > most)
    packed = scheduling.packed(state)
    begun = sum(one.position % state.geometry.page_size == 0 for one in packed)
    sequences = min(most, state.geometry.slots)
    yield from ["a round that begins more pages than it may have sequences"] * (begun > sequences)


def _buffers(state: State, action: Step) -> Iterator[str]:
    full = len(state.queue) == state.limits.queue
    match action:
        case act.Round() if not MACHINE.refusals(state, action):
            yield from _rounds(state)
        case act.Pack() if not state.queue:
            yield "pack an empty queue"
        case act.Enqueue() if full:
            yield "queue in a full queue"
        case act.Round() | act.Generate() if full:
            yield "a round with a full queue"
        case act.TakeOutputs() if not state.outputs:
            yield "take no outputs"
    if isinstance(action, act.Round | act.Generate) and any(_begin_anew(state)):
        yield "a stop that begins anew inside a begun match"


def _begin_anew(state: State) -> Iterator[bool]:
    """Of each stop sequence that needs one more token: whether all its others wait once more."""
    for slot, detail in enumerate(state.details):
        waiting = tuple(one.token for one in state.queue if one.slot == slot)
        for stop in detail.params.stops if detail else ():
            yield len(stop) > 1 and waiting[-len(stop) :] == (stop[0], *stop[:-1])


def _requests(action: Step) -> list[tuple[tuple[int, int], tuple[int, ...], Params]]:
    match action:
        case act.Assign(prompt=prompt, params=params):
            return [((action.request, action.choice), prompt, params)]
        case act.Prefill(requests):
            return [((one.id, 0), one.prompt, one.params) for one in requests]
        case act.Submit(one):
            return [((one.id, 0), one.prompt, one.params)]
    return []


def _tokens(action: Step) -> Iterator[int]:
    """The tokens that an action gives."""
    match action:
        case act.Enqueue(token=token):
            yield token
        case act.Append(tokens=tokens) | act.Propose(tokens=tokens):
            yield from tokens
    for _, prompt, _ in _requests(action):
        yield from prompt


def _params(state: State, prompt: Tokens, params: Params) -> Iterator[str]:
    limits, stops = state.limits, params.stops
    is_another = prompt in {output.prompt for output in state.outputs}
    yield from ["the prompt of another sequence"] * is_another
    if prompt == (BEFORE_ZERO,) and stops == ((0,),):
        yield "the token 0 as a stop that is drawn"
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
        long = next(stop for stop in stops if len(stop) > limits.stop_len)
        yield from ["one too long, with others before it"] * (min(stops) < long)
        yield from ["one too long, with others after it"] * (max(stops) > long)
    if len(stops) == limits.stops > 1:
        yield "as many stops as the limit"
    if len(stops) > limits.stops:
        yield "too many stops"
    if len({*stops}) > len({stop[0] for stop in stops}):
        yield "two stops that share a beginning"
    size = state.geometry.page_size
    if any((len(prompt) + len(stop)) % size == 0 for stop in stops) and size > 1:
        yield "a stop that ends at a page boundary"


def numbers(value: object, path: str) -> Iterator[tuple[str, float]]:
    """The numbers in an action, each with the path of fields to it."""
    match value:
        case bool() | Enum():
            return
        case int() | float():
            yield path, value
        case tuple():
            for one in value:
                yield from numbers(one, path)
        case _ if attrs.has(type(value)):
            for name, inner in attrs.asdict(cast(Any, value), recurse=False).items():
                yield from numbers(inner, f"{path}.{name}")


@pytest.fixture(scope="module")
def met() -> dict[str, list[float]]:
    """The numbers at each path, of actions that are done; `drawn` fills it."""
    return {}


@pytest.fixture(scope="module")
def drawn(met: dict[str, list[float]]) -> Counter[str]:
    """How often each kind came up in EXAMPLES histories at each usual setting and each level."""
    counted, rng, taken = Counter[str](), random.Random(7), Session.take

    def take(session: Session, step: Step) -> None:
        state, names = session.state, seen.setdefault(id(session), set())
        counted.update(kinds(state, step, names))
        if session.is_done(step):
            counted["a name whose output was just taken"] += _given(state, step) in just
            for path, number in numbers(step, type(step).__name__):
                met.setdefault(path, []).append(number)
        if isinstance(step, act.Prefill | act.Round | act.Admit):
            counted["outputs full"] += Reason.OUTPUTS_FULL in session.lockstep.reasons(step)
        if not isinstance(step, act.Reserve):
            just.clear()
        if isinstance(step, act.TakeOutputs):
            just.update((one.request, one.choice) for one in state.outputs)
        taken(session, step)
        names.update((one.request, one.choice) for one in session.state.details if one)

    seen, just = dict[int, set[tuple[int, int]]](), set[tuple[int, int]]()
    ways = list(product(settings.usual(small()), LEVELS, range(EXAMPLES)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "take", take)
        for setting, level, _ in ways:
            seen.clear()
            just.clear()
            session = Session(Campaign(make=partial(settings.make, make, *setting)), level)
            rules = tuple(session.rules.values())
            for _ in range(campaign.STEPS):
                session.take(rng.choice(rules)(session, rng.getrandbits(WIDTH)))
    return counted


@pytest.mark.deep
def test_the_table_names_every_kind(drawn: Counter[str]) -> None:
    """Each kind that is counted has a bound."""
    assert LEAST.keys() == drawn.keys()


@pytest.mark.deep
@pytest.mark.parametrize("kind", LEAST)
def test_each_kind_of_value_comes_up(kind: str, drawn: Counter[str]) -> None:
    """Often enough that a run of a minute, of some 40,000 steps, has many of them."""
    assert LEAST[kind] <= drawn[kind]


@pytest.mark.deep
def test_each_number_of_an_action_is_the_smallest(
    drawn: Counter[str], met: dict[str, list[float]]
) -> None:
    """That is 0 for most, in an action that is done: 0 is where "none" and "some" are confused."""
    assert drawn
    least = {path: min(found) for path, found in met.items() if len(found) >= OFTEN}

    assert {path: int(path.split(".")[-1] in FROM_ONE) for path in least} == least
    assert len(least) > len(met) / 2


def test_no_new_request_has_a_name_that_is_used_again() -> None:
    """The ids that a session gives are apart from those that several requests have on purpose."""
    made = partial(settings.make, SpecEngine, small(), CleanupMode.NONE)
    session = Session(Campaign(make=made), "lifecycle")

    assert {*NAMES, *LARGE}.isdisjoint(session.next_id() for _ in range(1000))


def test_a_greedy_draw_after_the_token_before_zero_is_zero() -> None:
    """So that a stop sequence of zeros ends a text."""
    assert 0 == model.next_token((BEFORE_ZERO,), 0)
