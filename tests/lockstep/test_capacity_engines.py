"""Engines with a capacity policy: right ones hold, and each planted bug violates its clause."""

from collections.abc import Collection
from functools import partial
from itertools import cycle
from typing import ClassVar

import pytest
from attrs import evolve
from capacity_toys import AHEAD, BOTH, LAZY, LAZY_WHOLE, WHOLE, FrugalAdapter
from deep import deep_after
from spec_engine import SpecEngine, small
from spec_tools import grown

from conformance.fuzzing import campaign, settings
from conformance.fuzzing.state_machine import LEVELS, Campaign
from conformance.lockstep.lockstep import Lockstep
from conformance.lockstep.run import replay
from conformance.protocol import Action, Result
from conformance.rungs.coverage import Coverage, offered_by
from conformance.rungs.flights import LAZY_COPY
from conformance.rungs.registry import CORNERS
from spec import ladder
from spec.machines import actions as act
from spec.vocabulary import (
    STANDARD,
    Capacity,
    CleanupMode,
    Geometry,
    InvalidInput,
    Limits,
    default_limits,
)

SIZES = small(pages=9, page_size=4, slots=4, pages_per_seq=3)
TURNS = (SIZES, evolve(SIZES, page_size=1, pages_per_seq=6), evolve(SIZES, pages=5, page_size=3))
"""The sizes of the turns of a fuzzing run, as those of `settings.usual`."""
POLICIES = {"lazy": LAZY, "ahead": AHEAD, "both": BOTH, "whole": WHOLE, "lazy whole": LAZY_WHOLE}


def frugal(
    capacity: Capacity,
    bug: str = "",
    declared: Capacity | None = None,
    sizes: Geometry = SIZES,
) -> FrugalAdapter:
    """A toy engine with a policy."""
    limits, cleanup = default_limits(sizes), CleanupMode.INCREMENTAL
    return FrugalAdapter(sizes, limits, cleanup, capacity=capacity, declared=declared, bug=bug)


def fuzzed(
    capacity: Capacity,
    bug: str = "",
    *,
    declared: Capacity | None = None,
    steps: int,
    seed: int = 0,
    until: Collection[str] | None = None,
) -> campaign.Run:
    """Fuzz a toy engine until so many steps are taken, a step fails, or all these are covered."""
    names, coverage = ladder.machine(ladder.SERVING).names, Coverage()
    targets = [
        Campaign(
            make=partial(frugal, capacity, bug, declared, sizes), names=names, coverage=coverage
        )
        for sizes in TURNS
    ]
    report = campaign.Run(coverage=coverage)
    for start, target in enumerate(cycle(targets), start=seed):
        reached = until is not None and set(until) <= {*coverage.covered(until)}
        if report.steps >= steps or report.finding is not None or reached:
            break
        campaign._take_turn(target, "lifecycle", start, report)
    return report


def wanted_of(capacity: Capacity) -> list[str]:
    """What a run of the toy with this policy must reach."""
    sizes = [one.geometry for one in settings.usual(small())]
    profile = frugal(capacity).profile
    return Coverage().coverable(offered_by(profile, sizes, poisonable=False))


@pytest.mark.parametrize("policy", deep_after(1, POLICIES))
def test_an_engine_with_a_policy_holds(policy: str) -> None:
    """Nothing is found, and every outcome and corner of the policy is reached."""
    capacity = POLICIES[policy]
    coverable = wanted_of(capacity)
    report = fuzzed(capacity, steps=12_000, until=coverable)

    assert report.finding is None, report.finding
    assert [] == sorted(set(coverable) - set(report.coverage.covered(coverable)))


@pytest.mark.parametrize(
    ("capacity", "bug", "clauses"),
    deep_after(
        9,
        [
            (LAZY, "appends in place", {"SHARE", "ATOMIC"}),
            (LAZY, "does not copy the cells", {"CONTENT"}),
            (LAZY, "writes to the old block", {"CONTENT"}),
            (LAZY, "keeps the count", {"RC", "CONS"}),
            (LAZY, "copies its own block", {"DET", "ATOMIC"}),
            (LAZY, "copies its own block and keeps it", {"RC", "CONS", "ATOMIC"}),
            (AHEAD, "keeps the blocks ahead", {"CONS"}),
            (AHEAD, "takes blocks past the longest", {"ROW"}),
            (AHEAD, "does not count the blocks ahead", {"ATOMIC", "ROW"}),
            (WHOLE, "reserves a block too few", {"ROW"}),
            (WHOLE, "reserves a block too many", {"ROW"}),
            (WHOLE, "reserves for the prompt alone", {"ROW"}),
            (WHOLE, "a clone reserves nothing", {"ROW", "ATOMIC"}),
            (WHOLE, "shares a reserved block", {"SHARE", "ATOMIC"}),
            (LAZY_WHOLE, "shares a reserved block", {"SHARE", "ATOMIC"}),
            (WHOLE, "keeps the blocks ahead", {"CONS"}),
            (WHOLE, "keeps what it took", {"ROW"}),
            (WHOLE, "takes what there is", {"ATOMIC"}),
        ],
    ),
)
def test_a_bug_of_a_policy_is_found(capacity: Capacity, bug: str, clauses: set[str]) -> None:
    """Each violates the clause of what goes wrong."""
    # A copy too many or too few gives other rows or counts while a block is free for it. At the
    # edge of the pool the engine refuses what is legal, or does what should be refused: ATOMIC.
    finding = fuzzed(capacity, bug, steps=6000).finding

    assert finding is not None
    assert finding.clause in clauses, finding.message


@pytest.mark.parametrize(
    ("spare", "bug", "clause"),
    [
        (1, "copies its own block", "DET"),
        (1, "copies its own block and keeps it", "CONS"),
        (0, "copies its own block", "ATOMIC"),
        (0, "copies its own block and keeps it", "ATOMIC"),
    ],
)
def test_a_needless_copy_violates_another_clause_in_a_full_pool(
    spare: int, bug: str, clause: str
) -> None:
    """An owner that needs no copy takes the last free page, or is refused if there is none."""
    sizes = evolve(SIZES, pages=2 + spare, page_size=4)
    filled = tuple((1, at) for at in range(4))
    history = (*grown(0, 2), act.Reserve(1), act.Allocate(filled), act.Allocate(((0, 2),)))

    assert None is replay(partial(frugal, LAZY, sizes=sizes), history)
    finding = replay(partial(frugal, LAZY, bug, sizes=sizes), history)
    assert finding is not None
    assert (history, clause) == (finding.history, finding.clause)


EDGE = {
    "refuses the last blocks for several": "ATOMIC",
    "refuses the last block for a copy": "ATOMIC",
    "does not count the copies": "ATOMIC",
    "one block for all copies": "SHARE",
}
"""Bugs at the edge of the pool, or of several copies in one batch, with the clause of each."""


@pytest.mark.parametrize("seed", deep_after(1, [0, 100, 200]))
@pytest.mark.parametrize("bug", EDGE)
def test_a_bug_at_the_edge_of_the_pool_is_found(bug: str, seed: int) -> None:
    """Each violates its clause within 3,000 steps, whatever the seed."""
    finding = fuzzed(LAZY, bug, steps=6000, seed=seed).finding

    assert finding is not None
    assert EDGE[bug] == finding.clause, finding.message


@pytest.mark.parametrize(
    ("capacity", "declared", "clause"),
    [
        (STANDARD, LAZY, "DET"),
        (LAZY, STANDARD, "SHARE"),
        (AHEAD, STANDARD, "ROW"),
        (STANDARD, AHEAD, "ROW"),
        (AHEAD, Capacity(lookahead=4), "ROW"),
        (WHOLE, STANDARD, "ROW"),
        (STANDARD, WHOLE, "ROW"),
        (WHOLE, AHEAD, "ROW"),
        (LAZY_WHOLE, evolve(LAZY_WHOLE, lookahead=0), "ROW"),
        (LAZY_WHOLE, evolve(LAZY_WHOLE, copy="eager"), "SHARE"),
    ],
)
def test_another_policy_than_the_declared_one_is_found(
    capacity: Capacity, declared: Capacity, clause: str
) -> None:
    """An engine is held to the policy that its profile declares."""
    # Rows and counts show that it takes other pages than it declares, or ATOMIC does at the edge of
    # the pool: with fewer it does what should be refused, with more it refuses what is legal.
    finding = fuzzed(capacity, declared=declared, steps=6000).finding

    assert finding is not None
    assert finding.clause in {clause, "ATOMIC"}, finding.message


def test_the_kit_sets_the_policy_of_a_view() -> None:
    """An adapter cannot show another policy than it declares, so that its clauses hold."""
    lockstep = Lockstep(frugal(BOTH))
    for action in (*grown(0, 3), act.Clone(0, 1, 1)):
        lockstep.do(action)

    assert STANDARD == lockstep.engine.observe().capacity
    assert BOTH == lockstep.seen.capacity
    assert 2 == lockstep.seen.named[lockstep.seen.rows[0][0]]


def test_the_kit_sets_the_reserved_cells_of_a_view() -> None:
    """They come from the specification, before and after a refusal, and not from the adapter."""
    lockstep = Lockstep(frugal(WHOLE))
    assert (0, 0, 0, 0) == lockstep.seen.reserved
    for action in (*grown(0, 3), act.Clone(0, 1, 1), act.Free(0)):
        lockstep.do(action)

    assert () == lockstep.engine.observe().reserved
    assert (0, 4, 0, 0) == lockstep.seen.reserved
    lockstep.do(act.Free(0))
    assert (0, 4, 0, 0) == lockstep.seen.reserved
    assert () == Lockstep(frugal(STANDARD)).seen.reserved


def test_a_history_replays_under_the_policy_of_its_engine() -> None:
    """The profile of the engine declares the policy, so a history needs no record of it."""
    history = (*grown(0, 3), act.Clone(0, 1, 1), act.Allocate(((1, 3), (0, 3))))

    for capacity in (LAZY, AHEAD, BOTH, WHOLE, LAZY_WHOLE):
        assert None is replay(partial(frugal, capacity), history)
    finding = replay(partial(frugal, LAZY, "appends in place"), history)
    assert finding is not None
    assert (history, "SHARE") == (finding.history, finding.clause)


LONG_AHEAD = Capacity(lookahead=99)


@pytest.mark.deep
@pytest.mark.parametrize(
    "capacity", deep_after(1, [LAZY_WHOLE, LAZY, AHEAD, BOTH, LONG_AHEAD, WHOLE])
)
def test_the_specification_serves_under_a_policy(capacity: Capacity) -> None:
    """At each level the specification agrees with itself, prefills, rounds and drafts included."""
    sizes = small(pages=7, page_size=3)
    make = partial(
        SpecEngine, sizes, default_limits(sizes), CleanupMode.INCREMENTAL, capacity=capacity
    )
    target = Campaign(make=make, names=make().machine.names, climb=True)
    report = campaign.Run(coverage=target.coverage)
    for start, level in enumerate(LEVELS):
        campaign._take_turn(target, level, start, report)

    assert report.finding is None, report.finding
    assert {"Round: done", "Prefill: done", "Admit: done"} <= set(target.coverage.outcomes)


def test_a_clone_that_takes_no_page_need_not_be_refused_for_pages() -> None:
    """Without pages ahead a lazy clone is never OUT_OF_PAGES; its corners depend on the policy."""
    wanted = {name: set(wanted_of(POLICIES[name])) for name in POLICIES}
    eager = set(wanted_of(STANDARD))

    assert {"Clone: OUT_OF_PAGES"} == eager - wanted["lazy"]
    assert {
        "append in a lazily shared page",
        "the last owner keeps a lazily shared page",
        "several lazy copies in one batch",
        "lazy copies take the last free pages",
        "one page short of a lazy copy",
    } == wanted["lazy"] - eager
    assert {
        "free a row with pages taken ahead",
        "one page short of what is taken ahead",
    } == wanted["ahead"] - eager
    assert eager | wanted["lazy"] | wanted["ahead"] == wanted["both"]


def test_a_prompt_must_be_refused_for_pages_exactly_where_they_are_reserved() -> None:
    """The corners of pages taken ahead are those of reserved pages too."""
    eager, both = set(wanted_of(STANDARD)), set(wanted_of(BOTH))
    whole, lazy = set(wanted_of(WHOLE)), set(wanted_of(LAZY_WHOLE))

    assert {
        "Assign: OUT_OF_PAGES",
        "free a row with pages taken ahead",
        "one page short of what is taken ahead",
    } == whole - eager
    assert {"Assign: OUT_OF_PAGES"} == lazy - both
    roomy = [evolve(one, pages=one.slots * one.pages_per_seq) for one in TURNS]
    offered = offered_by(frugal(WHOLE).profile, roomy, poisonable=False)
    assert "Assign: OUT_OF_PAGES" not in Coverage().coverable(offered)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("copy", "lasy"),
        ("copy", None),
        ("lookahead", -1),
        ("lookahead", True),
        ("reserve", "all"),
        ("reserve", True),
    ],
)
def test_a_profile_has_known_policies_alone(field: str, value: object) -> None:
    """A misspelt policy is bad input."""
    given = frugal(STANDARD).profile
    with pytest.raises(InvalidInput, match=f"Profile.{field}"):
        evolve(given, **{field: value})  # type: ignore[arg-type]


def test_a_batch_of_one_slot_has_one_copy_and_no_last_owner() -> None:
    """An engine that takes the batches of each slot alone need not reach those corners."""
    corners = {
        "several slots of one batch take the last free pages",
        "a batch of several slots is one page short",
        "several lazy copies in one batch",
        "the last owner keeps a lazily shared page",
    }
    alone = evolve(frugal(LAZY).profile, batches="one slot")

    assert corners <= {*wanted_of(LAZY)}
    assert corners.isdisjoint(Coverage().coverable(offered_by(alone, TURNS, poisonable=False)))


@pytest.mark.parametrize(
    ("sizes", "missing"),
    [
        (small(pages=12, page_size=3), set()),
        (
            small(pages=13, page_size=3),
            {"lazy copies take the last free pages", "one page short of a lazy copy"},
        ),
        (small(pages=2, page_size=3), {"several lazy copies in one batch"}),
        (small(pages=4, page_size=3, slots=2), {"several lazy copies in one batch"}),
    ],
)
def test_what_lazy_copies_must_reach_depends_on_the_sizes(
    sizes: Geometry, missing: set[str]
) -> None:
    """Three owners need slots and pages; a row that shares a page must leave room to fill."""
    offered = offered_by(frugal(LAZY).profile, [sizes], poisonable=False)
    corners = {name for name, needs in CORNERS.items() if "lazy copies" in needs}
    corners -= {LAZY_COPY}  # of a dispatch, which this engine does not have

    assert missing == corners - {*Coverage().coverable(offered)}


class Behind(SpecEngine):
    """It takes 16 cells ahead, and its adapter declares more."""

    declared: ClassVar[int]

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup, capacity=Capacity(lookahead=16))
        self.profile = evolve(self.profile, lookahead=self.declared)

    def apply(self, action: Action) -> Result:
        """Report no result, so that the row alone tells."""
        super().apply(action)
        return None


def behind(declared: int) -> type[Behind]:
    """A factory of engines that declare this lookahead."""
    return type("Behind", (Behind,), {"declared": declared})


@pytest.mark.parametrize("declared", [17, 64, 128])
def test_a_lookahead_that_is_declared_too_large_is_found(declared: int) -> None:
    """The kit chooses rows that are long enough to tell what is taken from what is declared."""
    report = campaign.Run()
    options = campaign.Options(geometry=small(), steps=200, ceiling=False)
    campaign.run(behind(declared), options, report=report, update=lambda *_: None)

    assert report.finding is not None
    assert "ROW" == report.finding.clause
    assert [] == [what for what, _ in report.not_checked if what.startswith("lookahead")]


def test_rows_are_not_made_too_long_to_step() -> None:
    """A lookahead of a thousand cells is reported instead; so is one at sizes that are given."""
    far, near = behind(1000), behind(64)
    given = settings.settings_of(near, small(), alone=True)
    chosen = settings.settings_of(near, small())

    assert small() == settings.settings_of(far, small())[0].geometry
    assert {small()} == {one.geometry for one in given}
    assert small(pages=72, pages_per_seq=18) == chosen[0].geometry
    assert settings.usual(small(), windows=True)[1:] == chosen[1:]
