"""Coverage against a second count of it: words of sizes, steps one after another, and corners."""

from collections import Counter
from collections.abc import Callable, Collection
from itertools import combinations, product
from random import Random

import pytest
from attrs import evolve
from spec_draws import propose
from spec_engine import SpecEngine, small

from conformance.protocol import Batches, Profile
from conformance.rungs.coverage import (
    EXPECTED,
    MOSTLY,
    POISON,
    POISONED,
    Coverage,
    conditions,
    offered_by,
    possible_at,
)
from conformance.rungs.pages import PAGE_REUSED, REFUSED, SHORT, SHORT_AHEAD, SLOT_REUSED
from conformance.rungs.possible import Kind, Outcome, as_item, is_seldom
from conformance.rungs.record import (
    AHEAD,
    CHAINS,
    EAGER_COPY,
    FOUR_STEPS,
    FREES,
    FULL_BESIDE,
    FULL_POOL,
    FULL_QUEUE,
    GIVES_BACK,
    HITS,
    KEEPS,
    LAZY,
    LONG_ROWS,
    MERGES_ASKED,
    ONE_SHORT,
    PART_ROUNDS,
    REFUSAL,
    RESERVED,
    SEVERAL_CELLS,
    SEVERAL_PAGES,
    SEVERAL_SLOTS,
    SHARED_FULL,
    SHORT_POOL,
    SHORT_ROUNDS,
    SINGLE_CELLS,
    THREE_CHOICES,
    THREE_OWNERS,
    THREE_SLOTS,
    TWO_SHORT,
    TWO_SLOTS,
    WHOLE_PAGE,
    WIDE_ROUNDS,
)
from conformance.rungs.scheduling import CHOICES_SHORT
from conformance.rungs.sharing import SHARED
from spec import ladder
from spec.cells import POISON as DEAD
from spec.machines import actions as act
from spec.machines.actions import Action
from spec.state import State
from spec.vocabulary import (
    STANDARD,
    Capacity,
    CleanupMode,
    Geometry,
    Limits,
    Reason,
    default_limits,
)

SERVING = ladder.machine("admission", "window")
POLICIES = (
    STANDARD,
    Capacity(copy="lazy"),
    Capacity(lookahead=1),
    Capacity(lookahead=3, reserve="request"),
    Capacity(copy="lazy", reserve="request"),
)
GEOMETRIES = tuple(
    small(pages=pages, page_size=size, slots=slots, pages_per_seq=row)
    for pages, size, slots, row in product(range(1, 9), range(1, 4), range(1, 5), range(1, 4))
)


def widths(sizes: Geometry, least: int, fewest: int) -> set[int]:
    """The pages that rows can have together. least: of a row. fewest: of rows."""
    row = range(least, sizes.pages_per_seq + 1)
    return {
        sum(rows) for count in range(fewest, sizes.slots + 1) for rows in product(row, repeat=count)
    }


def first_width(sizes: Geometry, capacity: Capacity) -> int:
    """The pages of a row with its first cell, or with as few as a request can reserve."""
    if capacity.reserve == "request":
        return 1
    cells = min(1 + capacity.lookahead, sizes.page_size * sizes.pages_per_seq)
    return len({cell // sizes.page_size for cell in range(cells)})


OF_SIZES: dict[str, Callable[[Geometry], bool]] = {
    SINGLE_CELLS: lambda one: one.page_size == 1,
    SEVERAL_CELLS: lambda one: one.page_size >= 2,
    SEVERAL_SLOTS: lambda one: one.slots >= 2,
    TWO_SLOTS: lambda one: one.slots >= 2,
    THREE_SLOTS: lambda one: one.slots >= 3,
    SEVERAL_PAGES: lambda one: one.pages >= 2,
    FULL_POOL: lambda one: one.pages in widths(one, 0, 1),
    SHORT_POOL: lambda one: one.pages + 1 in widths(one, 0, 1),
    SHARED_FULL: lambda one: (
        one.page_size >= 2
        and one.pages >= 2
        and one.pages in widths(evolve(one, slots=one.slots - 1) if one.slots > 1 else one, 0, 1)
        and one.slots >= 2
    ),
    THREE_OWNERS: lambda one: one.page_size >= 2 and one.slots >= 3 and one.pages >= 3,
    WHOLE_PAGE: lambda one: one.pages_per_seq > 1,
    CHAINS: lambda one: one.pages_per_seq > 2,
    HITS: lambda one: one.pages_per_seq > 2 or (one.pages_per_seq == 2 and one.page_size > 1),
    THREE_CHOICES: lambda one: (
        one.page_size >= 2
        and one.slots >= 3
        and 2 <= one.pages <= (one.slots - 2) * one.pages_per_seq + 1
    ),
}
"""For each word of the sizes alone, whether it is true of a geometry."""

OF_LIMITS: dict[str, Callable[[Geometry, Limits, int], bool]] = {
    FULL_QUEUE: lambda sizes, limits, row: sizes.slots * row >= limits.queue + 1,
    FULL_BESIDE: lambda sizes, limits, row: sizes.slots * row >= limits.queue + row,
    LONG_ROWS: lambda _, limits, row: row >= limits.rounds + 1,
    PART_ROUNDS: lambda _, limits, row: (
        limits.queue > limits.round_tokens and row > limits.round_tokens
    ),
    SHORT_ROUNDS: lambda sizes, limits, row: sizes.slots * (row + 1) >= limits.round_tokens + 1,
    WIDE_ROUNDS: lambda _sizes, limits, _row: limits.round_tokens >= 2,
    FOUR_STEPS: lambda sizes, _limits, row: sizes.slots * (row + 1) >= 4,
}
"""For each word of the limits, whether it is true. row: the most tokens of a slot that wait."""


def expected_words(
    profile: Profile,
    geometries: Collection[Geometry],
    cleanups: Collection[CleanupMode],
    limits: Callable[[Geometry], Limits],
) -> set[str]:
    """The words that are true of an engine at these geometries."""
    capacity = Capacity(copy=profile.copy, lookahead=profile.lookahead, reserve=profile.reserve)
    words = {word for word, holds in OF_SIZES.items() if any(map(holds, geometries))}
    for one in geometries:
        row = one.page_size * one.pages_per_seq - 2
        words |= {word for word, holds in OF_LIMITS.items() if holds(one, limits(one), row)}
        least = first_width(one, capacity)
        for word, rows in ((ONE_SHORT, 1), (TWO_SHORT, 2)):
            if one.pages + 1 in widths(one, least, rows):
                words.add(word)
    words |= {LAZY} if profile.copy == "lazy" else {EAGER_COPY} & words
    words |= {MERGES_ASKED} if act.Merge in profile.actions else set()
    if profile.copy == "eager" and SEVERAL_CELLS in words:
        words.add(EAGER_COPY)
    if profile.lookahead:
        words.add(AHEAD)
    if profile.reserve == "request":
        words.add(RESERVED)
    words |= {GIVES_BACK for one in geometries if gives_back(one, capacity)}
    for mode in cleanups:
        if mode is not CleanupMode.NONE:
            words.add(FREES)
        if mode is CleanupMode.NONE or (mode is CleanupMode.END and TWO_SLOTS in words):
            words.add(KEEPS)
    return words | {kind.__name__ for kind in profile.actions}


def gives_back(sizes: Geometry, capacity: Capacity) -> bool:
    """Whether a later cell that a sequence writes, with those taken ahead of it, begins a page."""
    if capacity.reserve == "request":
        return False
    longest = sizes.page_size * sizes.pages_per_seq
    ends = (cells + capacity.lookahead for cells in range(1, longest - 1))
    pages = (end // sizes.page_size for end in ends if end < longest and not end % sizes.page_size)
    return any(page < sizes.pages for page in pages)


BATCHES: tuple[Batches, ...] = ("several slots", "one slot")
MODES = [modes for size in range(4) for modes in combinations(CleanupMode, size)]
"""Every choice of cleanups."""


@pytest.mark.parametrize("capacity", POLICIES)
def test_the_words_of_an_engine_are_those_of_its_sizes(capacity: Capacity) -> None:
    """At each small geometry, and at any two together, the words are what a second reader finds."""
    draws = Random(1)
    kinds = frozenset({act.Reserve, act.Allocate, act.Free})
    engine = SpecEngine(
        GEOMETRIES[0],
        default_limits(GEOMETRIES[0]),
        CleanupMode.END,
        actions=kinds,
        capacity=capacity,
    )
    several = [(), *((one,) for one in GEOMETRIES), *(draws.sample(GEOMETRIES, 2) for _ in MODES)]
    for at, geometries in enumerate(several):
        changes = {"queue": 3 + at % 5, "rounds": 1 + at % 4, "round_tokens": 1 + at % 3}

        def limits(sizes: Geometry, changes: dict[str, int] = changes) -> Limits:
            return evolve(default_limits(sizes), **changes)

        cleanups = MODES[at % len(MODES)]
        words = expected_words(engine.profile, geometries, cleanups, limits)
        for poisonable, batches in product((False, True), BATCHES):
            profile: Profile = evolve(engine.profile, batches=batches)
            seen = conditions(
                profile, geometries, poisonable=poisonable, cleanups=cleanups, limits=limits
            )
            wanted = words | {POISON} if poisonable else words
            assert wanted - ({SEVERAL_SLOTS} if batches == "one slot" else set()) == seen


def test_the_words_have_by_default_the_limits_of_each_size_and_every_cleanup() -> None:
    """What is not given is what an engine is fuzzed with."""
    for sizes in GEOMETRIES[::7]:
        engine = SpecEngine(sizes, default_limits(sizes), CleanupMode.NONE)
        profile = engine.profile
        words = expected_words(profile, [sizes], tuple(CleanupMode), default_limits)
        offered = offered_by(profile, [sizes], poisonable=False)
        without = offered_by(profile, [sizes], poisonable=False, rare=False)
        outcomes, _ = possible_at(profile)

        assert conditions(profile, [sizes], poisonable=False, cleanups=[*CleanupMode]) == words
        assert {word for word in offered if ": " not in word} == words | {REFUSAL}
        assert {str(one) for one in outcomes} == {word for word in offered if ": " in word}
        assert offered_by(
            profile, [sizes], poisonable=False, cleanups=[CleanupMode.NONE], rare=False
        ) >= {str(one) for one in outcomes if not one.is_rare}
        assert {word for word in offered - without if ": " in word} == offered - without
        assert not [one for one in outcomes if one.is_rare and str(one) in without]


def test_no_refusal_is_offered_where_each_reason_is_guarded() -> None:
    """An engine that offers no action that can be refused is held to no refusal."""
    engine = SpecEngine(
        small(), default_limits(small()), CleanupMode.NONE, actions=frozenset({act.Reset})
    )

    words = offered_by(engine.profile, [small()], poisonable=False)

    assert (True, False) == ("Reset: done" in words, REFUSAL in words)


KINDS = (act.Reserve, act.Free, act.Round, act.Pack)
REASONS = (Reason.SLOT_RANGE, Reason.SLOT_USED, Reason.TOO_LONG)


@pytest.mark.parametrize("seed", range(5))
def test_every_count_is_that_of_a_list_of_the_steps(seed: int) -> None:
    """Outcomes, pairs, corners and all that is made of them agree with a list of what was done."""
    draws, coverage = Random(seed), Coverage()
    assert 0 == coverage.poisoned_nothing
    steps = list[tuple[type, frozenset[Reason]]]()
    last: Kind | None = None
    pairs, corners = Counter[tuple[Kind, Kind]](), Counter[str]()
    for _ in range(60):
        kind, corner = draws.choice(KINDS), draws.choice(("a", "b"))
        reasons = frozenset(draws.sample(REASONS, draws.choice((0, 0, 1, 2))))
        if not draws.randrange(12):
            coverage.begin()
            last = None
        every = [Kind(one, refused) for one in KINDS for refused in (False, True)]
        here = last
        assert {now: pairs[here, now] if here else 0 for now in every} == {
            now: coverage.times_next(now) for now in every
        }
        assert {now: pairs[every[0], now] for now in every} == {
            now: coverage.times_next(now, every[0]) for now in every
        }
        seen = Counter(Kind(one, bool(why)) for one, why in steps)
        assert {pair: coverage.lacking(pair) for pair in product(every, every)} == {
            pair: (pairs[pair], -min(seen[one] for one in pair)) for pair in product(every, every)
        }
        coverage.count(kind, reasons, [corner, corner])
        steps.append((kind, reasons))
        corners.update({corner: 2, REFUSED: bool(reasons)})
        now = Kind(kind, bool(reasons))
        pairs[last, now] += last is not None  # type: ignore[index]
        last = now
        assert now == coverage.last

    outcomes = Counter(Outcome(kind, why) for kind, found in steps for why in found or (None,))
    assert {kind for kind, _ in steps} == coverage.kinds
    assert len(steps) == coverage.steps
    assert Counter(kind.__name__ for kind, _ in steps) == coverage.actions
    assert {str(one): times for one, times in outcomes.items()} == coverage.outcomes
    assert +pairs == coverage.pairs
    assert +corners == coverage.corners
    for one, found in steps:
        assert max(outcomes[Outcome(one, why)] for why in found or (None,)) == coverage.most(
            one, found
        )
    assert all(times == coverage.times(one) for one, times in outcomes.items())
    coverage.poisoned()
    items = {str(one): times for one, times in outcomes.items()} | dict(+corners) | {POISONED: 1}
    items |= {as_item(pair): times for pair, times in (+pairs).items()}
    assert items == coverage.times_of_items
    assert [*items] == coverage.covered([*items, "nothing of this"])


@pytest.mark.parametrize("times", [(60, 60), (60, 59), (80, 40, 60, 30)])
def test_what_comes_often_apart_is_expected_together(times: tuple[int, ...]) -> None:
    """A pair is expected from so many steps on that it would have come often by chance."""
    kinds = [Kind(one, refused) for one in KINDS[:3] for refused in (False, True)]
    every, coverage = [*product(kinds, kinds)], Coverage()
    steps = Counter(dict(zip((kinds[0], kinds[4], kinds[1], kinds[2]), times, strict=False)))
    for kind in steps.elements():
        coverage.count(kind.kind, frozenset(REASONS[:1] if kind.refused else ()), ())

    for words in ((), (LONG_ROWS,)):
        seen = coverage.expected(every, words)

        enough = EXPECTED * sum(times)
        often = [pair for pair in every if steps[pair[0]] * steps[pair[1]] >= enough]
        assert [pair for pair in often if not is_seldom(pair, words)] == seen


def test_without_steps_no_pair_is_expected() -> None:
    """A run that ends before its first step lacks outcomes and corners alone."""
    kinds = [Kind(one, refused) for one in KINDS[:3] for refused in (False, True)]

    assert [] == Coverage().expected([*product(kinds, kinds)], ())


@pytest.mark.parametrize("done", [0, 1, 3])
def test_an_action_is_mostly_withheld_beyond_so_many_refusals_for_each_that_is_done(
    done: int,
) -> None:
    """At nine refusals of legal calls for each done it is not told, and at one more it is."""
    coverage = Coverage()
    for kind in (act.Reserve, act.Free):
        for _ in range(done):
            coverage.count(kind, frozenset(), ())
    edge = MOSTLY * done

    coverage.withheld.update({act.Reserve: edge + 1, act.Free: edge})

    total = edge + 1 + done
    assert [f"Reserve: refused {edge + 1} of {total} legal calls"] == coverage.mostly_withheld


def one_page_more(state: State) -> State:
    """The same state in a pool with one more page, which is free."""
    sizes = evolve(state.geometry, pages=state.geometry.pages + 1)
    dead = (DEAD,) * sizes.page_size
    return state._replace(geometry=sizes, counts=(*state.counts, 0), cells=(*state.cells, dead))


def without_policy(state: State) -> State:
    """The same rows under a policy that takes no page ahead."""
    found = tuple(one and evolve(one, reserved=0) for one in state.sequences)
    return state._replace(capacity=Capacity(copy=state.capacity.copy), sequences=found)


def lacks(state: State, action: Action) -> bool:
    """Whether the action is refused for lack of pages."""
    reasons = {found.reason for found in SERVING.refusals(state, action)}
    return Reason.OUT_OF_PAGES in reasons


def corners_of_refusal(state: State, action: Action) -> set[str]:
    """The corners that are reached where pages lack: one page more would do."""
    if not isinstance(action, act.Allocate | act.Clone | act.Assign | act.Prefill):
        return set()  # the others take pages by their parts
    if not lacks(state, action) or lacks(one_page_more(state), action):
        return set()
    found = {SHORT}
    if isinstance(action, act.Prefill) and any(
        one.n_generations >= 3 and len(one.prompt) % state.geometry.page_size
        for one in action.requests
    ):
        found.add(CHOICES_SHORT)
    return found if lacks(without_policy(state), action) else found | {SHORT_AHEAD}


class Slots:
    """A second count of the slots and pages that are used again."""

    def __init__(self) -> None:
        self.ended: dict[int, list[int]] = {}
        self.released: set[int] = set()

    def corners(self, before: State, after: State) -> set[str]:
        """What is used again in a step."""
        found = set[str]()
        for slot, old in enumerate(before.sequences):
            new, ended = after.sequences[slot], self.ended.setdefault(slot, [])
            if old and old.written and (new is None or new.tokens[: len(old.tokens)] != old.tokens):
                ended.append(old.written)
            if len(ended) >= 2 and new and ended[-2] > ended[-1] < new.written:
                found.add(SLOT_REUSED)
                ended.clear()
        old_names, new_names = (
            Counter(page for one in state.sequences if one for page in one.row)
            for state in (before, after)
        )
        self.released |= old_names.keys() - new_names.keys()
        if self.released & (new_names.keys() - old_names.keys()):
            found.add(PAGE_REUSED)
        if any(times > max(1, old_names[page]) for page, times in new_names.items()):
            found.add(SHARED)
        return found


@pytest.mark.parametrize("capacity", POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_corners_of_random_histories_are_those_of_a_second_count(
    capacity: Capacity, seed: int
) -> None:
    """What is shared, used again, or one page short is so by the rows of the states."""
    sizes = small(pages=6 + 3 * (seed % 2), page_size=2 + seed // 2, slots=3)
    draws, coverage, slots = Random(seed), Coverage(), Slots()
    state = SERVING.initial(sizes, default_limits(sizes), CleanupMode.END, capacity)
    counted = {SHORT, SHORT_AHEAD, CHOICES_SHORT, SLOT_REUSED, PAGE_REUSED, SHARED}
    for number in range(120):
        action = propose(state, draws, number)
        reasons = frozenset(found.reason for found in SERVING.refusals(state, action))
        after = state if reasons else SERVING.effect(state, action)
        before = Counter(coverage.corners)

        coverage.record(state, action, reasons, after)

        reached = coverage.corners - before
        expected = corners_of_refusal(state, action) if reasons else slots.corners(state, after)
        assert expected == counted & reached.keys(), action
        state = after
