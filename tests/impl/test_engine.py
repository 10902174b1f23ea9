"""The engine with the exact model, called directly, against the specification's own state."""

import numpy as np
import pytest
from attrs import evolve
from deep import deep_after
from engine_tools import (
    GEOMETRY,
    KEPT,
    LIMITS,
    SETUPS,
    assert_holds,
    assert_identical,
    do,
    expected_logprobs,
    garbage,
    leaves,
    params,
    request,
    run,
    specification,
)
from spec_tools import INDEXING as MACHINE

from impl import entries
from impl.ahead import Ahead
from impl.engine import Engine
from spec import table
from spec.machines import naive
from spec.machines.actions import (
    Action,
    Allocate,
    Assign,
    Clone,
    Commit,
    Deliver,
    Dispatch,
    Drop,
    Enqueue,
    Evict,
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
    TakeOutputs,
    Truncate,
    Write,
)
from spec.vocabulary import (
    INVALID,
    CleanupMode,
    FinishReason,
    Reason,
    Request,
    ResetMode,
    Tokens,
)

BY_HAND: tuple[Action, ...] = (
    Reserve(2),
    Assign(2, (4, 5, 6), params(5, seed=3), request=7),
    Reserve(),
    Assign(0, (9,), params(2), request=8),
    Allocate((None, (2, 2), (0, 0), (2, 0), None, (2, 1))),
    Write(((2, 1), None, (0, 0), (2, 0))),
    Write(((2, 2),)),
    Clone(2, 3, 1),
    Enqueue(2, 11),
    Enqueue(3, 12),
    Clone(2, None, 2),
    Round(),
    Free(2),
    Reserve(2),
    Generate(),
    Pack(),
    TakeOutputs(),
    FreeFinished(),
)
"""Unsorted padded batches on slots out of order, and clones of partial pages and queued tokens."""
PUBLISHED: tuple[Action, ...] = (
    Reserve(),
    Assign(0, (1, 2, 3), params(1), request=1),
    Allocate(((0, 0), (0, 1), (0, 2))),
    Write(((0, 0), (0, 1), (0, 2))),
    Publish(0, 3),
    Reserve(1),
    Assign(1, (1, 2, 4), params(1), request=2),
    Hit(1, 2),
)
AGAIN: tuple[Action, ...] = (
    Reserve(2),
    Assign(2, (1, 2, 3), params(1), request=3),
    Allocate(((2, 0), (2, 1))),
    Write(((2, 0), (2, 1))),
    Merge(2, 0),
    Free(1),
    Reserve(1),
    Assign(1, (1, 2, 4), params(1), request=4),
    Share(0, 1, 2),
    Free(0),
    Free(1),
    Free(2),
    Evict((1, 2)),
    Drop(),
)
"""A text is published, hit, written again and merged with the first; and its page is shared."""
CHUNKED: tuple[Action, ...] = (
    *(Reserve(0), Assign(0, (1, 2, 3, 4, 5), params(3), request=1)),
    *(Reserve(1), Assign(1, (6, 7), params(1), request=2)),
    MixedRound(((0, 1), (1, 2))),
    MixedRound(((0, 3),)),
    Publish(0, 4),
    *(Reserve(2), Assign(2, (1, 2, 3, 4, 9, 9), params(2), request=3), Hit(2, 4)),
    MixedRound(((2, 1), (0, 1))),
    MixedRound(((2, 1),)),
    MixedRound(()),
    *(Generate(), TakeOutputs(), FreeFinished()),
)
"""Chunks end inside a page and at its end, are the last, follow a hit, and fill a round twice.

Beside a chunk a token is decoded; in the first round a sequence of one token finishes at once.
"""
WARM = params(5, temperature=1.0, seed=5)
DRAWN = [naive.generate((1, 2, 3), WARM, choice)[0] for choice in range(3)]
"""The tokens of three choices of the prompt (1, 2, 3), which no stop sequence ends."""
STOPPING = evolve(WARM, stops=(DRAWN[2][:2],))
PREEMPTED: tuple[Action, ...] = (
    Prefill((Request(id=1, prompt=(1, 2, 3), params=STOPPING, n_generations=3),)),
    *(Round(), Round()),
    Preempt(1),
    *(Reserve(3), Assign(3, (1, 2, 3), STOPPING, request=1), Replay(3, DRAWN[0][:3])),
    *(Reserve(0), Assign(0, (1, 2, 3), STOPPING, request=1, choice=1)),
    *(Replay(0, DRAWN[1][:1]), Replay(0, DRAWN[1][1:3])),
    MixedRound(((3, 3),)),
    Share(3, 0, 2),
    MixedRound(((3, 3),)),
    MixedRound(((0, 2),)),
    MixedRound(((0, 2),)),
    *(Free(3), Generate()),
)
"""Two choices are preempted after three tokens each, beside a third that has finished.

They begin again in other slots and are read in chunks; the second shares the first page again.
"""
SERVED: tuple[Action, ...] = (
    Prefill(
        (
            request(1, (1, 2, 3), 4, 3, temperature=1.0, seed=5),
            request(2, (7,), 1),
        )
    ),
    Round(),
    Purge(1),
    TakeOutputs(),
    Free(1),
    Prefill((request(3, (5, 5), 3),)),
    Generate(),
    Round(),
    TakeOutputs(),
)
"""Three choices that share a page, a request of one token, and a later request."""


def served_until_refused(engine: Engine) -> None:
    """Take SERVED without the rounds that have no token queued."""
    for action in SERVED:
        if action == Round() and engine.stats().queued == 0:
            continue
        do(engine, action)


@pytest.mark.parametrize(
    ("cleanup", "history"),
    deep_after(
        1,
        [
            *((CleanupMode.NONE, history) for history in (BY_HAND, CHUNKED)),
            *((cleanup, SERVED) for cleanup in reversed(CleanupMode)),
        ],
    ),
    ids=[
        *("by hand", "in chunks"),
        *(f"served, {cleanup.value}" for cleanup in reversed(CleanupMode)),
    ],
)
def test_the_engine_holds_what_the_specification_holds(
    cleanup: CleanupMode, history: tuple[Action, ...]
) -> None:
    """After each action rows, counts, lengths, tokens, cells, queue and outputs are equal."""
    engine, state = Engine(SETUPS[cleanup]), specification(SETUPS[cleanup])
    one_round = Round() if cleanup is CleanupMode.NONE else Generate()
    for action in (one_round if step == Round() else step for step in history):
        if not MACHINE.refusals(state, action):
            do(engine, action)
            state = MACHINE.step(state, action)
            assert_holds(engine, state)


def test_a_plan_names_slots_rows_and_order_of_an_unsorted_batch() -> None:
    """The plan of a batch with padding, on slots 1 and 3, is that of the specification."""
    engine, state = Engine(KEPT), specification(KEPT)
    begin = (Reserve(3), Reserve(1), Allocate(((3, 0),)))
    batch = ((3, 2), None, (1, 1), (3, 1), (1, 0), (1, 2), None)
    run(engine, *begin)
    for action in (*begin, Allocate(batch)):
        state = MACHINE.step(state, action)

    plan = engine.allocate(batch)

    expected = table.plan(state.sequences, batch, GEOMETRY.page_size)
    count, tokens = int(plan.num_seqs[0]), len(expected.order)
    assert expected.num_seqs == count
    assert [*expected.slot_ids] == plan.slot_ids[:count].tolist()
    assert [*expected.kv_lens] == plan.kv_lens[:count].tolist()
    assert [*expected.cu_q_lens] == plan.cu_q_lens[: count + 1].tolist()
    assert [*expected.order] == plan.order[:tokens].tolist()
    assert [*expected.destinations] == plan.destinations[:tokens].tolist()
    rows = [[page for page in row if page != INVALID] for row in plan.page_indices.tolist()]
    assert [[*row] for row in expected.page_indices] == rows[:count]
    assert {INVALID} == set(plan.destinations[tokens:].tolist())


def test_outputs_are_those_of_naive_decode_with_their_log_probabilities() -> None:
    """Each choice has the tokens of naive decoding and one log-probability for each token."""
    engine = Engine(SETUPS[CleanupMode.INCREMENTAL])
    requests = (
        request(1, (1, 2, 3), 5, 2, temperature=0.5, seed=9),
        request(4, (8, 8), 3),
    )

    engine.prefill(requests)
    while engine.stats().queued:
        engine.generate()
    outputs = engine.take_outputs()

    assert 3 == len(outputs)
    for output in outputs:
        asked = next(one for one in requests if one.id == output.request)
        expected = naive.generate(asked.prompt, asked.params, output.choice)
        assert expected == (output.tokens, output.reason)
        assert expected_logprobs(asked.prompt, output.tokens) == output.logprobs
    assert () == engine.take_outputs()


def test_a_preempted_request_gets_the_tokens_of_naive_decode() -> None:
    """Replayed tokens are not drawn again, and the output of a finished choice stays first."""
    engine, state = Engine(KEPT), specification(KEPT)

    for action in PREEMPTED:
        do(engine, action)
        state = MACHINE.step(state, action)
        assert_holds(engine, state)
    outputs = engine.take_outputs()

    expected = {at: naive.generate((1, 2, 3), STOPPING, at) for at in (2, 0, 1)}
    assert [FinishReason.STOP, *[FinishReason.LIMIT] * 2] == [why for _, why in expected.values()]
    assert [*expected.items()] == [(one.choice, (one.tokens, one.reason)) for one in outputs]
    assert [*expected.items()] == [(one.choice, (one.tokens, one.reason)) for one in state.outputs]


def test_log_probabilities_that_are_not_wanted_are_not_kept() -> None:
    """Without the option, outputs have no log-probabilities, and the state has no room for them."""
    engine = Engine(SETUPS[CleanupMode.END])

    engine.prefill([request(1, (1,), 1)])

    held = engine.extract()
    assert held.slots.logprobs.size == held.outputs.logprobs.size == 0
    assert () == engine.take_outputs()[0].logprobs


def test_a_clone_takes_the_log_probabilities_along() -> None:
    """A clone has the log-probabilities of the tokens that its parent has drawn so far."""
    engine = Engine(KEPT)
    prompt = (4, 5, 6)
    engine.prefill([request(1, prompt, 4)])
    engine.round()

    child = engine.clone(0, 2, choice=1)

    held = engine.extract()
    drawn = tuple(held.slots.tokens[child, len(prompt) : int(held.slots.known[child])].tolist())
    kept = expected_logprobs(prompt, drawn)
    assert 2 == len(drawn)
    for slot in (0, child):
        assert [*kept] == held.slots.logprobs[slot, len(prompt) : len(prompt) + 2].tolist()


TEXT, _ = naive.generate((3, 1), params(6))
"""The tokens that greedy decoding appends to the prompt (3, 1)."""


@pytest.mark.parametrize(
    ("stops", "length", "reason"),
    [
        ((TEXT[:1],), 1, FinishReason.STOP),
        ((TEXT[1:3],), 3, FinishReason.STOP),
        (((1, *TEXT[:2]), TEXT[1:4]), 4, FinishReason.STOP),
        (((3, 1),), 6, FinishReason.LIMIT),
        (((1, TEXT[0]),), 6, FinishReason.LIMIT),
        (((3, 1, TEXT[0]), (1, *TEXT[:2])), 6, FinishReason.LIMIT),
        ((TEXT[3:6],), 6, FinishReason.STOP),
    ],
    ids=[
        "the first token",
        "two tokens",
        "the second of two",
        "only in the prompt",
        "half in the prompt",
        "longer than what is generated, ending in it",
        "with the last token allowed",
    ],
)
def test_stop_sequences_are_matched_against_generated_tokens(
    stops: tuple[Tokens, ...], length: int, reason: FinishReason
) -> None:
    """A stop sequence ends the text and is kept, but never matches tokens of the prompt."""
    engine = Engine(SETUPS[CleanupMode.INCREMENTAL])

    engine.prefill([request(1, (3, 1), 6, stops=stops)])
    while engine.stats().queued:
        engine.generate()
    (output,) = engine.take_outputs()

    assert TEXT[:length] == output.tokens
    assert reason is output.reason


@pytest.mark.parametrize(
    ("cleanup", "active"),
    [
        (CleanupMode.NONE, [2, 2, 2]),
        (CleanupMode.END, [2, 2, 0]),
        (CleanupMode.INCREMENTAL, [2, 1, 0]),
    ],
)
def test_finished_sequences_are_released_as_the_mode_says(
    cleanup: CleanupMode, active: list[int]
) -> None:
    """Sequences of 2 and 3 tokens stay, are released together, or each at its own end."""
    engine = Engine(SETUPS[cleanup])
    engine.prefill([request(1, (1,), 2), request(2, (2,), 3)])
    seen = [engine.stats().active]
    for _ in range(2):
        engine.round() if cleanup is CleanupMode.NONE else engine.generate()
        seen.append(engine.stats().active)

    assert active == seen
    assert 2 == engine.stats().outputs
    engine.free_finished()
    assert 0 == engine.stats().active
    assert GEOMETRY.pages == engine.stats().free_pages


@pytest.mark.parametrize("at", range(len(BY_HAND)))
def test_an_injected_state_goes_on_like_the_one_it_was_taken_from(at: int) -> None:
    """A state that is extracted at any step and injected elsewhere continues bit for bit."""
    first = run(Engine(KEPT), *BY_HAND[:at])
    held = first.extract()
    second = run(Engine(KEPT), *SERVED[:1])

    second.inject(held)
    assert_identical(held, second.extract())
    run(first, *BY_HAND[at:])
    run(second, *BY_HAND[at:])

    assert_identical(first.extract(), second.extract())


def test_extracted_and_injected_arrays_are_copies() -> None:
    """Extracted and injected arrays share no memory with the engine."""
    engine = run(Engine(KEPT), *BY_HAND[:6])
    given, kept = engine.extract(), engine.extract()

    engine.inject(given)
    for leaf in (*leaves(given), *(np.asarray(pool) for pool in given.pages.cache)):
        leaf[...] = 1
    assert_identical(kept, engine.extract())
    run(engine, Reset(ResetMode.PHYSICAL))

    assert kept.slots.used.any()
    assert not engine.extract().slots.used.any()


MIDWAY = {
    "new": (),
    "allocated, not written": BY_HAND[:5],
    "cloned, tokens pending": BY_HAND[:11],
    "one decoded round": BY_HAND[:12],
    "outputs not taken": SERVED[:2],
    "finished, not freed": (*SERVED[:4], Generate()),
}


@pytest.mark.parametrize("mode", deep_after(1, ResetMode))
@pytest.mark.parametrize("name", MIDWAY)
def test_after_a_reset_from_anywhere_the_engine_cannot_be_told_from_a_new_one(
    name: str, mode: ResetMode
) -> None:
    """After a reset the metadata is that of a new engine and stays so, whatever the pool holds."""
    engine, new = run(Engine(KEPT), *MIDWAY[name]), Engine(KEPT)
    engine.inject(garbage(engine))
    before = engine.extract()

    engine.reset(mode)

    after = engine.extract()
    assert_identical(new.extract(), after, cache=False)
    for old, pool in zip(before.pages.cache, after.pages.cache, strict=True):
        kept = old if mode is ResetMode.LOGICAL else np.zeros_like(old)
        np.testing.assert_array_equal(kept, pool)
    for action in (*BY_HAND, Reset(mode), *SERVED):
        if action == Round() and not new.stats().queued:
            continue
        expected, seen = do(new, action), do(engine, action)
        np.testing.assert_equal(seen, expected)
        assert_identical(new.extract(), engine.extract(), cache=False)


def test_a_new_engine_and_a_reset_one_share_no_buffer() -> None:
    """Two engines of one setup are independent: a step of one leaves the other unchanged."""
    first, second = Engine(KEPT), Engine(KEPT)
    before = second.extract()

    run(first, *SERVED[:2])

    assert_identical(before, second.extract())


def test_every_entry_point_is_compiled_once() -> None:
    """Other ids, lengths, orders, params and injected states cause no second compilation."""
    engine = Engine(KEPT)
    for _ in range(2):
        run(engine, *BY_HAND, Reset())
        served_until_refused(engine)
        engine.inject(engine.extract())
        run(engine, Reset(ResetMode.PHYSICAL), Prefill((request(6, (1,) * 7, 1),)))
        run(engine, Reset(), Reserve(), Assign(0, (2,) * 6, params(1), request=3), Reset())
        run(engine, Prefill((request(7, (1,) * 3, 4),)), Propose(0, (1, 2)), Pack())
        drafts = ((0, 3), (0, 4), (0, 5))
        run(engine, Allocate(drafts), Write(drafts), Commit(0, 5), Truncate(0, 5), Reset())
        run(engine, *PUBLISHED, *AGAIN, Reset())
        run(engine, *PREEMPTED, Reset())
        run(engine, Reserve(), Release(0, 0), Reset())
        run(engine, Reserve(), Assign(0, (1,) * 4, params(2), request=8))
        run(engine, Dispatch(((0, 3),)), Dispatch(((0, 1),)), Retire(), Deliver(), Retire())
        run(engine, Reset(), Deliver())

        Ahead(engine).generate([request(number, (1, 2), 2 + number) for number in range(2)])
        engine.reset()

    assert dict.fromkeys(entries.ALL, 1) == engine.compilations()


def test_statistics_count_what_is_there() -> None:
    """The statistics count slots, pages, counts, queue and outputs, and name their requests."""
    engine = Engine(KEPT)
    engine.prefill([request(2**31 - 1, (1, 2, 3), 2, 2), request(0, (1,), 1)])

    stats = engine.stats()

    assert 3 == stats.active
    assert (4, 4) == (stats.pages_in_use, stats.free_pages)
    assert (2, 2, 1) == (stats.largest_count, stats.queued, stats.outputs)
    assert {(2**31 - 1, 0), (2**31 - 1, 1), (0, 0)} == stats.occupants
    assert {(0, 0)} == stats.untaken


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e300])
def test_no_temperature_above_0_is_greedy_or_infinite(temperature: float) -> None:
    """A temperature beyond float32 becomes the nearest number that is neither 0 nor infinite."""
    engine = Engine(SETUPS[CleanupMode.INCREMENTAL])
    asked = request(1, (1, 2), 1, temperature=temperature, seed=4)

    engine.prefill([asked])

    assert naive.generate(asked.prompt, asked.params)[0] == engine.take_outputs()[0].tokens


def test_limits_bound_the_rounds_of_one_call() -> None:
    """`generate` stops after `rounds`, or before the first round that is refused."""
    engine = Engine(KEPT)
    engine.prefill([request(1, (1,), 7)])

    assert (LIMITS.rounds, None) == engine.generate()
    assert (2, Reason.QUEUE_EMPTY) == engine.generate()
