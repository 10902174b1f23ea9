"""The coverage of a run is counted correctly, and every required item can be reached."""

from collections.abc import Collection
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from deep import deep_after
from spec_engine import ACTIONS, MACHINE, SpecEngine, make, small
from spec_tools import ONE, SERVING, grown
from toy_engine import Adapter, Allocator

from conformance.fuzzing import campaign, settings
from conformance.fuzzing.state_machine import LEVELS, Campaign, Session
from conformance.history import PoisonDead
from conformance.protocol import Action, Poison, Result
from conformance.recordings.fast_table import APPENDING
from conformance.rungs.coverage import EXPECTED, POISON, RARE_STEPS, Coverage, offered_by
from conformance.rungs.coverage import MACHINE as COUNTED
from conformance.rungs.lifecycle import CLEANUPS
from conformance.rungs.pages import PAGE_REUSED, REFUSED, SEVERAL_LAST, SEVERAL_SHORT, SLOT_REUSED
from conformance.rungs.possible import Kind, is_pair
from conformance.rungs.record import (
    AHEAD,
    CHAINS,
    EAGER_COPY,
    FOUR_STEPS,
    FREES,
    FULL_BESIDE,
    FULL_POOL,
    GIVES_BACK,
    GROWS_RELEASED,
    HITS,
    KEEPS,
    LAPS,
    LAZY,
    MERGES_ASKED,
    ONE_SHORT,
    PART_ROUNDS,
    REFUSAL,
    RELEASES,
    RELEASES_INSIDE,
    RESERVED,
    RINGS,
    SEVERAL_CELLS,
    SEVERAL_PAGES,
    SEVERAL_SLOTS,
    SHARED_FULL,
    SINGLE_CELLS,
    THREE_CHOICES,
    THREE_OWNERS,
    TWO_SHORT,
    TWO_SLOTS,
    WHOLE_PAGE,
    WIDE_ROUNDS,
)
from conformance.rungs.registry import CORNERS
from conformance.rungs.sharing import SHARED
from spec import ladder
from spec.machines import actions as act
from spec.rung import Machine
from spec.vocabulary import (
    STANDARD,
    Capacity,
    CleanupMode,
    Geometry,
    Limits,
    Params,
    Reason,
    Request,
    default_limits,
)

ADAPTERS = Path(__file__).parents[2] / "docs" / "adapters.md"
BEHIND_A_WINDOW = {RELEASES, RELEASES_INSIDE, GROWS_RELEASED}
CONDITIONS = {
    POISON,
    REFUSAL,
    LAZY,
    EAGER_COPY,
    AHEAD,
    RESERVED,
    KEEPS,
    FULL_BESIDE,
    GIVES_BACK,
    MERGES_ASKED,
    LAPS,
    RINGS,
    *BEHIND_A_WINDOW,
}
OFFERED = frozenset(action.__name__ for action in ACTIONS)
"""The names of the actions that a caller of an engine may ask for."""
SIZES = frozenset(
    {
        FULL_POOL,
        SEVERAL_CELLS,
        SEVERAL_PAGES,
        SEVERAL_SLOTS,
        SHARED_FULL,
        SINGLE_CELLS,
        CHAINS,
        HITS,
        WHOLE_PAGE,
        ONE_SHORT,
        PART_ROUNDS,
        THREE_CHOICES,
        THREE_OWNERS,
        TWO_SHORT,
        TWO_SLOTS,
        WIDE_ROUNDS,
        FOUR_STEPS,
        FREES,
    }
)
"""The other words that corner states ask for."""


def covered(
    *actions: Action,
    sizes: Geometry | None = None,
    cleanup: CleanupMode = CleanupMode.NONE,
    machine: Machine = SERVING,
    capacity: Capacity = STANDARD,
) -> Coverage:
    """The coverage of the specification's own steps."""
    sizes = sizes or small(pages=6, page_size=2, slots=3, pages_per_seq=4)
    state, counted = machine.initial(sizes, default_limits(sizes), cleanup, capacity), Coverage()
    for action in actions:
        reasons = frozenset(refusal.reason for refusal in machine.refusals(state, action))
        after = state if reasons else machine.step(state, action)
        counted.record(state, action, reasons, after)
        state = after
    return counted


def drafted(count: int) -> tuple[Action, ...]:
    """Draft tokens behind one cell of slot 0, written."""
    batch = tuple((0, at) for at in range(1, 1 + count))
    packs = [act.Pack()] * -(-count // 3)
    return (act.Propose(0, (7,) * count), *packs, act.Allocate(batch), act.Write(batch))


COMMON = {REFUSED, SHARED, PAGE_REUSED}
"""Corners that many a history reaches."""


def alone(counted: Coverage) -> set[str]:
    """The corners counted, without COMMON and those of batches."""
    return {corner for corner in counted.corners.keys() - COMMON if "batch" not in corner}


def test_outcomes_are_counted_by_action_and_reason() -> None:
    """A step is done, or refused for each of its reasons."""
    counted = covered(act.Reserve(), act.Reserve(0), act.Free(9), act.Free(0), act.Free(0))

    assert {"Reserve": 2, "Free": 3} == counted.actions
    assert {
        "Reserve: done": 1,
        "Reserve: SLOT_USED": 1,
        "Free: SLOT_RANGE": 1,
        "Free: done": 1,
        "Free: SLOT_UNUSED": 1,
    } == counted.outcomes
    assert {REFUSED: 3} == counted.corners


NEVER_LACKING = (
    *(act.Propose(0, (1,)), act.Commit(0, 1), act.Truncate(0, 0), act.Release(0, 1)),
    *(
        act.Hit(0, 1),
        act.Share(0, 1, 1),
        act.Publish(0, 0),
        act.Merge(0, 0),
        act.Evict((1,)),
        act.Drop(),
        act.Preempt(0),
        act.Replay(0, (1,)),
        *(act.Retire(), act.Deliver()),
    ),
)


@pytest.mark.parametrize("action", NEVER_LACKING, ids=lambda action: type(action).__name__)
def test_a_lack_of_pages_may_be_claimed_of_any_action(action: Action) -> None:
    """It is counted as told; a recording held `Truncate` refused so, and the judge raised."""
    machine = ladder.whole()
    counted_rules = {*COUNTED.rules, act.Dispatch}
    assert {type(one) for one in NEVER_LACKING} == set(machine.rules) - counted_rules
    state = machine.initial(small(), default_limits(small()), CleanupMode.NONE)
    counted = Coverage()

    counted.record(state, action, frozenset({Reason.OUT_OF_PAGES}), state)

    assert {f"{type(action).__name__}: OUT_OF_PAGES": 1} == counted.outcomes


def test_a_lack_of_pages_that_is_none_reaches_no_edge() -> None:
    """An engine may keep pages back: two slots that it refuses have not taken the last ones."""
    sizes = small(pages=7, page_size=2, slots=3, pages_per_seq=4)
    machine, batch = ladder.whole(), act.Allocate(((0, 6), (1, 3), (1, 4)))
    state = machine.initial(sizes, default_limits(sizes), CleanupMode.NONE)
    for step in (*grown(0, 6), *grown(1, 3)):
        state = machine.step(state, step)
    counted = Coverage()

    counted.record(state, batch, frozenset({Reason.OUT_OF_PAGES}), state)

    assert {REFUSED: 1} == counted.corners


def test_a_page_is_shared_by_a_clone_of_a_whole_page() -> None:
    """A clone of a partial page alone shares nothing; choices of a prefill share as clones do."""
    assert SHARED not in covered(*grown(0, 1), act.Clone(0, 1, 1)).corners
    assert 1 == covered(*grown(0, 5), act.Clone(0, 1, 1)).corners[SHARED]
    twins = Request(id=1, prompt=(1, 2, 3), params=Params(max_new=2), n_generations=2)
    assert 1 == covered(act.Prefill((twins,))).corners[SHARED]


def test_a_page_is_taken_again_after_its_release() -> None:
    """A page counts when it is taken once more, in the same engine."""
    again = (*grown(0, 1), act.Free(0), *grown(0, 1, request=1))
    assert 1 == covered(*again).corners[PAGE_REUSED]
    assert PAGE_REUSED not in covered(*grown(0, 3), *grown(1, 1)).corners

    counted = covered(*grown(0, 1), act.Free(0))
    counted.begin()
    state = MACHINE.initial(small(), default_limits(small()))
    reserved = MACHINE.step(state, act.Reserve(0))
    first = act.Allocate(((0, 0),))
    counted.record(reserved, first, frozenset(), MACHINE.step(reserved, first))
    assert PAGE_REUSED not in counted.corners


class Spendthrift(Allocator):
    """An allocator that gives out no block twice, and whose counts do not show it."""

    def _drop(self, block: int) -> None:
        super()._drop(block)
        self.free.discard(block)


@pytest.mark.parametrize(("kind", "again"), [(Allocator, 1), (Spendthrift, 0)])
def test_the_page_that_is_taken_again_is_the_engines(kind: type[Allocator], again: int) -> None:
    """An engine that gives out no page twice reaches no page that is taken again."""
    sizes, limits = small(), default_limits(small())

    def toy() -> Adapter:
        adapter = Adapter(sizes, limits, CleanupMode.NONE)
        adapter.allocator = kind(sizes, limits.prefill_tokens)
        return adapter

    session = Session(Campaign(make=toy), "lifecycle")
    for step in (act.Reserve(0), act.Allocate(((0, 0),)), act.Free(0)) * 2:
        session.take(step)

    assert again == session.campaign.coverage.corners[PAGE_REUSED]


def test_a_truncation_does_not_end_a_sequence() -> None:
    """A slot whose drafts are cut off and written again is not reused: no sequence has left it."""
    one, six = ((0, 0),), Params(max_new=6)
    short = (act.Reserve(0), act.Assign(0, (1,), six, 0), act.Allocate(one), act.Write(one))
    history = (*grown(0, 7), act.Free(0), *short, *drafted(2), act.Truncate(0, 1), *drafted(5))

    counted = covered(*history, machine=MACHINE)

    assert 2 == counted.outcomes["Propose: done"]
    assert counted.outcomes.total() == len(history)
    assert {"truncate inside a page"} == alone(counted)


@pytest.mark.parametrize(
    ("actions", "corners"),
    [
        ((*grown(0, 3), act.Clone(0, 1, 1)), {"clone inside a page"}),
        ((*grown(0, 4), act.Clone(0, 1, 1)), {"clone at a page boundary"}),
        ((*grown(0, 4), act.Free(0)), {"free at a page boundary"}),
        ((*grown(0, 3), act.Free(0)), set()),
        ((*grown(0, 1), act.Clone(0, 1, 1), act.Free(0)), {"clone inside a page"}),
        (
            (*grown(0, 2), act.Clone(0, 1, 1), act.Free(0)),
            {
                "clone at a page boundary",
                "free at a page boundary",
                "free a parent before its clone",
            },
        ),
        ((*grown(0, 8), *grown(1, 4)), {"pool exactly full"}),
        ((*grown(0, 8), *grown(1, 6)), {"one page short"}),
        ((*grown(0, 8), *grown(1, 8)), set()),
        (
            (*grown(0, 6), act.Free(0), *grown(0, 2), act.Free(0), *grown(0, 3)),
            {"free at a page boundary", "slot reused by a shorter, then a longer sequence"},
        ),
        (
            (*grown(0, 2), act.Free(0), *grown(0, 3), act.Free(0), *grown(0, 4)),
            {"free at a page boundary"},
        ),
        (
            (act.Prefill((Request(id=1, prompt=(1,), params=ONE),)),),
            {"finish at a page boundary"},
        ),
        (
            (act.Prefill((Request(id=1, prompt=(1, 2), params=ONE),)),),
            {"finish inside a page"},
        ),
        (
            (act.Prefill((Request(id=1, prompt=(1,), params=Params(max_new=2)),)), act.Round()),
            {"finish inside a page"},
        ),
    ],
)
def test_corners_are_counted_where_they_are(actions: tuple[Action, ...], corners: set[str]) -> None:
    """Each corner is counted on a history that reaches it, and on none that stops short of it."""
    assert corners == alone(covered(*actions))


@pytest.mark.parametrize(
    ("batch", "corners"),
    [
        (((0, 6), (1, 3), (1, 4)), {SEVERAL_LAST, "pool exactly full"}),
        (((0, 6), (1, 3)), set()),
        (((1, 3), (1, 4), (1, 5), (1, 6)), {"pool exactly full"}),
        (((0, 6), (1, 3), (1, 4), (1, 5), (1, 6)), {SEVERAL_SHORT, "one page short"}),
        (((0, 6), (2, 0), (2, 1), (2, 2)), {SEVERAL_SHORT, "one page short"}),
        (((1, 3), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4)), {"one page short"}),
        (((0, 6), (1, 3), (1, 4), (2, 0), (2, 1), (2, 2)), set()),
    ],
)
def test_several_slots_at_the_edge_of_the_pool_are_counted(
    batch: tuple[tuple[int, int], ...], corners: set[str]
) -> None:
    """Slots 0 to 2 have six, three and no cells in pages of two, and two pages are free."""
    sizes = small(pages=7, page_size=2, slots=3, pages_per_seq=4)
    begun = (*grown(0, 6), *grown(1, 3), act.Reserve(2))

    counted = covered(*begun, act.Allocate(batch), sizes=sizes)

    several = {SEVERAL_LAST, SEVERAL_SHORT, "one page short", "pool exactly full"}
    assert corners == several & counted.corners.keys()


AHEAD_SHORT = "one page short of what is taken ahead"
POLICY_CORNERS = {
    name for name, needs in CORNERS.items() if any(LAZY in one or AHEAD in one for one in needs)
}
WHOLE = Capacity(reserve="request")
FOUR = Request(id=9, prompt=(1, 2, 3, 4), params=ONE)
TWINS = (*grown(0, 3), act.Clone(0, 1, 1))
TAKEN = (act.Reserve(2), act.Allocate(tuple((2, at) for at in range(6))))
"""Three more pages are taken, so that one of six is free beside those of TWINS."""


@pytest.mark.parametrize(
    ("capacity", "actions", "corners"),
    [
        (
            Capacity(copy="lazy"),
            (*TWINS, act.Allocate(((0, 3),))),
            {"append in a lazily shared page"},
        ),
        (
            Capacity(copy="lazy"),
            (*TWINS, act.Allocate(((1, 3), (0, 3)))),
            {"append in a lazily shared page", "the last owner keeps a lazily shared page"},
        ),
        (
            Capacity(copy="lazy"),
            (*TWINS, act.Clone(0, 2, 2), act.Allocate(((0, 3), (1, 3)))),
            {"append in a lazily shared page", "several lazy copies in one batch"},
        ),
        (
            Capacity(copy="lazy"),
            (*TWINS, *TAKEN, act.Allocate(((2, 6),)), act.Allocate(((0, 3),))),
            {"one page short of a lazy copy", "one page short"},
        ),
        (
            Capacity(copy="lazy"),
            (*TWINS, *TAKEN, act.Allocate(((0, 3),))),
            {"append in a lazily shared page", "lazy copies take the last free pages"},
        ),
        (
            Capacity(copy="lazy"),
            (*TWINS, *TAKEN, act.Allocate(((0, 3), (0, 4)))),
            {"one page short of a lazy copy", "one page short"},
        ),
        (
            Capacity(copy="lazy"),
            (*TWINS, act.Allocate(((0, 3),)), act.Allocate(((1, 3),))),
            {"append in a lazily shared page"},
        ),
        (STANDARD, (*TWINS, act.Allocate(((1, 3), (0, 3)))), set()),
        (Capacity(lookahead=1), (*grown(0, 2), act.Free(0)), {"free a row with pages taken ahead"}),
        (Capacity(lookahead=1), (*grown(0, 1), act.Free(0)), set()),
        (Capacity(lookahead=1), (*grown(0, 7), *grown(1, 4)), {"one page short", AHEAD_SHORT}),
        (Capacity(lookahead=1), (*grown(0, 7), *grown(1, 5)), {"one page short"}),
        (WHOLE, (*grown(0, 4), act.Free(0)), {"free a row with pages taken ahead"}),
        (WHOLE, (*grown(0, 3), act.Free(0)), set()),
        (WHOLE, (*grown(0, 7), *grown(1, 4)), {"one page short", AHEAD_SHORT}),
        (WHOLE, (*grown(0, 7), *grown(1, 3)), set()),
        (WHOLE, (*grown(0, 7), *grown(1, 6)), {"one page short"}),
        (WHOLE, (*grown(0, 4), *grown(1, 4), act.Clone(0, 2, 1)), {"one page short", AHEAD_SHORT}),
        (WHOLE, (*grown(0, 7), act.Prefill((FOUR,))), {"one page short", AHEAD_SHORT}),
    ],
)
def test_corners_of_a_policy_are_counted(
    capacity: Capacity, actions: tuple[Action, ...], corners: set[str]
) -> None:
    """Each corner of a policy is counted on a history that reaches it, and on no other."""
    seen = covered(*actions, capacity=capacity).corners

    assert corners == seen.keys() & {*POLICY_CORNERS, "one page short"}


@pytest.mark.parametrize(
    ("batch", "corners"),
    [
        (((0, 0), (0, 1)), set()),
        (((0, 0), None), set()),
        ((), set()),
        (((0, 0), None, (0, 1)), {"batch with padding inside"}),
        ((None, (0, 0)), {"batch with padding inside"}),
        (((0, 1), (0, 0)), {"batch not sorted"}),
        (((0, 0), (1, 0)), {"several slots in one batch"}),
        (((1, 0),), {"holes in the slot ids of a batch"}),
        (((0, 0), (2, 0)), {"several slots in one batch", "holes in the slot ids of a batch"}),
    ],
)
def test_shapes_of_batches_are_counted(
    batch: tuple[tuple[int, int] | None, ...], corners: set[str]
) -> None:
    """Order, padding and slots of an allocation are corners of their own."""
    three = tuple(act.Reserve(slot) for slot in range(3))

    assert corners == set(covered(*three, act.Allocate(batch)).corners)


def test_pages_of_one_cell_and_poison_are_counted() -> None:
    """Page size 1 counts at each step that is done; poison where the engine can be poisoned."""
    tiny = small(pages=4, page_size=1, slots=2, pages_per_seq=4)
    counted = covered(act.Reserve(), act.Reserve(0), act.Free(0), sizes=tiny)
    counted.poisoned()

    assert {"page size 1": 2, REFUSED: 1, "poisoned dead cells read past": 1} == counted.corners


def words(*kinds: type, poison: bool = False, rare: bool = True, **sizes: int) -> frozenset[str]:
    """What an engine with these actions offers at the geometries of the kit, or at one."""
    main = small(**sizes)
    profile = evolve(make(main, default_limits(main), CleanupMode.END).profile, actions=kinds)
    geometries = [main] if sizes else [one.geometry for one in settings.usual(main)]
    return offered_by(profile, geometries, poisonable=poison, rare=rare)


SHORT_OF_PAGES = {"one page short", SEVERAL_SHORT, "Allocate: OUT_OF"}


@pytest.mark.parametrize(
    ("sizes", "missing"),
    [
        ({"pages": 15}, {"page size 1"}),
        ({"pages": 15, "page_size": 1}, {"clone inside a page"}),
        ({"pages": 16}, {"page size 1", *SHORT_OF_PAGES}),
        ({"pages": 17}, {"page size 1", *SHORT_OF_PAGES, "pool exactly full", SEVERAL_LAST}),
        ({"pages": 1, "page_size": 1}, {"clone inside a page", SEVERAL_LAST}),
    ],
)
def test_what_must_be_reached_depends_on_the_sizes(
    sizes: dict[str, Any], missing: set[str]
) -> None:
    """A run at one geometry is held to what can be reached there."""
    kinds = (act.Reserve, act.Assign, act.Allocate, act.Write, act.Clone, act.Free)
    everywhere = Coverage().coverable(words(*kinds))
    there = Coverage().coverable(words(*kinds, **sizes))

    gone = {item.removesuffix("_PAGES") for item in set(everywhere) - set(there)}
    assert missing == gone - {"Clone: OUT_OF"}
    assert set(there) <= set(everywhere)


def test_what_must_be_reached_depends_on_who_guards() -> None:
    """No run is held to a refusal that the layer above rules out, nor to batches nobody sends."""
    main = small(pages=15)
    profile = evolve(
        make(main, default_limits(main), CleanupMode.END).profile,
        guarded={Reason.SLOT_RANGE, (act.Allocate, Reason.OUT_OF_PAGES)},
        batches="one slot",
    )
    there = Coverage().coverable(offered_by(profile, [main], poisonable=False))

    assert not [item for item in there if "SLOT_RANGE" in item]
    assert {"Allocate: OUT_OF_PAGES", "several slots in one batch"}.isdisjoint(there)
    assert {"Clone: OUT_OF_PAGES", "one page short", "batch not sorted"} <= set(there)


def test_what_must_be_reached_depends_on_what_is_offered() -> None:
    """No run is held to a corner that its engine's actions cannot reach."""
    counted = Coverage()
    allocator = counted.coverable(words(act.Reserve, act.Allocate, act.Free))

    assert {"page size 1", "pool exactly full", "one page short"} <= set(allocator)
    assert not {"finish inside a page", "clone inside a page"} & set(allocator)
    assert "poisoned dead cells read past" not in allocator
    assert "poisoned dead cells read past" in counted.coverable(words(act.Reserve, poison=True))
    offered = words(*ACTIONS, poison=True) | {LAZY, AHEAD, LAPS, RINGS} | BEHIND_A_WINDOW
    offered |= {
        "Hit: OUT_OF_PAGES",
        "Share: OUT_OF_PAGES",
        "Assign: OUT_OF_PAGES",
    }  # of pages taken ahead, or reserved
    everything = counted.coverable(offered)
    assert len(everything) == len(set(everything))
    assert set(CORNERS) <= set(everything)
    assert [] == counted.covered(everything)


GROWN = {
    *("allocate after a release", "round after a release"),
    "publish behind a released page",
}


@pytest.mark.parametrize(
    ("window", "missing"),
    [
        (9, set()),
        (10, GROWN),
        (11, GROWN),
        (12, {*GROWN, "release up to inside a page"}),
        (13, {corner for corner, needs in CORNERS.items() if RELEASES in needs}),
    ],
)
def test_what_must_be_released_depends_on_the_window(window: int, missing: set[str]) -> None:
    """In a row of 16 cells 15 are written at most: a window of 12 leaves one page, and 13 none."""
    counted = Coverage()
    offered = words(*ACTIONS, window=5), words(*ACTIONS, window=window)
    wide, narrow = ({*counted.coverable(one)} for one in offered)

    assert missing == wide - narrow


@pytest.mark.parametrize("window", [5, 13, 40, 120])
def test_the_first_usual_setting_shows_what_a_window_lets_go(window: int) -> None:
    """Its rows are long enough for every corner of a release, however long the window is."""
    first = settings.usual(small(window=window))[0].geometry
    profile = make(first, default_limits(first), CleanupMode.END).profile

    assert BEHIND_A_WINDOW <= offered_by(profile, [first], poisonable=False)


def test_every_word_of_a_corner_is_known() -> None:
    """A corner asks for actions, for outcomes, and for words that `offered_by` can say."""
    assert CONDITIONS == {
        word
        for needs in CORNERS.values()
        for need in needs
        for word in need.split("|")
        if word not in OFFERED | SIZES and ": " not in word
    }


def test_a_slot_is_used_again_within_one_engine() -> None:
    """Sequences of three, one and two cells in one slot count only if one engine has held them."""
    twice = (*grown(0, 3), act.Free(0), *grown(0, 1, request=1), act.Free(0))
    third = grown(0, 2, request=2)
    assert covered(*twice, *third).corners[SLOT_REUSED]

    counted, state = covered(*twice), SERVING.initial(small(), default_limits(small()))
    counted.begin()
    for action in third:
        before, state = state, SERVING.step(state, action)
        counted.record(before, action, frozenset(), state)
    assert SLOT_REUSED not in counted.corners


def test_steps_after_one_another_are_counted_within_one_engine() -> None:
    """A pair is two actions in a row; a new engine begins without an action before it."""
    counted = covered(act.Reserve(), act.Reserve(0), act.Free(0))
    counted.begin()
    counted.count(act.Pack, frozenset(), ())

    reserved, refused = Kind(act.Reserve, refused=False), Kind(act.Reserve, refused=True)
    freed = Kind(act.Free, refused=False)
    assert {(reserved, refused): 1, (refused, freed): 1} == counted.pairs
    assert 1 == counted.times_of_items["Reserve done > Reserve refused"]


def repeated(*kinds: type, times: int) -> campaign.Run:
    """A run of a table in which these actions are done in this order, again and again."""
    report = campaign.Run(usual=settings.usual(small()))
    for kind in kinds * times:
        report.coverage.count(kind, frozenset(), ())
    return report


TABLE = frozenset({act.Reserve, act.Allocate, act.Free})


def missing_pairs(report: campaign.Run) -> list[str]:
    """The pairs of steps that a run of a table must reach, and has not."""
    engine = SpecEngine(small(), default_limits(small()), CleanupMode.NONE, actions=TABLE)
    items = report.coverable(engine)
    return [item for item in items if is_pair(item) and not report.coverage.covered([item])]


def test_a_pair_of_steps_that_never_came_is_missing() -> None:
    """It is required as soon as it would have come so often, were each step drawn by itself."""
    both = [f"{kind} done > {kind} done" for kind in ("Free", "Reserve")]

    assert f"have come {EXPECTED} times" in ADAPTERS.read_text(encoding="utf-8")
    assert both == missing_pairs(repeated(act.Reserve, act.Free, times=2 * EXPECTED))
    assert [] == missing_pairs(repeated(act.Reserve, act.Free, times=2 * EXPECTED - 1))
    every = repeated(act.Reserve, act.Reserve, act.Free, act.Free, times=2 * EXPECTED)
    assert [] == missing_pairs(every)


def test_an_impossible_pair_of_steps_is_not_required() -> None:
    """What was refused for an empty queue is not done right after it, however often it came."""
    report = campaign.Run(usual=settings.usual(small()))
    for _ in range(3 * EXPECTED):
        report.coverage.count(act.Admit, frozenset({Reason.QUEUE_EMPTY}), ())
        report.coverage.count(act.Submit, frozenset(), ())
        report.coverage.count(act.Admit, frozenset(), ())
    engine = SpecEngine(small(), default_limits(small()), CleanupMode.NONE)
    items = report.coverable(engine)

    assert "Admit refused > Admit done" not in items
    assert {"Admit done > Admit done", "Admit refused > Admit refused"} <= {*items}


def test_a_rare_outcome_is_required_of_a_long_run() -> None:
    """A refusal that asks for a full queue is required from so many steps on."""
    engine = SpecEngine(small(), default_limits(small()), CleanupMode.NONE)
    report = repeated(act.Reserve, act.Free, times=1)

    assert "Enqueue: QUEUE_FULL" not in report.coverable(engine)
    report.steps = RARE_STEPS
    assert "Enqueue: QUEUE_FULL" in report.coverable(engine)


@pytest.mark.parametrize(
    ("kind", "reason", "seed"),
    deep_after(
        1,
        [
            (act.Clone, Reason.SLOT_FINISHED, 0),
            (act.Write, Reason.SLOT_UNUSED, 0),
            (act.Submit, Reason.STOPS, 1),
        ],
    ),
)
def test_an_engine_that_lacks_a_guard_is_noticed(kind: type, reason: Reason, seed: int) -> None:
    """A guard of the specification that nobody lists is asked for all the same."""
    report = campaign.Run()
    campaign.run(
        partial(Lax, lacks=(kind, reason)),
        campaign.Options(geometry=small(), seed=seed, steps=12_000, ceiling=False),
        report=report,
        update=lambda *_: None,
    )

    assert report.finding is not None
    assert isinstance(report.finding.history[-1], kind)
    assert reason.name in report.finding.message


class Lax(SpecEngine):
    """The specification, but one action is done where it is refused for one reason alone."""

    def __init__(
        self,
        geometry: Geometry,
        limits: Limits,
        cleanup: CleanupMode,
        *,
        lacks: tuple[type, Reason],
    ) -> None:
        super().__init__(geometry, limits, cleanup)
        self.lacks = lacks

    def apply(self, action: Action) -> Result:
        """Take the action by the specification, without the guard that it lacks."""
        reasons = {one.reason for one in self.machine.refusals(self.state, action)}
        if (type(action), reasons) == (self.lacks[0], {self.lacks[1]}):
            return None
        return super().apply(action)


def turns(
    targets: tuple[Campaign, ...], steps: int, *, start: int, until: Collection[str] | None = None
) -> None:
    """Take turns at the levels, in each geometry, as a fuzzing run does; nothing may fail.

    until: items that need no further turn once all of them are covered.
    """
    ways = [(target, level) for target in targets for level in campaign.TURNS]
    for number, (target, level) in enumerate(cycle(ways), start=start):
        turn(target, level, number)
        reached = until is not None and set(until) <= {*target.coverage.covered(until)}
        if reached or sum(target.steps for target in targets) >= steps:
            return


def turn(target: Campaign, level: str, start: int) -> None:
    """One turn at one level; nothing may fail."""
    report = campaign.Run(coverage=target.coverage)
    campaign._take_turn(target, level, start, report)
    assert None is report.finding, report.finding


def spec_campaigns(*, climb: bool = False, window: int | None = None) -> tuple[Campaign, ...]:
    """The specification against itself, in the geometries of a run, counted together."""
    counted = Coverage()
    sizes = small(window=window)
    return tuple(
        Campaign(
            make=partial(settings.make, SpecEngine, *setting),
            names=ladder.machine_for(offered(window)).names,
            coverage=counted,
            climb=climb,
        )
        for setting in settings.usual(sizes)
    )


def offered(window: int | None) -> frozenset[type]:
    """What the specification offers as an engine: nothing is released without a window."""
    return ACTIONS if window else ACTIONS - {act.Release}


@pytest.mark.parametrize(
    ("lookahead", "pages", "needed"),
    [
        (0, 10, {"one page short", SEVERAL_SHORT}),
        (3, 10, {"one page short", SEVERAL_SHORT, AHEAD_SHORT}),
        (12, 10, set()),
        (12, 11, {"one page short", SEVERAL_SHORT, AHEAD_SHORT}),
        (12, 3, {"one page short", AHEAD_SHORT}),
    ],
)
def test_a_lack_of_one_page_is_required_where_the_widths_of_rows_allow_it(
    lookahead: int, pages: int, needed: set[str]
) -> None:
    """If each row has four pages at once, it depends on the pool whether one page can lack."""
    sizes = small(pages=pages, page_size=3)
    engine = make(sizes, default_limits(sizes), CleanupMode.END)
    profile = evolve(engine.profile, actions={act.Reserve, act.Allocate}, lookahead=lookahead)
    coverable = Coverage().coverable(offered_by(profile, [sizes], poisonable=False))

    assert needed == {"one page short", SEVERAL_SHORT, AHEAD_SHORT} & set(coverable)


def test_what_is_required_does_not_cost_what_the_sizes_are() -> None:
    """A row of two billion cells is only a number, also where cells are taken ahead."""
    sizes = small(pages=10, pages_per_seq=500_000_000)
    engine = make(small(), default_limits(small()), CleanupMode.END)
    profile = evolve(engine.profile, lookahead=1)

    assert "one page short" in Coverage().coverable(offered_by(profile, [sizes], poisonable=False))


@pytest.mark.deep
def test_an_engine_that_appends_reaches_what_it_must_of_drafts() -> None:
    """Without a queue commits and truncations are drawn alone too, so that they are refused."""
    offers = APPENDING | {act.Propose, act.Commit, act.Truncate}
    report = campaign.Run()
    campaign.run(
        partial(SpecEngine, actions=offers),
        campaign.Options(geometry=small(), steps=25_000, ceiling=False),
        report=report,
        update=lambda *_: None,
    )

    made = settings.make(partial(SpecEngine, actions=offers), *report.usual[0])
    coverable = report.coverable(made)
    assert None is report.finding
    assert [] == sorted(set(coverable) - set(report.coverage.covered(coverable)))


@pytest.mark.deep
@pytest.mark.parametrize(("window", "steps"), [(None, 22_000), (5, 45_000)])
def test_everything_required_is_reached(window: int | None, steps: int) -> None:
    """In so many steps all but rare outcomes, and every corner state, are reached."""
    targets = spec_campaigns(window=window)
    counted = targets[0].coverage
    coverable = counted.coverable(words(*offered(window), poison=True, rare=False))
    turns(targets, steps, start=0, until=coverable)

    assert [] == sorted(set(coverable) - set(counted.covered(coverable)))


def test_everything_required_is_reached_with_append() -> None:
    """So it is for an engine whose caller appends the tokens, each step seen from below too."""
    counted, actions = Coverage(), APPENDING
    targets = tuple(
        Campaign(
            make=partial(settings.make, partial(SpecEngine, actions=actions), *setting),
            names=ladder.machine_for(actions).names,
            coverage=counted,
            climb=True,
        )
        for setting in settings.usual(small())
    )
    assert (
        {"lifecycle"}
        == {*campaign.turns_of(actions)}
        == {*campaign.turns_of(actions - {act.Reserve})}
    )
    coverable = counted.coverable([*(kind.__name__ for kind in actions), POISON])
    for number in range(24):
        turn(targets[number % 3], "lifecycle", number)
        if set(coverable) <= set(counted.covered(coverable)):
            break

    assert [] == sorted(set(coverable) - set(counted.covered(coverable)))


@pytest.mark.parametrize("appends", deep_after(1, [frozenset(), frozenset({act.Append})]))
def test_cleanup_is_drawn_without_decoding(appends: frozenset[type]) -> None:
    """An allocator that cleans up is asked to, whether or not its caller appends the tokens."""
    actions = appends | {act.Reserve, act.Assign, act.Allocate, *CLEANUPS}
    target = Campaign(
        make=partial(
            settings.make, partial(SpecEngine, actions=actions), small(), CleanupMode.NONE
        ),
        names=ladder.machine_for(actions).names,
    )
    (level,) = {*campaign.turns_of(actions)}
    for number in range(4):
        turn(target, level, number)

    coverable = target.coverage.coverable(f"{kind.__name__}: done" for kind in actions)
    assert {"FreeFinished: done", "TakeOutputs: done"} <= {*coverable}
    assert coverable == target.coverage.covered(coverable)


def test_cleanup_is_drawn_where_requests_wait_for_admission() -> None:
    """An engine that has admission alone is asked to clean up what has finished."""
    actions = frozenset({act.Submit, act.Admit, act.Generate, *CLEANUPS})
    target = Campaign(
        make=partial(
            settings.make, partial(SpecEngine, actions=actions), small(), CleanupMode.NONE
        ),
        names=ladder.machine_for(actions).names,
    )
    (level,) = {*campaign.turns_of(actions)}
    for number in range(2):
        turn(target, level, number)

    assert {"FreeFinished: done", "TakeOutputs: done"} <= target.coverage.outcomes.keys()


@pytest.mark.parametrize("kind", [act.Truncate, act.Commit])
def test_an_action_of_drafts_is_drawn_without_the_others(kind: type[Action]) -> None:
    """An engine that cuts or commits and proposes nothing is asked to, at the only level it has."""
    actions = frozenset({act.Reserve, act.Allocate, act.Append, act.Write, act.Free, kind})
    target = Campaign(
        make=partial(
            settings.make, partial(SpecEngine, actions=actions), small(), CleanupMode.NONE
        ),
        names=ladder.machine_for(actions).names,
        coverage=Coverage(),
    )
    assert {"lifecycle"} == {*campaign.turns_of(actions)}
    for number in range(2):
        turn(target, "lifecycle", number)

    assert target.coverage.actions[kind.__name__] > 5


@pytest.mark.deep
@pytest.mark.parametrize("window", [None, 5])
def test_every_step_holds_seen_from_every_lower_rung(window: int | None) -> None:
    """At each level each step of the specification is what the rungs below it make of it."""
    targets = spec_campaigns(climb=True, window=window)
    for target, level in zip(cycle(targets), LEVELS, strict=False):
        turn(target, level, 77)

    assert set(targets[0].coverage.actions) == {kind.__name__ for kind in offered(window)}


def test_a_session_leaves_out_what_is_not_offered() -> None:
    """An action that the engine does not offer is neither taken nor counted."""
    target = spec_campaigns()[0]
    session = Session(target, "lifecycle")
    session.actions = frozenset({act.Reserve})

    session.take(act.Reserve())
    session.take(act.Round())
    session.take(PoisonDead(Poison.NAN))

    assert [act.Reserve(), PoisonDead(Poison.NAN)] == session.history
    assert (2, {"Reserve": 1}) == (target.steps, target.coverage.actions)


def test_poison_counts_only_where_there_is_something_to_poison() -> None:
    """An engine whose dead cells cannot be overwritten has not been shown to ignore them."""
    target = spec_campaigns()[0]
    session = Session(target, "lifecycle")
    session.take(PoisonDead(Poison.NAN))
    session.lockstep.engine = Deaf(session.lockstep.engine)  # type: ignore[arg-type]
    session.take(PoisonDead(Poison.NAN))

    assert {"poisoned dead cells read past": 1} == target.coverage.corners


class Deaf:
    """An engine without `poison`."""

    def __init__(self, engine: SpecEngine) -> None:
        self.profile = evolve(engine.profile)
        self.apply, self.observe = engine.apply, engine.observe
