"""Events of the index: they lead from one index to the next, in an order that others can follow."""

from random import Random

import pytest
from index_draws import drawn
from spec_engine import step_events

from spec import events, ladder
from spec.events import Keys, fold, keys, unfit
from spec.vocabulary import CleanupMode, Geometry, default_limits
from spec.vocabulary.events import Event

SIZES = Geometry(pages=6, slots=3, page_size=2, pages_per_seq=4)
KEYS = "its key is a context and then the tokens of whole pages of 2"
ONE, TWO, OTHER = (0, 1, 2), (0, 1, 2, 3, 4), (7, 1, 2)


@pytest.mark.parametrize(
    ("held", "event", "missing"),
    [
        (Keys(), ("stored", ONE), ""),
        (Keys([ONE]), ("stored", ONE), ""),
        (Keys([ONE]), ("stored", TWO), ""),
        (Keys([OTHER]), ("stored", TWO), "the page before it is stored"),
        (Keys(), ("removed", ONE), "it is stored"),
        (Keys([ONE]), ("removed", ONE), ""),
        (Keys([ONE, TWO]), ("removed", ONE), "none that extends it is stored"),
        (Keys([ONE, ONE, TWO]), ("removed", ONE), ""),
        (Keys([ONE, OTHER]), ("removed", ONE), ""),
        (Keys(), ("stored", (0,)), KEYS),
        (Keys(), ("stored", (0, 1)), KEYS),
        (Keys(), ("stored", ()), KEYS),
    ],
)
def test_an_event_that_cannot_follow_says_what_is_missing(
    held: Keys, event: Event, missing: str
) -> None:
    """A key is stored behind the page before it, and removed once nothing extends it."""
    assert missing == unfit(held, event, 2)


def test_a_key_is_there_until_each_of_its_pages_is_removed() -> None:
    """The events of a key that two pages hold are counted."""
    held = Keys()
    for event in (("stored", ONE), ("stored", ONE), ("removed", ONE)):
        held = fold(held, event)
    assert {ONE} == held.keys()
    assert {} == fold(held, ("removed", ONE))


def test_folding_the_events_gives_the_index() -> None:
    """Along random histories each event may follow, and the keys are those of the index."""
    machine, told = ladder.whole(), 0
    for seed in range(20):
        rng, held = Random(seed), Keys()
        state = machine.initial(SIZES, default_limits(SIZES), CleanupMode.END)
        for number in range(200):
            action = drawn(state, rng, number)
            if machine.refusals(state, action):
                continue
            before, state = state, machine.effect(state, action)
            for event in step_events(before, state):
                assert "" == unfit(held, event, SIZES.page_size)
                held, told = events.fold(held, event), told + 1
            assert keys(state.indexed) == held.keys()
    assert told > 100, told
