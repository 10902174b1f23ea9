"""What is called impossible never happens, and what is called possible does, in small engines.

Every history of each engine is explored. An engine lacks actions, a second slot, a short pool or a
cleanup, so that each entry of the tables is asked for with and without what it needs.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import get_args

import pytest
from attrs import evolve, fields
from deep import deep_after
from spec_engine import MACHINE, SpecEngine, small

from conformance.protocol import Action, Profile
from conformance.rungs import possible
from conformance.rungs.coverage import conditions, possible_at
from conformance.rungs.possible import Kind, Outcome, Pair, as_item
from conformance.rungs.record import CHUNK_PAST_RING, FREES, QUEUE_PAST_RING, SHORT_POOL
from spec.machines import actions as act
from spec.machines import prefix
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import CleanupMode, Geometry, Params, Reason, Request, default_limits
from spec.vocabulary.capacity import STANDARD, Capacity, Copy, Reservation

TABLE = frozenset({act.Reserve, act.Allocate, act.Free, act.Reset})
CLONES = frozenset({act.Reserve, act.Assign, act.Allocate, act.Write, act.Clone, act.Free})
QUEUE = frozenset(
    {
        *(act.Reserve, act.Assign, act.Allocate, act.Write, act.Enqueue, act.Pack, act.Purge),
        *(act.Round, act.Free),
    }
)
DRAFTS = frozenset(
    {
        *(act.Reserve, act.Assign, act.Append, act.Allocate, act.Write, act.Propose, act.Commit),
        act.Truncate,
    }
)
WAITING = frozenset({act.Submit, act.Admit, act.Generate, act.TakeOutputs, act.FreeFinished})
SERVES = frozenset({act.Prefill, act.Round, act.TakeOutputs, act.Free, act.Clone})
ONE_SLOT = small(pages=2, page_size=1, slots=1, pages_per_seq=3)
TWO_SLOTS = small(pages=3, page_size=1, slots=2, pages_per_seq=2)
PLENTY = small(pages=4, page_size=1, slots=2, pages_per_seq=2)
HALF_FULL = small(pages=1, page_size=2, slots=2, pages_per_seq=1)
RINGED = [
    small(pages=2, page_size=1, slots=1, pages_per_seq=3, window=1),
    small(pages=3, page_size=1, slots=1, pages_per_seq=4, window=1),
    small(pages=2, page_size=2, slots=1, pages_per_seq=2, window=1),
]
POLICIES = [
    Capacity(copy=copy, lookahead=lookahead, reserve=reserve)
    for copy, lookahead, reserve in product(get_args(Copy), (0, 1), get_args(Reservation))
]
MOST_STATES = 30_000
"""More states than any of these engines has."""
STOPS = ((1,),) * 3


def moves(sizes: Geometry, kind: type) -> Iterator[Action]:  # noqa: C901, PLR0912, PLR0915 - a table
    """Actions of a class with small values, legal and illegal, and some that never are legal."""
    slots, cells = range(sizes.slots + 1), range(sizes.max_len + 1)
    width = default_limits(sizes).prefill_tokens
    news = (1, sizes.max_len - 1, sizes.max_len + 1)
    if kind is act.Reserve:
        yield act.Reserve()
    if kind in {act.Reserve, act.Free, act.Purge}:
        yield from (kind(slot) for slot in slots)
    if kind is act.Append:
        yield from (act.Append(slot, (1,) * more) for slot in slots for more in (1, 9))
    if kind is act.Propose:
        yield from (act.Propose(slot, (1,) * more) for slot in slots for more in (1, 9))
    if kind is act.Enqueue:
        yield from (act.Enqueue(slot, 1) for slot in slots)
    if kind in {act.Allocate, act.Write}:
        yield from (kind(batch) for batch in ((), (None,) * (width + 1)))
        yield from (kind(((slot, cell),)) for slot in slots for cell in cells)
    if kind in {act.Commit, act.Truncate}:
        yield from (kind(slot, length) for slot in slots for length in cells)
    if kind is act.Clone:
        children = (None, *slots)
        every = product(slots, children, (0, 1))
        yield from (act.Clone(parent, child, choice) for parent, child, choice in every)
    if kind is act.Assign:
        yield from (
            act.Assign(slot, (1,), Params(max_new=max(1, new)), 0, choice)
            for slot in slots
            for new in news
            for choice in (0, 1)
        )
        yield from (act.Assign(slot, (1,), Params(max_new=1, stops=STOPS), 0) for slot in slots)
        yield from (act.Assign(slot, (1, 1), Params(max_new=1), 0) for slot in slots)
    if kind in {act.Prefill, act.Submit}:
        for number, new, choices in product((1, 2), news, (1, sizes.slots + 1)):
            params = Params(max_new=max(1, new))
            request = Request(id=number, prompt=(1,), params=params, n_generations=choices)
            yield act.Submit(request) if kind is act.Submit else act.Prefill((request,))
        odd = evolve(request, params=Params(max_new=1, stops=STOPS), n_generations=1)
        plain = evolve(odd, params=Params(max_new=1))
        if kind is act.Submit:
            yield act.Submit(odd)
        else:
            yield from (act.Prefill(()), act.Prefill((odd,)), act.Prefill((plain, plain)))
    if kind is act.Reset or not fields(kind):
        yield kind()
    if kind in {act.Hit, act.Publish}:
        yield from (kind(slot, length) for slot in slots for length in cells)
    if kind is act.Share:
        pairs = ((parent, slot) for parent in slots for slot in slots)
        yield from (act.Share(*pair, length) for pair in pairs for length in cells)
    if kind is act.MixedRound:
        whole = tuple((slot, 1) for slot in range(sizes.slots))
        yield from (act.MixedRound(chunks) for chunks in ((), ((0, 1), (0, 1)), whole))
        yield from (
            act.MixedRound(((slot, count),)) for slot in slots for count in (1, 2, sizes.max_len)
        )
    if kind is act.Dispatch:
        whole = tuple((slot, 1) for slot in range(sizes.slots))
        yield from (act.Dispatch(chunks) for chunks in ((), ((0, 1), (0, 1)), whole))
        yield from (
            act.Dispatch(((slot, count),)) for slot in slots for count in (1, 2, sizes.max_len)
        )
    if kind is act.Preempt:
        yield from (act.Preempt(request) for request in (0, 1, 3))
    if kind is act.Replay:
        yield from (act.Replay(slot, (1,) * more) for slot in slots for more in (1, sizes.max_len))
    if kind is act.Merge:
        yield from (act.Merge(slot, entry) for slot in slots for entry in range(3))
    if kind is act.Evict:
        yield from (act.Evict((1,) * length) for length in (1, 2))


@cache
def explored(
    kinds: frozenset[type],
    sizes: Geometry,
    cleanup: CleanupMode,
    capacity: Capacity = STANDARD,
    guarded: frozenset[Reason] = frozenset(),
) -> tuple[Profile, set[Outcome], set[Pair]]:
    """Every outcome of an engine with these actions, and every pair of steps.

    guarded: reasons for which no action is tried.
    """
    limits = evolve(default_limits(sizes), round_tokens=max(2, sizes.slots))
    profile = SpecEngine(sizes, limits, cleanup, capacity=capacity, actions=kinds).profile
    profile = evolve(profile, guarded=guarded)
    machine = profile.machine
    alphabet = [move for kind in kinds for move in moves(sizes, kind)]
    first = machine.initial(sizes, limits, cleanup, capacity)
    states, found = [first], set[Outcome]()
    before: dict[State, set[Kind]] = {first: set()}
    after: dict[State, set[Kind]] = {}
    for state in states:  # grows as it is walked
        assert len(states) < MOST_STATES
        after[state] = set()
        for action in alphabet:
            then, reasons = _taken(machine, state, action)
            if not guarded.isdisjoint(reasons):
                continue
            if not reasons or len(reasons) == 1:
                found |= {Outcome(type(action), reason) for reason in reasons or (None,)}
            kind = Kind(type(action), bool(reasons))
            after[state].add(kind)
            if then not in before:
                before[then] = set()
                states.append(then)
            before[then].add(kind)
    pairs = {(one, other) for state in states for one in before[state] for other in after[state]}
    return profile, found, pairs


def _taken(machine: Machine, state: State, action: Action) -> tuple[State, frozenset[Reason]]:
    reasons = frozenset(one.reason for one in machine.refusals(state, action))
    return (state if reasons else machine.effect(state, action)), reasons


EXACT = [
    (TABLE, TWO_SLOTS, CleanupMode.NONE),
    (TABLE, PLENTY, CleanupMode.NONE),
    (TABLE - {act.Reserve}, TWO_SLOTS, CleanupMode.NONE),
    (CLONES, TWO_SLOTS, CleanupMode.NONE),
    (CLONES - {act.Assign}, TWO_SLOTS, CleanupMode.NONE),
    (CLONES - {act.Allocate}, TWO_SLOTS, CleanupMode.NONE),
    (WAITING - {act.Submit}, ONE_SLOT, CleanupMode.INCREMENTAL),
]
"""Engines that are large enough for all that their actions can bring about."""
FLIGHTS = frozenset({act.Reserve, act.Assign, act.Free, act.Dispatch, act.Retire, act.Deliver})
CHUNKS = QUEUE.difference({act.Round}).union({act.MixedRound})
AGAIN = frozenset({act.Preempt, act.Replay})
STARTS = AGAIN.union({act.Reserve, act.Assign, act.Purge})
INDEX = CLONES.difference({act.Clone}).union(prefix.RUNG.rules)
SMALLER = [
    (INDEX, small(pages=2, page_size=1, slots=1, pages_per_seq=3), CleanupMode.NONE),
    (INDEX, small(pages=1, page_size=1, slots=1, pages_per_seq=3), CleanupMode.NONE),
    (INDEX - {act.Free}, small(pages=2, page_size=1, slots=1, pages_per_seq=3), CleanupMode.NONE),
    (TABLE, ONE_SLOT, CleanupMode.NONE),
    (CLONES, ONE_SLOT, CleanupMode.NONE),
    (DRAFTS, ONE_SLOT, CleanupMode.NONE),
    (DRAFTS - {act.Propose}, ONE_SLOT, CleanupMode.NONE),
    (QUEUE, ONE_SLOT, CleanupMode.NONE),
    (QUEUE, ONE_SLOT, CleanupMode.END),
    (QUEUE - {act.Enqueue}, ONE_SLOT, CleanupMode.NONE),
    (QUEUE - {act.Write}, ONE_SLOT, CleanupMode.NONE),
    (CHUNKS, ONE_SLOT, CleanupMode.NONE),
    (CHUNKS, ONE_SLOT, CleanupMode.INCREMENTAL),
    (CHUNKS - {act.Assign, act.Enqueue}, ONE_SLOT, CleanupMode.NONE),
    (CHUNKS - {act.Allocate, act.Enqueue}, TWO_SLOTS, CleanupMode.END),
    (STARTS.union({act.MixedRound, act.Enqueue}), ONE_SLOT, CleanupMode.NONE),
    (STARTS.union({act.MixedRound}), ONE_SLOT, CleanupMode.INCREMENTAL),
    (STARTS.union({act.MixedRound}) - {act.Assign}, ONE_SLOT, CleanupMode.NONE),
    (STARTS.union({act.MixedRound}), TWO_SLOTS, CleanupMode.END),
    (STARTS.union({act.Propose}), ONE_SLOT, CleanupMode.NONE),
    (STARTS.union({act.Propose}) - {act.Purge}, ONE_SLOT, CleanupMode.NONE),
    (SERVES.union(AGAIN) - {act.Free}, ONE_SLOT, CleanupMode.NONE),
    (
        INDEX.union({act.Preempt}) - {act.Free},
        small(pages=2, page_size=1, slots=1, pages_per_seq=3),
        CleanupMode.NONE,
    ),
    (FLIGHTS, ONE_SLOT, CleanupMode.NONE),
    (FLIGHTS.union({act.Enqueue, act.TakeOutputs}), ONE_SLOT, CleanupMode.INCREMENTAL),
    (FLIGHTS.union({act.Enqueue, act.Allocate, act.Write}), ONE_SLOT, CleanupMode.END),
    (FLIGHTS.union({act.Propose, act.Commit, act.Truncate}), ONE_SLOT, CleanupMode.NONE),
    (FLIGHTS.union({act.Clone, act.Reset}) - {act.Free}, TWO_SLOTS, CleanupMode.INCREMENTAL),
    (FLIGHTS.union({act.Preempt, act.Replay, act.MixedRound}), ONE_SLOT, CleanupMode.NONE),
    (FLIGHTS.union({act.Prefill, act.Round}) - {act.Assign}, ONE_SLOT, CleanupMode.NONE),
    (FLIGHTS.union({act.Submit, act.Admit}) - {act.Reserve}, ONE_SLOT, CleanupMode.NONE),
    (FLIGHTS - {act.Assign}, ONE_SLOT, CleanupMode.NONE),
    (FLIGHTS - {act.Retire}, ONE_SLOT, CleanupMode.NONE),
    (WAITING, ONE_SLOT, CleanupMode.NONE),
    (WAITING, ONE_SLOT, CleanupMode.INCREMENTAL),
    (SERVES, ONE_SLOT, CleanupMode.NONE),
    *((SERVES, PLENTY, cleanup) for cleanup in CleanupMode),
]


@pytest.mark.parametrize(("kinds", "sizes", "cleanup"), deep_after(len(EXACT), [*EXACT, *SMALLER]))
def test_no_history_shows_what_is_called_impossible(
    kinds: frozenset[type], sizes: Geometry, cleanup: CleanupMode
) -> None:
    """Every outcome and every pair of steps of a small engine is called possible."""
    profile, found, after = explored(kinds, sizes, cleanup)
    outcomes, pairs = possible_at(profile)

    assert [] == sorted(map(str, found.difference(outcomes)))
    assert [] == sorted(map(as_item, after - pairs))


@pytest.mark.parametrize(
    "capacity",
    deep_after(1, reversed([(one,) for one in POLICIES])),
    ids=str,
)
@pytest.mark.parametrize("sizes", [TWO_SLOTS, HALF_FULL])
@pytest.mark.parametrize("kinds", [CLONES, SERVES])
def test_no_policy_shows_what_is_called_impossible(
    kinds: frozenset[type], sizes: Geometry, capacity: Capacity
) -> None:
    """Whenever pages are taken, every outcome and every pair of steps is called possible."""
    profile, found, after = explored(kinds, sizes, CleanupMode.INCREMENTAL, capacity)
    outcomes, pairs = possible_at(profile)

    assert [] == sorted(map(str, found.difference(outcomes)))
    assert [] == sorted(map(as_item, after - pairs))


def test_a_history_shows_each_pair_that_is_called_possible_beside_a_step_in_flight() -> None:
    """Of an engine with one slot, too: a step in flight may hold it."""
    sizes = small(pages=3, page_size=1, slots=1, pages_per_seq=4)
    kinds = FLIGHTS.union({act.Enqueue, act.Reset})
    profile, found, after = explored(kinds, sizes, CleanupMode.NONE)
    outcomes, pairs = possible_at(profile)

    assert pairs == after
    assert {"BATCH_WIDTH", "OUTPUTS_FULL", "OUT_OF_PAGES"} == {
        one.reason.name for one in {*outcomes} - found if one.reason is not None
    }  # no prompt here is so long, and no output so many


@pytest.mark.parametrize(("kinds", "sizes", "cleanup"), EXACT)
def test_a_history_shows_each_thing_that_is_called_possible(
    kinds: frozenset[type], sizes: Geometry, cleanup: CleanupMode
) -> None:
    """What is called possible of an engine that is large enough comes in some history."""
    profile, found, after = explored(kinds, sizes, cleanup)
    outcomes, pairs = possible_at(profile)

    assert [] == sorted(map(str, {*outcomes} - found))
    assert [] == sorted(map(as_item, pairs - after))


@pytest.mark.parametrize("kinds", [TABLE, CLONES])
def test_guards_above_the_engine_leave_each_thing_that_is_called_possible(
    kinds: frozenset[type],
) -> None:
    """Of most engines the layer above rules out all but a lack of slots and of pages."""
    guarded = frozenset(Reason) - {Reason.NO_FREE_SLOT, Reason.OUT_OF_PAGES}
    sizes = small(pages=2, page_size=1, slots=2, pages_per_seq=3)
    profile, found, after = explored(kinds, sizes, CleanupMode.NONE, guarded=guarded)
    outcomes, pairs = possible_at(profile)

    assert {*outcomes} == found
    assert pairs == after


@pytest.mark.parametrize("sizes", RINGED)
@pytest.mark.parametrize("kinds", [CLONES, QUEUE, CHUNKS])
def test_a_ring_shows_what_is_called_possible(kinds: frozenset[type], sizes: Geometry) -> None:
    """Nothing comes that is called impossible, and what is too long is exactly what is said."""
    ring = Capacity(ring=1)
    profile, found, after = explored(kinds, sizes, CleanupMode.INCREMENTAL, ring)
    outcomes, pairs = possible_at(profile)

    assert [] == sorted(map(str, found.difference(outcomes)))
    assert [] == sorted(map(as_item, after - pairs))
    long = {one for one in outcomes if one.reason is Reason.TOO_LONG}
    assert long == {one for one in found if one.reason is Reason.TOO_LONG}


def test_every_outcome_of_the_guards_is_possible_or_named() -> None:
    """Of the pairs of an action and a reason in the guards, a few need another policy."""
    profile = SpecEngine(small(window=5), default_limits(small()), CleanupMode.NONE).profile
    words = conditions(profile, [profile.geometry], poisonable=True, cleanups=[CleanupMode.NONE])
    found = possible.outcomes(profile, words | {FREES, SHORT_POOL})

    reasons = {(kind, reason) for kind in MACHINE.calls for reason in MACHINE.reasons(kind)}
    assert reasons == {(one.kind, one.reason) for one in found if one.reason is not None}
    assert {
        "Assign: OUT_OF_PAGES": "needs pages reserved for a request",
        "Hit: OUT_OF_PAGES": "needs pages taken ahead",
        "Share: OUT_OF_PAGES": "needs pages taken ahead",
        "Round: TOO_LONG": f"needs {QUEUE_PAST_RING}",
        "MixedRound: TOO_LONG": f"needs {CHUNK_PAST_RING}",
    } == {str(one): needs for one, needs in found.items() if needs is not None}


@pytest.mark.parametrize(
    ("without", "item", "needs"),
    [
        (act.Propose, "Clone: PROPOSED", "needs a draft"),
        (act.Reserve, "Clone: SLOT_EMPTY", "needs a slot without a prompt"),
        (act.Allocate, "Round: UNWRITTEN", "needs Allocate"),
        (act.Submit, "Admit: OUTPUTS_FULL", "needs a waiting request"),
        (act.Commit, "Clone: PROPOSED", None),
    ],
)
def test_what_is_lacking_is_named(without: type, item: str, needs: str | None) -> None:
    """An outcome that cannot be has the first thing that it lacks."""
    profile = SpecEngine(
        small(), default_limits(small()), CleanupMode.NONE, actions=MACHINE.calls - {without}
    ).profile
    words = conditions(profile, [small()], poisonable=True, cleanups=[*CleanupMode])
    found = {str(one): why for one, why in possible.outcomes(profile, words).items()}

    assert needs == found[item]


def test_what_the_layer_above_rules_out_is_named() -> None:
    """A guarded reason is no outcome, and the report says why."""
    engine = SpecEngine(small(), default_limits(small()), CleanupMode.NONE)
    profile = evolve(engine.profile, guarded={(act.Free, Reason.SLOT_RANGE)})
    outcomes, _ = possible_at(profile)

    assert Outcome(act.Free, Reason.SLOT_RANGE) not in outcomes
    assert Outcome(act.Free, Reason.SLOT_UNUSED) in outcomes
    assert (
        "the layer above the engine rules it out"
        == possible.outcomes(profile, [])[Outcome(act.Free, Reason.SLOT_RANGE)]
    )


def test_rare_outcomes_take_what_an_action_before_has_left() -> None:
    """A full queue is rare; a slot that is not in use is not, nor is a policy."""
    assert Outcome(act.Admit, Reason.QUEUE_FULL).is_rare
    assert Outcome(act.Write, Reason.BATCH_QUEUED).is_rare
    assert not Outcome(act.Write, Reason.SLOT_UNUSED).is_rare
    assert not Outcome(act.Clone, Reason.OUT_OF_PAGES).is_rare
    assert not Outcome(act.Round, None).is_rare
