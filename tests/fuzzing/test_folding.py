"""Shorter histories by the specification: folds, sequences left out, and the slots that follow."""

from functools import partial
from random import Random

import pytest
from attrs import evolve
from drawn_histories import drawn
from spec_engine import ACTIONS, SpecEngine, small

from conformance.fuzzing.folding import shorter_by_specification, told_of, with_slots
from conformance.fuzzing.shrinking import shrink
from conformance.history import Attend, History
from conformance.lockstep.run import Finding, replay
from conformance.protocol import Profile
from spec.machines import actions as act
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, Limits, Params, Request, default_limits

SIZES = small()
TEXT = (3, 1, 4, 1, 5)
CELLS = tuple((0, position) for position in range(len(TEXT)))
ONE = Params(max_new=1)
WRITTEN: History = (
    act.Reserve(),
    act.Assign(0, TEXT, ONE, 7),
    act.Allocate(CELLS[:2]),
    act.Allocate(CELLS[2:]),
    act.Write(CELLS),
)
"""A text is written, which a prefill does in one action."""


def profile_of(*, without: frozenset[type] = frozenset(), sizes: Geometry = SIZES) -> Profile:
    """The profile of an engine that offers all actions but these."""
    limits = default_limits(sizes)
    return SpecEngine(sizes, limits, CleanupMode.INCREMENTAL, actions=ACTIONS - without).profile


def shorter(history: History, profile: Profile | None = None) -> list[History]:
    """Every history that is worth a try."""
    made = [change() for change in shorter_by_specification(history, profile or profile_of())]
    return [one for one in made if one is not None]


def prefill(prompt: tuple[int, ...], max_new: int = 2, name: int = 7, choices: int = 1) -> Request:
    """A request with these tokens."""
    params = Params(max_new=max_new)
    return Request(id=name, prompt=prompt, params=params, n_generations=choices)


def test_a_prefill_stands_for_its_parts() -> None:
    """The sequence goes on, so that its prefill leaves room for the token that it draws."""
    history = (*WRITTEN, act.Publish(0, 4))

    assert (act.Prefill((prefill(TEXT),)), act.Publish(0, 4)) in shorter(history)


def test_a_prefill_takes_the_cells_of_a_sequence_without_a_prompt() -> None:
    """A slot that only takes pages becomes a request, as long as one may be."""
    cells = tuple((0, position) for position in range(16))
    history = (act.Reserve(), act.Allocate(cells), act.Reserve(), act.Free(0))

    assert (act.Prefill((prefill((0,) * 14, name=1),)), act.Reserve(), act.Free(0)) in shorter(
        history
    )


def test_a_prompt_is_cut_where_its_sequence_could_not_go_on() -> None:
    """A prefill of it draws a token, and leaves room for another one."""
    text = (1,) * (SIZES.max_len - 1)
    cells = tuple((0, position) for position in range(len(text)))
    writes = (act.Assign(0, text, ONE, 7), act.Allocate(cells), act.Write(cells))
    history = (act.Reserve(), *writes, act.Publish(0, 4))

    assert (act.Prefill((prefill(text[:-1]),)), act.Publish(0, 4)) in shorter(history)


def test_a_prefill_that_saves_no_step_goes_with_the_allocations_beside_it() -> None:
    """All reservations become prefills, and what is left of the allocations becomes one."""
    begin = act.Prefill((prefill(TEXT, 6),))
    first, second = ((0, 5), (1, 0), (1, 1)), ((0, 6), (1, 2))
    history = (begin, act.Reserve(), act.Allocate(first), act.Allocate(second), act.Free(0))
    whole = act.Prefill((prefill((0, 0, 0), 2, name=1),))

    found = shorter(history)

    assert (begin, whole, act.Allocate(((0, 5), (0, 6))), act.Free(0)) in found
    most = default_limits(SIZES).prefill_tokens
    wide = act.Allocate(tuple((0, 7 + position) for position in range(most)))
    steps = {step for one in shorter((*history[:4], wide, act.Free(0))) for step in one}
    assert most == max(len(step.batch) for step in steps if isinstance(step, act.Allocate))


def test_a_prefill_is_put_in_the_place_of_the_last_part_too() -> None:
    """What a sequence takes late is taken late; the slots of the others follow."""
    between = (act.Reserve(), act.Enqueue(1, 3))
    history = (*WRITTEN[:2], *between[:1], *WRITTEN[2:], act.Free(1), act.Free(0))

    found = shorter(history)

    whole = act.Prefill((prefill(TEXT),))
    assert (whole, act.Reserve(), act.Free(1), act.Free(0)) in found
    assert (act.Reserve(), whole, act.Free(0), act.Free(1)) in found


def test_a_prefill_stands_for_the_chunks_of_its_prompt() -> None:
    """A round loses the chunk, and goes if it had no other."""
    begin = (act.Reserve(), act.Assign(0, TEXT, Params(max_new=3), 7))
    other = (act.Reserve(), act.Assign(1, TEXT, ONE, 8))
    last, whole = act.Purge(0), act.Prefill((prefill(TEXT, 3),))

    alone = (*begin, act.MixedRound(((0, 4),)), act.MixedRound(((0, 1),)), last)
    assert (whole, last) in shorter(alone)
    beside = (*begin, *other, act.MixedRound(((0, 2), (1, 2))), last)
    assert (whole, *other, act.MixedRound(((1, 2),)), last) in shorter(beside)


def test_a_prefill_goes_with_a_simpler_last_step() -> None:
    """It queues a token, so that the last step has less room than before."""
    last = act.MixedRound(((1, 3),))
    history = (*WRITTEN, act.Reserve(), act.Assign(1, TEXT, ONE, 8), last)

    less = act.MixedRound(((1, 2),))
    assert (act.Prefill((prefill(TEXT),)), *history[5:7], less) in shorter(history)


def test_a_round_stands_for_its_parts() -> None:
    """The queue is packed, allocated and written by it."""
    start = act.Prefill((prefill(TEXT, 3),))
    steps = (act.Pack(), act.Allocate(((0, 5),)), act.Write(((0, 5),)))

    assert (start, act.Round(), act.Publish(0, 4)) in shorter((start, *steps, act.Publish(0, 4)))


def test_a_queued_token_becomes_one_of_the_prompt() -> None:
    """What is known behind a prompt is known with it; as many tokens may follow as before."""
    text = (act.Reserve(), act.Assign(0, TEXT, evolve(ONE, max_new=3), 7), act.Enqueue(0, 9))
    longer = act.Assign(0, (*TEXT, 9), evolve(ONE, max_new=2), 7)

    assert (act.Reserve(), longer, act.Free(0)) in shorter((*text, act.Free(0)))


@pytest.mark.parametrize(
    ("two", "one"),
    [
        (
            (act.Prefill((prefill((1,)),)), act.Prefill((prefill((2,), name=8),))),
            act.Prefill((prefill((1,)), prefill((2,), name=8))),
        ),
        (
            (act.Prefill((prefill((1,)),)), act.Clone(0, 1, 1)),
            act.Prefill((prefill((1,), choices=2),)),
        ),
        ((act.Submit(prefill((1,))), act.Admit()), act.Prefill((prefill((1,)),))),
        (
            (act.Prefill((prefill((1,), 9),)), act.Round(), act.Round()),
            act.Generate(),
        ),
    ],
)
def test_two_actions_become_one(two: History, one: act.Action) -> None:
    """Prefills, clones, admissions and rounds are joined."""
    assert (*two[:-2], one, act.Reserve()) in shorter((*two, act.Reserve()))


def test_a_longer_prompt_stands_for_what_is_written_later() -> None:
    """A draft that is committed becomes a part of the prompt."""
    draft = (act.Propose(0, (9, 8)), act.Pack(), act.Allocate(((0, 5), (0, 6), (0, 7))))
    whole = (*draft, act.Write(((0, 5), (0, 6), (0, 7))), act.Commit(0, 8))
    history = (act.Prefill((prefill(TEXT, 6),)), *whole, act.Publish(0, 8))

    found = [steps for steps in shorter(history) if len(steps) == 2]

    requests = [start.requests[0] for start, _ in found if isinstance(start, act.Prefill)]
    assert [(*TEXT, *request.prompt[5:6], 9, 8) for request in requests] == [
        request.prompt for request in requests
    ]
    assert requests


def test_a_publication_of_all_that_is_committed_stays_one() -> None:
    """The token that a prefill draws is written too, so that one cell more is committed."""
    draft = (act.Propose(0, (9, 8)), act.Pack(), act.Allocate(((0, 5), (0, 6), (0, 7))))
    whole = (*draft, act.Write(((0, 5), (0, 6), (0, 7))), act.Commit(0, 8))
    grown = (act.Propose(0, (7,)), act.Pack(), act.Allocate(((0, 8),)), act.Write(((0, 8),)))
    history = (act.Prefill((prefill(TEXT, 6),)), *whole, *grown)

    ends = [one[-1] for one in shorter((*history, act.Publish(0, 8))) if len(one) == 6]
    parts = [one[-1] for one in shorter((*history, act.Publish(0, 7))) if len(one) == 6]

    assert act.Publish(0, 9) in ends
    assert {act.Publish(0, 7)} == {*parts}


def test_a_sequence_goes_with_all_of_its_steps() -> None:
    """The slots of the others follow, and a clone goes with its parent."""
    history = (
        *WRITTEN,
        act.Clone(0, 1, 1),
        act.Reserve(),
        act.Allocate(((1, 5), (2, 0))),
        act.Free(2),
    )

    assert (act.Reserve(), act.Allocate(((0, 0),)), act.Free(0)) in shorter(history)


def test_the_others_take_the_pages_of_a_request_that_goes() -> None:
    """A pool stays full without a request if the prompts of others become longer."""
    first = act.Prefill((prefill((1,)), prefill((2,), name=8)))
    history = (first, act.Prefill((prefill((3,), name=9),)), act.Reserve())
    long = act.Prefill((prefill((2,) * 14, name=8),)), act.Prefill((prefill((3,) * 14, name=9),))

    assert (*long, act.Reserve()) in shorter(history)


def test_slots_that_a_step_chooses_become_the_lowest_ones() -> None:
    """Whatever has another slot then is named by that."""
    history = (act.Reserve(2), *WRITTEN, act.Clone(0, 3, 1), act.Free(2), act.Free(3))
    moved = tuple((1, position) for _, position in CELLS)
    writing = (act.Assign(1, TEXT, ONE, 7), act.Allocate(moved[:2]), act.Allocate(moved[2:]))
    begun = (act.Reserve(), act.Reserve(), *writing, act.Write(moved), act.Clone(1, None, 1))

    assert (*begun, act.Free(0), act.Free(2)) in shorter(history)


def test_refused_steps_and_those_of_the_harness_go_at_once() -> None:
    """All of them are tried without before anything else, and the last step stays."""
    history = (act.Free(3), act.Reserve(), Attend(), act.Free(2), act.Free(1))

    assert (act.Reserve(), act.Free(1)) == shorter(history)[0]


def test_contexts_go_together() -> None:
    """A text is found under one context alone, so that none can go before the others."""
    history = (act.Reserve(None, 2), act.Reserve(None, 2), act.Free(1))

    assert (act.Reserve(), act.Reserve(), act.Free(1)) in shorter(history)


@pytest.mark.parametrize("seed", range(8))
def test_every_change_is_smaller_and_has_only_what_is_offered(seed: int) -> None:
    """Fewer steps; or as many, and fewer choices, or slots and contexts that a step names."""
    history = drawn(SIZES, seed, 30)
    lacking = frozenset({act.Prefill, act.Generate}) if seed % 2 else frozenset[type]()
    history = tuple(step for step in history if type(step) not in lacking)
    profile = profile_of(without=lacking | {act.Release})

    found = shorter(history, profile)

    assert found
    assert all(size(one) < size(history) for one in found)
    assert profile.actions.issuperset(type(step) for one in found for step in one)


def size(history: History) -> tuple[int, int, int]:
    """The measure that every change lowers, as a second reader computes it."""
    reserved = [step for step in history if isinstance(step, act.Reserve)]
    cloned = [step for step in history if isinstance(step, act.Clone)]
    prefilled = [step for step in history if isinstance(step, act.Prefill)]
    return (
        len(history),
        sum(one.n_generations for step in prefilled for one in step.requests),
        sum(step.slot is not None for step in reserved)
        + sum(step.context != 0 for step in reserved)
        + sum(step.child is not None for step in cloned),
    )


@pytest.mark.parametrize("seed", range(5))
def test_sequences_get_their_slots_back(seed: int) -> None:
    """A history that is not changed is the same one."""
    history, profile = drawn(SIZES, seed, 40), profile_of()

    assert history == with_slots(told_of(history, profile), profile)


class LosesCounts(SpecEngine):
    """A publication lowers the count of the page that it enters, where a row names the page."""

    def observe(self) -> View:
        """The view, with the wrong counts in it."""
        seen, held = super().observe(), self.state.indexed
        assert seen.counts is not None
        pairs = zip(seen.counts, held, strict=True)
        return evolve(seen, counts=tuple(count - (count > 0 and bool(one)) for count, one in pairs))


def least_of(*, without: frozenset[type], seed: int) -> Finding:
    """A shortest history that shows the bug, of one with much beside it."""
    limits = default_limits(SIZES)

    def make(sizes: Geometry, limits: Limits) -> SpecEngine:
        kept = ACTIONS - without
        return LosesCounts(sizes, limits, CleanupMode.INCREMENTAL, actions=kept)

    steps: list[act.Action] = [act.Reserve(3), act.Free(3), *WRITTEN]  # type: ignore[list-item]
    draws = Random(seed)
    for at in sorted(draws.sample(range(len(steps)), 4), reverse=True):
        steps.insert(at, act.Purge(0) if draws.random() < 0.5 else act.Free(2))
    again = partial(make, SIZES, limits)
    found = replay(again, (*steps, act.Publish(0, 4)))
    assert found is not None
    return shrink(again, found, seconds=60)


@pytest.mark.parametrize("seed", range(2))
def test_a_planted_bug_is_shown_by_a_prefill_only_if_the_engine_offers_it(seed: int) -> None:
    """Two steps show it; without prefills it takes the four that write the text, and one."""
    with_prefill = least_of(without=frozenset(), seed=seed)
    alone = least_of(without=frozenset({act.Prefill}), seed=seed)

    kinds = [[type(step) for step in found.history] for found in (with_prefill, alone)]
    assert [
        [act.Prefill, act.Publish],
        [act.Reserve, act.Assign, act.Allocate, act.Write, act.Publish],
    ] == kinds
    assert with_prefill.clause == alone.clause
