"""Steps in flight on the engine: dispatched, retired and delivered as the specification says."""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Final

import numpy as np
import pytest
from attrs import evolve, frozen
from deep import deep_after
from engine_tools import (
    KEPT,
    SETUPS,
    WINDOWED,
    assert_holds,
    assert_identical,
    do,
    expected_logprobs,
    params,
    request,
)

from conformance.engines.snapshots import Views, layout, snapshots
from conformance.refinement import contents
from impl.engine import Engine
from impl.host import Host
from impl.setup import Setup
from spec import index, ladder, view
from spec.fields import VIEWED
from spec.machines import actions as act
from spec.machines import naive
from spec.machines.actions import Action
from spec.state import State
from spec.vocabulary import CleanupMode, Params, Reason, Refused

MACHINE: Final = ladder.whole()
AGAIN: Final = 8
"""After so many actions the state of the specification is put into the engine."""
FIELDS: Final = tuple(field.name for field in VIEWED if field.name != "cells")


class Pair:
    """An engine and the state of the specification, which take the same actions."""

    def __init__(self, setup: Setup) -> None:
        self.engine = Engine(setup)
        self.host = Host(self.engine)
        self.state = MACHINE.initial(setup.geometry, setup.limits, setup.cleanup)
        self._views = Views(layout(setup, cells=False), setup.geometry)

    def take(self, *history: Action) -> "Pair":
        """Take actions, each of which must be done, and compare after each."""
        for action in history:
            self._do(action)
            self.state = MACHINE.step(self.state, action)
            self.compare()
        return self

    def refuses(self, action: Action) -> frozenset[Reason]:
        """Take an action that is refused: the engine's reasons. Nothing changes."""
        before, reasons = self.engine.extract(), self.reasons(action)
        with pytest.raises(Refused) as caught:
            self._do(action)
        assert caught.value.reasons <= reasons, action
        assert_identical(before, self.engine.extract())
        return caught.value.reasons

    def reasons(self, action: Action) -> frozenset[Reason]:
        """The reasons to refuse an action."""
        return frozenset(one.reason for one in MACHINE.refusals(self.state, action))

    def compare(self) -> None:
        """Assert that all that can be seen of the engine is as the specification says."""
        assert_holds(self.engine, self.state)
        right = view.of(MACHINE, self.state)
        seen = self._views.read(np.asarray(snapshots(self.engine.packed, cells=False)))
        for name in FIELDS:
            shown = getattr(seen, name)
            assert shown is None or shown == getattr(right, name), name
        assert (self.state.waiting, self.state.admitted) == (
            self.host.state.waiting,
            self.host.state.admitted,
        )

    def _do(self, action: Action) -> None:
        match action:
            case act.Submit(one):
                self.host.submit(one)
            case act.Admit():
                self.host.admit()
            case act.Reset(mode):
                self.host.reset(mode)
            case act.TakeOutputs():
                self.host.take_outputs()
            case _:
                do(self.engine, action)
        self.host.settle()


@frozen
class Draw:
    """Draws of actions in one state."""

    rng: Random
    state: State
    number: int

    def action(self) -> Action:
        """An action of any kind; steps in flight are the most frequent ones."""
        kinds = {
            self.step: 50,
            self.begin: 18,
            self.end: 2,
            self.tokens: 14,
            self.prefix: 9,
            self.requests: 5,
            self.whole: 2,
        }
        (kind,) = self.rng.choices([*kinds], weights=[*kinds.values()])
        return self.rng.choice(tuple(kind()))

    def legal(self, pair: "Pair", times: int) -> Iterator[Action]:
        """Of so many actions, those that are done."""
        drawn = (self.action() for _ in range(times))
        return (action for action in drawn if not pair.reasons(action))

    def step(self) -> Iterator[Action]:
        """Dispatches, retirements and deliveries."""
        yield from (self.dispatch(), self.dispatch(), act.Retire(), act.Retire(), act.Deliver())

    def dispatch(self) -> act.Dispatch:
        """A step of some slots: often the next token, or all that are known."""
        used = [slot for slot, held in enumerate(self.state.sequences) if held]
        chunks = []
        for slot in self.rng.sample(used, self.rng.randint(0, len(used))):
            held = self.state.sequences[slot]
            left = len(held.tokens) - held.allocated if held else 0
            chunks.append((slot, self.rng.choice((1, 1, max(1, left), self.rng.randint(0, 3)))))
        return act.Dispatch(tuple(chunks or [(self.slot(), 1)]))

    def slot(self) -> int:
        """A slot: often one in use, seldom one out of range."""
        slots = range(self.state.geometry.slots)
        found: int = self.rng.choice((*slots, *used(self.state) * 6, -1))
        return found

    def length(self) -> int:
        """A number of cells."""
        return self.rng.randint(0, self.state.geometry.max_len)

    def text(self, most: int) -> tuple[int, ...]:
        """Tokens of a small vocabulary, so that prefixes are common."""
        return tuple(self.rng.randint(0, 1) for _ in range(self.rng.randint(1, most)))

    def begin(self) -> Iterator[Action]:
        """A sequence begins."""
        rng, slots = self.rng, self.state.geometry.slots
        free = rng.choice((None, rng.randrange(slots)))
        empty = [slot for slot in used(self.state) if not self.state.details[slot]]
        into, text = rng.choice((*empty * 9, self.slot())), self.text(4)
        begin = act.Assign(into, text, self.stopped(text), self.number)
        yield from (act.Reserve(free, rng.choice((0, 0, 1))), begin, begin, begin)
        yield act.Clone(self.slot(), free, rng.randint(1, 3))

    def stopped(self, text: tuple[int, ...]) -> Params:
        """Parameters: often with a stop, at a token that is drawn before the limit."""
        given = params(self.rng.randint(2, 6), temperature=self.rng.choice((0.0, 1.0)))
        tokens, _ = naive.generate(text, given, window=self.state.geometry.window)
        return evolve(given, stops=self.rng.choice(((), ((self.rng.choice(tokens),),))))

    def end(self) -> Iterator[Action]:
        """Sequences end before they are finished."""
        live = [one.request for one in self.state.details if one]
        yield from (act.Free(self.slot()), act.Preempt(self.rng.choice([*live, 0])))

    def tokens(self) -> Iterator[Action]:
        """Cells and tokens of one slot, without a step in flight."""
        slot = self.slot()
        sequence = self.state.sequences[slot] if slot >= 0 else None
        first = sequence.allocated if sequence else 0
        written = sequence.written if sequence else 0
        end = first + self.rng.randint(1, 2)
        yield act.Allocate(tuple((slot, at) for at in range(first, end)))
        yield act.Write(tuple((slot, at) for at in range(written, max(first, written + 1))))
        yield from (act.Enqueue(slot, 1), act.Purge(slot), act.Replay(slot, self.text(2)))
        yield from (act.Propose(slot, self.text(2)), act.Commit(slot, self.length()))
        yield from (act.Truncate(slot, self.length()), act.Release(slot, self.length()))

    def prefix(self) -> Iterator[Action]:
        """The index of prefixes."""
        size, slot = self.state.geometry.page_size, self.slot()
        begun = size * self.rng.randint(1, 2)
        yield from (act.Publish(slot, self.length()), act.Publish(slot, self.length()))
        yield from (act.Hit(slot, begun), act.Share(self.slot(), slot, begun))
        yield act.Merge(slot, self.rng.randint(0, 1))
        idle = index.idle(self.state.indexed, self.state.counts)
        for page in idle[:2]:
            entry = self.state.indexed[page]
            assert entry is not None
            yield act.Evict(entry.chain, entry.context)

    def requests(self) -> Iterator[Action]:
        """Requests and rounds."""
        one = request(self.number, self.text(3), self.rng.randint(1, 4), self.rng.randint(1, 2))
        yield from (act.Prefill((one,)), act.Submit(one), act.Admit(), act.Admit())
        yield from (act.Round(), act.Generate(), act.MixedRound(self.dispatch().chunks))

    def whole(self) -> Iterator[Action]:
        """What concerns every slot, and is never refused."""
        yield from (act.TakeOutputs(),) * 3
        yield from (act.Pack(), act.FreeFinished(), act.Drop(), act.Reset())


def used(state: State) -> tuple[int, ...]:
    """The slots in use."""
    return tuple(slot for slot, held in enumerate(state.sequences) if held)


def walk(setup: Setup, seed: int, steps: int) -> Counter[tuple[str, str]]:
    """Take random actions: how often each kind was done, or refused for each reason.

    Now and then the engine goes on from the state that the specification is in.
    """
    rng, pair, found = Random(seed), Pair(setup), Counter[tuple[str, str]]()
    for number in range(1, steps + 1):
        drawn = Draw(rng, pair.state, number)
        action = next(drawn.legal(pair, 3), drawn.action())
        name = type(action).__name__
        if pair.reasons(action):
            found.update((name, reason.name) for reason in pair.refuses(action))
        else:
            pair.take(action)
            found[name, "done"] += 1
        if not number % AGAIN:
            pair.engine.inject(contents.encode(setup, pair.state))
            pair.compare()
    return found


@pytest.mark.parametrize(
    ("setup", "seed", "steps"),
    deep_after(
        1,
        [
            (SETUPS[CleanupMode.INCREMENTAL], 1, 120),
            (SETUPS[CleanupMode.END], 2, 80),
            (WINDOWED, 3, 120),
        ],
    ),
)
def test_any_history_is_that_of_the_specification(setup: Setup, seed: int, steps: int) -> None:
    """After each action all is equal, and what is refused is refused for one of the reasons."""
    found = walk(setup, seed, steps)

    assert min(found[name, "done"] for name in ("Dispatch", "Retire", "Deliver")) > 3


INCREMENTAL: Final = SETUPS[CleanupMode.INCREMENTAL]
TEXT: Final = (1, 2, 3)


def begun(slot: int, number: int, max_new: int = 4, *stops: tuple[int, ...]) -> tuple[Action, ...]:
    """A sequence with a prompt of three tokens, none of which has a cell."""
    return (act.Reserve(slot), act.Assign(slot, TEXT, params(max_new, *stops), number))


def step(slot: int, count: int) -> act.Dispatch:
    """A step of one slot."""
    return act.Dispatch(((slot, count),))


OPEN: Final = (*begun(0, 1), step(0, 3))
"""A step that draws the first token is dispatched."""
HALF: Final = (*begun(0, 1), step(0, 2), act.Retire())
"""A step that draws nothing has retired."""


def test_steps_behind_each_other_draw_what_naive_decoding_draws() -> None:
    """Each token is read by a step that was dispatched before it was drawn."""
    pair, given = Pair(KEPT), params(4, temperature=1.0, seed=5)
    pair.take(act.Reserve(0), act.Assign(0, TEXT, given, 1), step(0, 3), step(0, 1))
    pair.take(act.Retire(), act.Retire(), step(0, 1), act.Deliver(), act.Deliver())
    pair.take(step(0, 1), act.Retire(), act.Deliver(), act.Retire(), act.Deliver())

    (output,) = pair.engine.take_outputs()
    assert naive.generate(TEXT, given)[0] == output.tokens
    assert expected_logprobs(TEXT, output.tokens) == output.logprobs


def test_a_stop_that_a_delivery_tells_ends_two_later_steps() -> None:
    """They do nothing, and hold the slot and the pages until they are delivered."""
    (first,), _ = naive.generate(TEXT, params(1))
    pair = Pair(INCREMENTAL).take(*begun(0, 1, 4, (first,)), step(0, 3), step(0, 1), step(0, 1))
    pair.take(act.Retire(), act.Retire())
    assert [3, 3, 1] == held(pair)[:3]

    pair.take(act.Deliver())

    assert [(first,)] == [output.tokens for output in pair.state.outputs]
    assert ([2, 2, 1], 5) == (held(pair)[:3], pair.engine.stats().free_pages)
    assert {Reason.IN_FLIGHT} == pair.refuses(act.Reserve(0))
    pool = pair.engine.extract().pages.cache
    pair.take(act.Retire())
    np.testing.assert_array_equal(pool, pair.engine.extract().pages.cache)
    pair.take(act.Deliver())
    assert 5 == pair.engine.stats().free_pages
    pair.take(act.Deliver(), act.Reserve(0))
    assert 8 == pair.engine.stats().free_pages


def test_a_stop_cuts_off_what_later_steps_did() -> None:
    """A finished sequence that stays has no cell past its committed ones."""
    (first,), _ = naive.generate(TEXT, params(1))
    pair = Pair(KEPT).take(*begun(0, 1, 4, (first,)), step(0, 3), step(0, 1), step(0, 1))
    pair.take(act.Retire(), act.Retire(), act.Deliver())

    slots = pair.engine.extract().slots
    assert (3, 3, 3, 0) == (
        *(int(slots.allocated[0]), int(slots.written[0])),
        *(int(slots.committed[0]), int(slots.proposed[0])),
    )
    assert (0, 1) == row(pair, 0)
    pair.take(act.Retire(), act.Deliver(), act.Deliver(), act.Free(0))
    assert 8 == pair.engine.stats().free_pages


def test_a_step_does_nothing_to_those_who_come_after_an_abort() -> None:
    """Two sequences begin before the step of an aborted one retires; each gets its own tokens."""
    pair = Pair(INCREMENTAL).take(*OPEN, act.Free(0), *begun(1, 2), step(1, 3))
    assert (2, 3) == row(pair, 1)

    pair.take(act.Retire(), act.Deliver(), *begun(0, 3), step(0, 3))
    assert (0, 1) == row(pair, 0)
    pair.take(act.Retire(), act.Retire(), act.Deliver(), act.Deliver(), act.Generate())
    pair.take(act.Generate(), act.Generate())

    tokens, _ = naive.generate(TEXT, params(4))
    assert [(3, tokens), (2, tokens)] == [
        (output.request, output.tokens) for output in pair.engine.take_outputs()
    ]


def test_a_reset_keeps_a_step_until_it_is_delivered() -> None:
    """The step holds its slot and its pages; then the engine is as new."""
    pair = Pair(INCREMENTAL).take(*OPEN, act.Reset())

    stats = pair.engine.stats()
    assert (0, 2, 6, 1, 1) == (
        *(stats.active, stats.pages_in_use, stats.free_pages),
        *(stats.in_flight, stats.held_slots),
    )
    assert 1 == pair.engine.reserve()
    pair.engine.free(1)
    pair.take(act.Retire(), act.Deliver())
    assert_identical(Engine(INCREMENTAL).extract(), pair.engine.extract(), cache=False)


def test_pages_are_taken_again_when_the_step_that_names_them_is_delivered() -> None:
    """In a full pool nothing is given back earlier, whatever is freed."""
    whole = tuple((slot, at) for slot in (1, 2, 3) for at in range(4))
    pair = Pair(KEPT).take(*OPEN, *(act.Reserve(slot) for slot in (1, 2, 3)))
    pair.take(act.Allocate(whole[:8]), act.Allocate(whole[8:]), act.Free(0))
    more = act.Allocate(((1, 4),))

    assert {Reason.OUT_OF_PAGES} == pair.refuses(more)
    pair.take(act.Retire())
    assert {Reason.OUT_OF_PAGES} == pair.refuses(more)
    pair.take(act.Deliver(), more)
    assert 0 == row(pair, 1)[-1]


def test_an_idle_page_that_a_step_names_is_not_taken() -> None:
    """It stays in the index, where it can be found, until the step is delivered."""
    pair = Pair(KEPT).take(*HALF, act.Deliver(), act.Publish(0, 2), step(0, 1), act.Free(0))
    pair.take(*(act.Reserve(slot) for slot in (1, 2)))
    cells = [(slot, at) for slot in (1, 2) for at in range(8)]
    pair.take(act.Allocate(tuple(cells[:8])), act.Allocate(tuple(cells[8:12])))

    assert {Reason.OUT_OF_PAGES} == pair.refuses(act.Allocate(((2, 4),)))
    assert (0, 0) == (pair.engine.stats().free_pages, pair.engine.stats().idle_pages)
    pair.take(act.Retire(), act.Deliver())
    assert (1, 1) == (pair.engine.stats().free_pages, pair.engine.stats().idle_pages)


def test_a_step_reads_the_row_that_it_was_dispatched_with() -> None:
    """After a merge the page that it names is in no row, and is not taken before its delivery."""
    whole = (act.Retire(), act.Deliver())
    pair = Pair(KEPT).take(*begun(1, 1), step(1, 3), *whole, act.Publish(1, 2))
    pair.take(*begun(0, 2), step(0, 2), *whole, step(0, 1))
    old = row(pair, 0)[0]
    pair.take(act.Merge(0, 0))
    assert (0, 1, 0) == (pair.state.counts[old], held(pair)[old], row(pair, 0)[0])

    pair.take(act.Reserve(2), act.Allocate(tuple((2, at) for at in range(8))))
    assert old not in row(pair, 2)
    pair.take(*whole, act.Reserve(3), act.Allocate(((3, 0),)))
    assert (old,) == row(pair, 3)
    (first,), _ = naive.generate(TEXT, params(1))
    assert first == pair.engine.extract().slots.tokens[0, 3]


def row(pair: Pair, slot: int) -> tuple[int, ...]:
    """The row of a slot."""
    sequence = pair.state.sequences[slot]
    assert sequence is not None
    return sequence.row


def held(pair: Pair) -> list[int]:
    """How many steps name each page."""
    return [int(number) for number in pair.engine.extract().pages.held]


def prefilled(number: int, length: int, max_new: int, choices: int = 1) -> act.Prefill:
    """A prefill of one request."""
    return act.Prefill((request(number, (1,) * length, max_new, choices),))


PROMISED: Final = (prefilled(1, 1, 4, 2), *begun(2, 3), step(2, 3))
"""Two tokens are queued, and a third one may be delivered; slot 3 is unused."""
FILLED: Final = (*PROMISED, act.Enqueue(0, 1), act.Enqueue(0, 1))
"""The same, with a queue in which the last place is promised."""

CASES: Final[dict[str, tuple[Reason, tuple[Action, ...], Action]]] = {
    "allocate": (Reason.IN_FLIGHT, OPEN, act.Allocate(((0, 3),))),
    "enqueue": (Reason.IN_FLIGHT, OPEN, act.Enqueue(0, 1)),
    "propose": (Reason.IN_FLIGHT, OPEN, act.Propose(0, (1,))),
    "replay": (Reason.IN_FLIGHT, OPEN, act.Replay(0, (1,))),
    "commit": (Reason.IN_FLIGHT, HALF, act.Commit(0, 2)),
    "truncate": (Reason.IN_FLIGHT, HALF, act.Truncate(0, 2)),
    "clone a slot in flight": (Reason.IN_FLIGHT, HALF, act.Clone(0, None, 1)),
    "clone into a slot that is held": (
        Reason.IN_FLIGHT,
        (prefilled(2, 1, 4), *begun(1, 1), step(1, 3), act.Free(1)),
        act.Clone(0, 1, 1),
    ),
    "reserve a slot that is held": (Reason.IN_FLIGHT, (*OPEN, act.Free(0)), act.Reserve(0)),
    "write beside a step": (
        Reason.IN_FLIGHT,
        (*begun(1, 2), act.Allocate(((1, 0),)), *OPEN),
        act.Write(((1, 0),)),
    ),
    "prefill beside a step": (Reason.IN_FLIGHT, OPEN, prefilled(2, 1, 1)),
    "round beside a step": (Reason.IN_FLIGHT, (prefilled(1, 1, 4, 2), step(0, 1)), act.Round()),
    "chunk beside a step": (
        Reason.IN_FLIGHT,
        (*begun(1, 2), *OPEN),
        act.MixedRound(((1, 3),)),
    ),
    "admit beside a step": (
        Reason.IN_FLIGHT,
        (*OPEN, act.Submit(request(2, (1,), 1))),
        act.Admit(),
    ),
    "no slot but the one that is held": (
        Reason.NO_FREE_SLOT,
        (*OPEN, act.Free(0), *(act.Reserve() for _ in range(3))),
        act.Reserve(),
    ),
    "dispatch in no slot": (Reason.SLOT_RANGE, (), step(4, 1)),
    "dispatch in an unused slot": (Reason.SLOT_UNUSED, (), step(0, 1)),
    "dispatch before a prompt": (Reason.SLOT_EMPTY, (act.Reserve(0),), step(0, 1)),
    "dispatch after the end": (Reason.SLOT_FINISHED, (prefilled(1, 1, 1),), step(0, 1)),
    "dispatch two chunks": (
        Reason.BATCH_POSITIONS,
        begun(0, 1),
        act.Dispatch(((0, 1), (0, 1))),
    ),
    "dispatch nothing": (Reason.QUEUE_EMPTY, OPEN, act.Dispatch(())),
    "dispatch behind open cells": (
        Reason.UNWRITTEN,
        (*begun(0, 1), act.Allocate(((0, 0),))),
        step(0, 1),
    ),
    "dispatch behind a draft": (
        Reason.PROPOSED,
        (prefilled(1, 1, 4), act.Propose(0, (1,))),
        step(0, 1),
    ),
    "dispatch past the tokens": (Reason.BATCH_UNKNOWN, OPEN, step(0, 2)),
    "dispatch the last token": (
        Reason.TOO_LONG,
        (*begun(0, 1, 2), step(0, 3), step(0, 1)),
        step(0, 1),
    ),
    "dispatch past the budget": (
        Reason.BATCH_WIDTH,
        (*begun(0, 1), *begun(1, 2)),
        act.Dispatch(((0, 3), (1, 1))),
    ),
    "dispatch without pages": (
        Reason.OUT_OF_PAGES,
        (
            *(act.Reserve(slot) for slot in (1, 2)),
            act.Allocate(tuple((1, at) for at in range(8))),
            act.Allocate(tuple((2, at) for at in range(6))),
            *begun(0, 1),
        ),
        step(0, 3),
    ),
    "a fourth step": (
        Reason.FLIGHTS_FULL,
        (*OPEN, *begun(1, 2), step(1, 1), step(1, 1)),
        step(1, 1),
    ),
    "no room for outputs": (
        Reason.OUTPUTS_FULL,
        (
            *(prefilled(1, 1, 1, 4), act.FreeFinished(), *begun(0, 2), *begun(1, 3)),
            step(0, 3),
        ),
        step(1, 3),
    ),
    "no room in the queue": (
        Reason.QUEUE_FULL,
        (prefilled(1, 1, 4, 3), *begun(3, 3), act.Enqueue(0, 1), act.Enqueue(1, 1)),
        step(3, 3),
    ),
    "enqueue where a token is promised": (Reason.QUEUE_FULL, FILLED, act.Enqueue(1, 1)),
    "propose where a token is promised": (Reason.QUEUE_FULL, FILLED, act.Propose(1, (1,))),
    "clone where a token is promised": (Reason.QUEUE_FULL, FILLED, act.Clone(1, None, 2)),
    "retire nothing": (Reason.NO_FLIGHT, (), act.Retire()),
    "retire twice": (Reason.NO_FLIGHT, HALF, act.Retire()),
    "deliver nothing": (Reason.NO_FLIGHT, (), act.Deliver()),
    "deliver before the device is done": (Reason.NO_FLIGHT, OPEN, act.Deliver()),
}


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_changes_nothing(name: str) -> None:
    """Every reason to refuse a step, or an action beside one, leaves every bit as it was."""
    reason, history, action = CASES[name]

    assert {reason} == Pair(KEPT).take(*history).refuses(action)


def test_rounds_wait_for_steps() -> None:
    """Rounds of queued tokens are none while a step is in flight, and `generate` says why."""
    pair = Pair(KEPT).take(prefilled(1, 1, 4, 2), step(0, 1))
    before = pair.engine.extract()

    assert (0, Reason.IN_FLIGHT) == pair.engine.generate()
    assert_identical(before, pair.engine.extract())
