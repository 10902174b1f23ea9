"""Events that an engine emits: they must lead to its index, whoever asks for them and when."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest
from deep import deep_after
from drawn_histories import Wrapped, engine_of
from index_draws import drawn

from conformance.engines.ours import make
from conformance.history import Step
from conformance.lockstep.called import called
from conformance.lockstep.lockstep import Lockstep, Violation
from conformance.lockstep.not_checked import clauses_not_judged
from conformance.lockstep.run import Finding, replay
from conformance.protocol import Engine
from spec.machines.actions import (
    Allocate,
    Drop,
    Evict,
    Free,
    Prefill,
    Publish,
    Release,
    Reserve,
    Reset,
)
from spec.vocabulary import CleanupMode, Geometry, Params, Request, default_limits
from spec.vocabulary.events import Event

SIZES = Geometry(pages=6, slots=3, page_size=2, pages_per_seq=4)
STEPS = 900

Change = Callable[[Sequence[Event]], Sequence[Event]]


def run(change: Change, *, every: int = 1) -> Violation | None:
    """The violation of the specification with changed events, asked for after every few steps."""
    engine: Any = Wrapped(engine_of(SIZES), events=lambda held: change(held.events()))
    try:
        follow(called(lambda: engine), every=every)
    except Violation as found:
        return found
    return None


def follow(engine: Engine, *, every: int) -> None:
    """A history in which all that changes the index is done. every: as for `run`."""
    rng, done, lockstep = Random(4), set[type](), Lockstep(engine)
    for number in range(STEPS):
        action = drawn(lockstep.state, rng, number)
        if not isinstance(action, Release) and not lockstep.do(action):
            done.add(type(action))
        if number % every == 0:
            lockstep.compare_events(action)
    assert {Publish, Evict, Drop, Reset} <= done


@pytest.mark.parametrize("every", [1, 3, 50])
def test_right_events_hold_however_seldom_they_are_asked_for(every: int) -> None:
    """Those of several steps are told at once."""
    assert run(lambda told: told, every=every) is None


WRONG: dict[str, tuple[Change, str]] = {
    "removals are not told": (
        lambda told: [event for event in told if event[0] == "stored"],
        "by its events, is True, should be False",
    ),
    "publications are not told": (lambda _: [], "by its events, is False, should be True"),
    "a page that extends others is told first": (
        lambda told: sorted(told, key=lambda event: -len(event[1])),
        "told only if the page before it is stored",
    ),
    "a page is removed before what extends it": (
        lambda told: sorted(told, key=lambda event: len(event[1])),
        "told only if none that extends it is stored",
    ),
    "the context is left out": (
        lambda told: [(word, (0, *key[1:])) for word, key in told],
        "by its events, is",
    ),
    "each removal is told twice": (
        lambda told: [event for one in told for event in [one] * (1 + (one[0] == "removed"))],
        "told only if it is stored",
    ),
    "each publication is told twice": (
        lambda told: [event for one in told for event in [one] * (1 + (one[0] == "stored"))],
        "by its events, is True, should be False",
    ),
    "a key is that of the page alone": (
        lambda told: [(word, (key[0], *key[-2:])) for word, key in told],
        "by its events, is",
    ),
    "a key stops in its page": (
        lambda told: [(word, key[:-1]) for word, key in told],
        "told only if its key is a context and then the tokens of whole pages of 2",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_events_violate_evt(name: str) -> None:
    """What a router would get wrong is found, and told by the event or the key."""
    change, told = WRONG[name]
    found = run(change)

    assert found is not None
    assert "EVT" == found.clause
    assert told in found.message


def test_events_of_several_allocations_are_taken_together_in_each_replay() -> None:
    """So an error in what is told at once is found by the history alone."""

    def first_alone(told: Sequence[Event]) -> Sequence[Event]:
        gone = [key for word, key in told if word == "removed"]
        kept = [key for key in gone if not any(key[: len(one)] == one != key for one in gone)]
        return [(word, key) for word, key in told if word == "stored" or key in kept]

    request = Request(id=1, prompt=(1,) * 5, params=Params(max_new=2))
    begin = (Prefill((request,)), Publish(0, 4), Free(0), Reserve(0), Reserve(1))
    fills = Allocate(tuple((0, position) for position in range(8)))
    evicts = (Allocate(((1, 0), (1, 1))), Allocate(((1, 2), (1, 3))))
    history = (*begin, fills, *evicts, Free(1))

    def found(steps: Sequence[Step]) -> Finding | None:
        changed = partial(Wrapped, events=lambda held: first_alone(held.events()))
        return replay(lambda: changed(engine_of(SIZES)), steps)

    finding = found(history)
    assert finding is not None
    assert "EVT" == finding.clause
    assert history == finding.history
    assert found((*begin, fills, evicts[0], Free(2), *evicts[1:], Free(1))) is None


@pytest.mark.deep
@pytest.mark.parametrize("every", deep_after(1, [7, 1]))
def test_the_events_of_our_engine_lead_to_its_index(every: int) -> None:
    """Also where they are asked for seldom, and after resets."""
    follow(called(lambda: make(SIZES, default_limits(SIZES), CleanupMode.END)), every=every)


def test_an_engine_without_events_is_not_judged_by_evt() -> None:
    """The report says so, and why."""
    assert "EVT" not in clauses_not_judged(engine_of(SIZES))
    bare: Any = Wrapped(engine_of(SIZES))
    assert "the adapter has no events" == clauses_not_judged(bare)["EVT"]
