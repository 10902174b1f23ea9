"""Every reason to refuse, on the engine: the state stays bit for bit, and the error has details."""

import pytest
from engine_tools import (
    KEPT,
    assert_holds,
    assert_identical,
    do,
    garbage,
    params,
    request,
    run,
    specification,
)
from spec_tools import INDEXING as MACHINE

from impl.engine import Engine
from spec.machines import naive
from spec.machines.actions import (
    Action,
    Allocate,
    Assign,
    Clone,
    Commit,
    Drop,
    Enqueue,
    Evict,
    Free,
    FreeFinished,
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
    Round,
    Share,
    Truncate,
    Write,
)
from spec.vocabulary import INVALID, InvalidInput, Reason, Refused
from spec.vocabulary.errors import (
    BatchRefused,
    CapacityRefused,
    Family,
    RequestRefused,
    SlotRefused,
)

History = tuple[Action, ...]


def span(slot: int, start: int, stop: int) -> tuple[tuple[int, int], ...]:
    """The positions from `start` to `stop - 1` of a slot."""
    return tuple((slot, position) for position in range(start, stop))


def prefill(number: int, prompt: int, max_new: int, choices: int = 1) -> Prefill:
    """A prefill of one request with a prompt of this many tokens."""
    return Prefill((request(number, (1,) * prompt, max_new, choices),))


RESERVED: History = (Reserve(0),)
ASSIGNED: History = (*RESERVED, Assign(0, (1, 2, 3), params(5), request=1))
COVERED: History = (*ASSIGNED, Allocate(span(0, 0, 4)))
WRITTEN: History = (*ASSIGNED, Allocate(span(0, 0, 3)), Write(span(0, 0, 3)))
PUBLISHED: History = (
    *(*RESERVED, Assign(0, (1, 1, 1), params(5), request=1)),
    *(Allocate(span(0, 0, 3)), Write(span(0, 0, 3)), Publish(0, 3)),
)


def again(slot: int, length: int) -> History:
    """Another sequence with a text that begins in the same way, without cells."""
    return (Reserve(slot), Assign(slot, (1,) * length, params(3), request=9))


QUEUED: History = (*WRITTEN, *(Enqueue(0, token) for token in (7, 8, 9, 10)))
DECODING: History = (prefill(1, 3, 4),)
FINISHED: History = (prefill(1, 3, 1),)
SEVEN_PAGES: History = (
    *(Reserve(slot) for slot in (0, 1, 2)),
    Allocate(span(0, 0, 8)),
    Allocate(span(1, 0, 6)),
)
"""Slot 0 has a full row, slot 1 has three pages, and one page is free."""
PROPOSED: History = (*DECODING, Propose(0, (1,)))
FULL_QUEUE: History = (
    prefill(1, 1, 4, 3),
    Reserve(3),
    Assign(3, (1,), params(5), request=2),
    Allocate(span(3, 0, 1)),
    Write(span(3, 0, 1)),
    Enqueue(3, 4),
    Enqueue(3, 5),
)
"""One token of each of three slots and two of the fourth, which fill the queue."""
FOUR_OUTPUTS: History = (prefill(1, 1, 1, 4), FreeFinished())
FULL_OUTPUTS: History = (*FOUR_OUTPUTS, prefill(2, 1, 1), FreeFinished())
TWO_MAY_END: History = (
    *FOUR_OUTPUTS,
    prefill(3, 1, 3),
    Reserve(2),
    Assign(2, (1,), params(3), request=4),
    Allocate(span(2, 0, 1)),
    Write(span(2, 0, 1)),
    Enqueue(2, 5),
)
"""Outputs with room for one more, and a round that draws for two sequences."""

CASES: dict[str, tuple[Reason, History, Action]] = {
    "free past the slots": (Reason.SLOT_RANGE, (), Free(4)),
    "free below the slots": (Reason.SLOT_RANGE, (), Free(-1)),
    "purge of no slot": (Reason.SLOT_RANGE, (), Purge(INVALID)),
    "reserve of no slot": (Reason.SLOT_RANGE, (), Reserve(INVALID)),
    "a release without a window": (Reason.WINDOW, WRITTEN, Release(0, 1)),
    "clone into no slot": (Reason.SLOT_RANGE, WRITTEN, Clone(0, 4, 1)),
    "batch of no slot": (Reason.SLOT_RANGE, RESERVED, Allocate(((INVALID, 0),))),
    "free of an unused slot": (Reason.SLOT_UNUSED, (), Free(3)),
    "batch of an unused slot": (Reason.SLOT_UNUSED, RESERVED, Allocate(((1, 0),))),
    "reserve of a used slot": (Reason.SLOT_USED, RESERVED, Reserve(0)),
    "clone into itself": (Reason.SLOT_USED, WRITTEN, Clone(0, 0, 1)),
    "allocate after the end": (Reason.SLOT_FINISHED, FINISHED, Allocate(((0, 3),))),
    "enqueue after the end": (Reason.SLOT_FINISHED, FINISHED, Enqueue(0, 1)),
    "clone after the end": (Reason.SLOT_FINISHED, FINISHED, Clone(0, None, 1)),
    "assign twice": (Reason.SLOT_ASSIGNED, ASSIGNED, Assign(0, (1,), params(1), request=2)),
    "enqueue before a prompt": (Reason.SLOT_EMPTY, RESERVED, Enqueue(0, 1)),
    "write before a prompt": (
        Reason.SLOT_EMPTY,
        (*RESERVED, Allocate(((0, 0),))),
        Write(((0, 0),)),
    ),
    "no slot left": (Reason.NO_FREE_SLOT, (*SEVEN_PAGES, Reserve()), Reserve()),
    "no slot for a clone": (Reason.NO_FREE_SLOT, FULL_QUEUE, Clone(3, None, 1)),
    "no slots for choices": (Reason.NO_FREE_SLOT, RESERVED, prefill(1, 1, 1, 4)),
    "too wide a batch": (Reason.BATCH_WIDTH, RESERVED, Allocate((None,) * 9)),
    "a gap": (Reason.BATCH_POSITIONS, ASSIGNED, Allocate(((0, 0), (0, 2)))),
    "a duplicate": (Reason.BATCH_POSITIONS, ASSIGNED, Allocate(((0, 0), (0, 0)))),
    "a rewrite": (Reason.BATCH_POSITIONS, WRITTEN, Write(((0, 2),))),
    "a write of no cell": (Reason.BATCH_POSITIONS, WRITTEN, Write(((0, 3),))),
    "a negative position": (Reason.BATCH_POSITIONS, ASSIGNED, Allocate(((0, -1),))),
    "an unknown token": (Reason.BATCH_UNKNOWN, COVERED, Write(span(0, 0, 4))),
    "a clone of open cells": (Reason.UNWRITTEN, COVERED, Clone(0, None, 1)),
    "a round over open cells": (Reason.UNWRITTEN, (*DECODING, Allocate(((0, 3),))), Round()),
    "a write of what waits": (
        Reason.BATCH_QUEUED,
        (*QUEUED, Allocate(((0, 3),))),
        Write(((0, 3),)),
    ),
    "enqueue after a draft": (Reason.PROPOSED, PROPOSED, Enqueue(0, 1)),
    "a clone with a draft": (Reason.PROPOSED, PROPOSED, Clone(0, None, 1)),
    "a round with a draft": (Reason.PROPOSED, PROPOSED, Round()),
    "a commit of what is final": (Reason.COMMITTED, WRITTEN, Commit(0, 3)),
    "a commit past what is written": (Reason.UNWRITTEN, WRITTEN, Commit(0, 4)),
    "a cut into what is final": (Reason.COMMITTED, WRITTEN, Truncate(0, 2)),
    "a cut past what is allocated": (Reason.TOO_LONG, WRITTEN, Truncate(0, 4)),
    "a draft before a prompt": (Reason.SLOT_EMPTY, RESERVED, Propose(0, (1,))),
    "a draft past the limit": (Reason.TOO_LONG, DECODING, Propose(0, (1, 2, 3, 4))),
    "one page too many": (Reason.OUT_OF_PAGES, SEVEN_PAGES, Allocate(((2, 0), (1, 6)))),
    "too few pages for prompts": (Reason.OUT_OF_PAGES, SEVEN_PAGES, prefill(1, 3, 1)),
    "no page for a clone": (
        Reason.OUT_OF_PAGES,
        (*SEVEN_PAGES, Free(2), prefill(1, 1, 2)),
        Clone(2, None, 1),
    ),
    "a prompt past its row": (
        Reason.TOO_LONG,
        RESERVED,
        Assign(0, (1,) * 7, params(2), request=1),
    ),
    "a request past its row": (Reason.TOO_LONG, (), prefill(1, 7, 2)),
    "a position past its row": (Reason.TOO_LONG, SEVEN_PAGES, Allocate(((0, 8),))),
    "enqueue past the limit": (Reason.TOO_LONG, QUEUED, Enqueue(0, 1)),
    "no room to enqueue": (Reason.QUEUE_FULL, FULL_QUEUE, Enqueue(3, 1)),
    "no room for a clone's tokens": (
        Reason.QUEUE_FULL,
        (*FULL_QUEUE, Free(0)),
        Clone(3, None, 1),
    ),
    "no room for first tokens": (Reason.QUEUE_FULL, QUEUED, prefill(2, 1, 2, 2)),
    "a round of nothing": (Reason.QUEUE_EMPTY, WRITTEN, Round()),
    "no room for a prefill's outputs": (Reason.OUTPUTS_FULL, FULL_OUTPUTS, prefill(3, 1, 1)),
    "no room for a round's outputs": (Reason.OUTPUTS_FULL, TWO_MAY_END, Round()),
    "no prompt": (Reason.PREFILL_WIDTH, (), Prefill(())),
    "too many prompts": (
        Reason.PREFILL_WIDTH,
        (),
        Prefill(tuple(request(number, (1,), 1) for number in range(4))),
    ),
    "too long a prompt": (Reason.PREFILL_WIDTH, (), prefill(1, 9, 1)),
    "too many stops": (
        Reason.STOPS,
        RESERVED,
        Assign(0, (1,), params(1, (1,), (2,), (3,)), request=1),
    ),
    "too long a stop": (
        Reason.STOPS,
        (),
        Prefill((request(1, (1,), 1, stops=((1,) * 4,)),)),
    ),
    "a choice that lives": (Reason.CHOICE_TAKEN, WRITTEN, Clone(0, None, 0)),
    "an assigned choice": (
        Reason.CHOICE_TAKEN,
        (*WRITTEN, Reserve(1)),
        Assign(1, (1,), params(1), request=1),
    ),
    "a choice numbered past the slots": (
        Reason.CHOICE_TAKEN,
        (*WRITTEN, Clone(0, None, 6), Free(0)),
        prefill(1, 1, 1, 9),
    ),
    "a choice not taken yet": (Reason.CHOICE_TAKEN, FOUR_OUTPUTS, prefill(1, 1, 1)),
    "a hit of what is begun": (Reason.SLOT_BEGUN, PUBLISHED, Hit(0, 2)),
    "a hit of the whole text": (Reason.TOO_LONG, (*PUBLISHED, *again(1, 2)), Hit(1, 2)),
    "a hit of what is not there": (Reason.NOT_INDEXED, (*PUBLISHED, *again(1, 5)), Hit(1, 4)),
    "a hit of part of a page": (Reason.NOT_INDEXED, (*PUBLISHED, *again(1, 5)), Hit(1, 1)),
    "a hit of nothing": (Reason.NOT_INDEXED, (*PUBLISHED, *again(1, 5)), Hit(1, 0)),
    "a hit under another context": (
        Reason.NOT_INDEXED,
        (*PUBLISHED, Reserve(1, context=1), *again(1, 5)[1:]),
        Hit(1, 2),
    ),
    "a hit of a queued token": (
        Reason.BATCH_QUEUED,
        (*PUBLISHED, *again(1, 1), Enqueue(1, 1), Enqueue(1, 1)),
        Hit(1, 2),
    ),
    "share with a slot that is begun": (Reason.SLOT_BEGUN, PUBLISHED, Share(0, 0, 2)),
    "share the whole text": (Reason.TOO_LONG, (*PUBLISHED, *again(1, 2)), Share(0, 1, 2)),
    "share other tokens": (
        Reason.NOT_COMMON,
        (*PUBLISHED, Reserve(1), Assign(1, (1, 9, 1), params(1), request=7)),
        Share(0, 1, 2),
    ),
    "share what is not committed": (
        Reason.NOT_COMMON,
        (*PUBLISHED, *again(1, 5), Reserve(2), Assign(2, (1,) * 5, params(3), request=8)),
        Share(1, 2, 2),
    ),
    "share part of a page": (Reason.NOT_COMMON, (*PUBLISHED, *again(1, 5)), Share(0, 1, 1)),
    "share nothing": (Reason.NOT_COMMON, (*PUBLISHED, *again(1, 5)), Share(0, 1, 0)),
    "share under another context": (
        Reason.NOT_COMMON,
        (*PUBLISHED, Reserve(1, context=1), *again(1, 5)[1:]),
        Share(0, 1, 2),
    ),
    "share a queued token": (
        Reason.BATCH_QUEUED,
        (*PUBLISHED, *again(1, 1), Enqueue(1, 1), Enqueue(1, 1)),
        Share(0, 1, 2),
    ),
    "two chunks of a slot": (Reason.BATCH_POSITIONS, ASSIGNED, MixedRound(((0, 1), (0, 1)))),
    "a chunk of no token": (Reason.BATCH_POSITIONS, ASSIGNED, MixedRound(((0, 0),))),
    "a chunk beside a gap": (
        Reason.BATCH_POSITIONS,
        (*WRITTEN, Enqueue(0, 7), Pack(), Enqueue(0, 8), *again(1, 3)),
        MixedRound(((1, 1),)),
    ),
    "a chunk of no slot": (Reason.SLOT_RANGE, ASSIGNED, MixedRound(((0, 1), (4, 1)))),
    "a chunk of an unused slot": (Reason.SLOT_UNUSED, ASSIGNED, MixedRound(((0, 1), (2, 1)))),
    "a chunk before a prompt": (
        Reason.SLOT_EMPTY,
        (*ASSIGNED, Reserve(1)),
        MixedRound(((1, 1), (0, 1))),
    ),
    "a chunk after the end": (
        Reason.SLOT_FINISHED,
        (*FINISHED, *again(1, 3)),
        MixedRound(((1, 1), (0, 1))),
    ),
    "a round of no chunk": (Reason.QUEUE_EMPTY, ASSIGNED, MixedRound(())),
    "a chunk past the prompt": (Reason.BATCH_UNKNOWN, again(1, 2), MixedRound(((1, 3),))),
    "a chunk of endless length": (
        Reason.BATCH_UNKNOWN,
        (*ASSIGNED, *again(1, 3)),
        MixedRound(((0, 2**31 - 1), (1, 2**31 - 1))),
    ),
    "a chunk of a queued token": (
        Reason.BATCH_QUEUED,
        (*again(1, 1), Enqueue(1, 1)),
        MixedRound(((1, 1),)),
    ),
    "chunks past the budget": (
        Reason.BATCH_WIDTH,
        (*ASSIGNED, *again(1, 3)),
        MixedRound(((0, 2), (1, 2))),
    ),
    "a chunk past the budget beside queued tokens": (
        Reason.BATCH_WIDTH,
        (*DECODING, *again(1, 3)),
        MixedRound(((1, 3),)),
    ),
    "a chunk behind open cells": (
        Reason.UNWRITTEN,
        (*ASSIGNED, Allocate(((0, 0),))),
        MixedRound(((0, 1),)),
    ),
    "a chunk before a draft": (
        Reason.PROPOSED,
        (*ASSIGNED, Propose(0, (1,)), Purge(0)),
        MixedRound(((0, 1),)),
    ),
    "no page for a chunk": (
        Reason.OUT_OF_PAGES,
        (*SEVEN_PAGES, Allocate(((2, 0),)), *again(3, 3)),
        MixedRound(((3, 2),)),
    ),
    "no room for the output of a last chunk": (
        Reason.OUTPUTS_FULL,
        (*FULL_OUTPUTS, *again(1, 3)),
        MixedRound(((1, 3),)),
    ),
    "preempt a request that is not there": (Reason.NOT_LIVE, ASSIGNED, Preempt(2)),
    "preempt a slot without a prompt": (Reason.NOT_LIVE, RESERVED, Preempt(0)),
    "preempt what is freed": (Reason.NOT_LIVE, (*ASSIGNED, Free(0)), Preempt(1)),
    "preempt what has ended": (Reason.NOT_LIVE, FINISHED, Preempt(1)),
    "replay in no slot": (Reason.SLOT_RANGE, ASSIGNED, Replay(4, (1,))),
    "replay in an unused slot": (Reason.SLOT_UNUSED, ASSIGNED, Replay(1, (1,))),
    "replay before a prompt": (Reason.SLOT_EMPTY, RESERVED, Replay(0, (1,))),
    "replay after the end": (Reason.SLOT_FINISHED, FINISHED, Replay(0, (1,))),
    "replay behind a queued token": (Reason.BATCH_QUEUED, DECODING, Replay(0, (1,))),
    "replay behind a draft": (
        Reason.PROPOSED,
        (*ASSIGNED, Propose(0, (1,)), Purge(0)),
        Replay(0, (1,)),
    ),
    "replay all that may be drawn": (Reason.TOO_LONG, ASSIGNED, Replay(0, (1,) * 5)),
    "replay a rest that is too long": (
        Reason.TOO_LONG,
        (*ASSIGNED, Replay(0, (1,) * 3)),
        Replay(0, (1,) * 2),
    ),
    "replay more than a row": (Reason.TOO_LONG, ASSIGNED, Replay(0, (1,) * 12)),
    "publish what is not committed": (Reason.UNCOMMITTED, PUBLISHED, Publish(0, 4)),
    "publish after a drop": (Reason.STALE, (*PUBLISHED, Drop()), Publish(0, 2)),
    "merge after a drop": (Reason.STALE, (*PUBLISHED, Drop()), Merge(0, 0)),
    "merge part of a page": (Reason.UNCOMMITTED, PUBLISHED, Merge(0, 1)),
    "merge past the row": (Reason.UNCOMMITTED, PUBLISHED, Merge(0, 2**31 - 1)),
    "merge with itself": (Reason.NOT_INDEXED, PUBLISHED, Merge(0, 0)),
    "evict what is in use": (Reason.NOT_IDLE, PUBLISHED, Evict((1, 1))),
    "evict what is not there": (Reason.NOT_INDEXED, (*PUBLISHED, Free(0)), Evict((1, 2))),
    "evict part of a page": (Reason.NOT_INDEXED, (*PUBLISHED, Free(0)), Evict((1,))),
    "evict more than a row": (Reason.NOT_INDEXED, (*PUBLISHED, Free(0)), Evict((1,) * 12)),
    "evict another context": (Reason.NOT_INDEXED, (*PUBLISHED, Free(0)), Evict((1, 1), 1)),
    "the same id twice": (
        Reason.CHOICE_TAKEN,
        (),
        Prefill((request(1, (1,), 1), request(1, (2,), 1))),
    ),
}
CLASSES = {
    Family.SLOT: SlotRefused,
    Family.BATCH: BatchRefused,
    Family.CAPACITY: CapacityRefused,
    Family.REQUEST: RequestRefused,
}


@pytest.mark.parametrize("name", CASES)
def test_a_refused_call_changes_no_bit(name: str) -> None:
    """A refused call raises a reason of the specification, and the engine then works as before."""
    reason, history, action = CASES[name]
    engine, state = run(Engine(KEPT), *history), specification(KEPT)
    for step in history:
        state = MACHINE.step(state, step)
    before = engine.extract()

    with pytest.raises(Refused) as caught:
        do(engine, action)

    assert frozenset({reason}) == caught.value.reasons
    assert reason in {refusal.reason for refusal in MACHINE.refusals(state, action)}
    assert CLASSES[reason.family] is type(caught.value)
    assert_identical(before, engine.extract())
    assert_holds(engine, state)
    run(engine, Reset(), prefill(9, 2, 3))
    engine.generate()
    text, _ = naive.generate((1, 1), params(3))
    assert [text] == [output.tokens for output in engine.take_outputs()]


def test_every_reason_is_reached() -> None:
    """Each reason has a case, but that of the host, and those of steps in flight, elsewhere."""
    reached = {reason for reason, _, _ in CASES.values()}
    elsewhere = {reason for reason in Reason if reason.family is Family.FLIGHT}

    assert {Reason.NEVER_FITS} | elsewhere == set(Reason) - reached


@pytest.mark.parametrize(
    ("name", "seen", "allowed"),
    [
        ("free past the slots", 4, "0 to 3"),
        ("one page too many", 2, 1),
        ("too few pages for prompts", 2, 1),
        ("no slots for choices", 4, 3),
        ("a gap", 2, 1),
        ("a position past its row", 9, 8),
        ("enqueue past the limit", 4, 4),
        ("no room for a clone's tokens", 6, 5),
        ("no room for a round's outputs", 6, 5),
        ("a chunk of no slot", 4, "0 to 3"),
        ("a chunk of an unused slot", 2, 3),
        ("a chunk before a prompt", 1, 3),
        ("a chunk after the end", 0, 3),
        ("a chunk past the prompt", 3, 2),
        ("a chunk of endless length", 9, 3),
        ("a chunk of a queued token", 1, 0),
        ("chunks past the budget", 4, 3),
        ("a chunk past the budget beside queued tokens", 4, 3),
        ("a chunk behind open cells", 1, 0),
        ("no page for a chunk", 1, 0),
        ("preempt a request that is not there", 2, 1),
        ("replay in no slot", 4, "0 to 3"),
        ("replay in an unused slot", 1, 3),
        ("replay before a prompt", 0, 3),
        ("replay after the end", 0, 3),
        ("replay behind a queued token", 1, 0),
        ("replay behind a draft", 1, 0),
        ("replay all that may be drawn", 4, 4),
        ("replay a rest that is too long", 4, 4),
        ("replay more than a row", 8, 4),
        ("too wide a batch", 9, "at most 8 entries"),
        ("too many prompts", "4 prompts, 4 tokens", "1 to 3 prompts, at most 8 tokens"),
        ("too long a stop", "1, the longest of 4 tokens", "at most 2 of 3 tokens"),
    ],
)
def test_an_error_carries_what_was_seen_and_what_is_allowed(
    name: str, seen: object, allowed: object
) -> None:
    """A refusal has the numbers from the device and the words of the vocabulary."""
    reason, history, action = CASES[name]

    with pytest.raises(Refused) as caught:
        do(run(Engine(KEPT), *history), action)

    (refusal,) = caught.value.refusals
    assert (seen, allowed) == (refusal.seen, refusal.allowed)
    assert reason.meaning in str(caught.value)


def test_a_refused_batch_moves_no_byte_of_a_full_pool() -> None:
    """With random words in every cell, refused writes, clones, rounds and prefills change none."""
    engine = run(Engine(KEPT), *COVERED)
    before = garbage(engine)
    engine.inject(before)
    for action in (Write(span(0, 0, 4)), Clone(0, None, 1), Round(), prefill(1, 3, 1)):
        with pytest.raises(Refused):
            do(engine, action)

    assert_identical(before, engine.extract())


def test_generate_stops_before_the_round_that_is_refused_and_says_why() -> None:
    """A full buffer of outputs stops `generate` after whole rounds, and gives the reason."""
    engine = run(Engine(KEPT), *FOUR_OUTPUTS, prefill(3, 1, 2), prefill(4, 1, 3))
    once = run(Engine(KEPT), *FOUR_OUTPUTS, prefill(3, 1, 2), prefill(4, 1, 3))

    assert (0, Reason.OUTPUTS_FULL) == engine.generate()
    assert_identical(once.extract(), engine.extract())
    engine.take_outputs()
    assert (2, Reason.QUEUE_EMPTY) == engine.generate()


@pytest.mark.parametrize("token", [-1, 2**31])
def test_a_token_that_is_no_int32_is_named(token: int) -> None:
    """A token that is no int32 is invalid input before the device is called."""
    engine = run(Engine(KEPT), *WRITTEN)

    with pytest.raises(InvalidInput, match="token: saw"):
        engine.enqueue(0, token)

    engine.enqueue(0, 2**31 - 1)
    assert 1 == engine.stats().queued
