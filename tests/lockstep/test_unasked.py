"""Engines that publish, merge and evict unasked: any policy holds, and each bug is found."""

from collections.abc import Callable
from functools import partial

import pytest
from attrs import evolve
from deep import deep_after
from prefix_toys import BUGS, POLICIES, PrefixToy, make
from spec_engine import ACTIONS, SpecEngine, small

from conformance.fuzzing import campaign
from conformance.fuzzing.settings import Setting
from conformance.lockstep.lockstep import Lockstep
from conformance.protocol import Action, Profile, Result
from conformance.rungs.coverage import Coverage, offered_by
from spec.machines import actions as act
from spec.machines.actions import Drop, Evict, Hit, Merge, Publish
from spec.vocabulary import CleanupMode, Geometry, InvalidInput, Params, Reason, default_limits

SIZES = small()
STEPS = 2000
"""The steps within which fuzzing finds each bug; it takes 120 to 450."""
NEEDS = {
    "merges pages of other texts": "as transformers",
    "merges without letting go": "as transformers",
}
"""The bugs that a policy of their own shows."""
CLAUSES = {
    "evicts a page of a row": "EVICT",
    "hits a page of another text": "ROW",
    "hits without a name": "RC or CONS",
    "finds a page by its own tokens alone": "ROW or PC",
    "frees for all": "UAF",
    "frees twice": "ROW",
    "merges pages of other texts": "ROW",
    "merges without letting go": "CONS",
    "keeps what extends a page that is gone": "CHAIN",
    "loses an idle page": "CONS",
    "refuses while idle pages are left": "ATOMIC",
}
"""The clause that each bug violates first; PC otherwise."""


def fuzzed(policy: str, bug: str, *, steps: int, seed: int = 0) -> campaign.Run:
    """Fuzz the toy until so many steps are taken or a step fails."""
    report = campaign.Run()
    options = campaign.Options(geometry=SIZES, seed=seed, steps=steps, ceiling=False)
    campaign.run(partial(make, policy, bug), options, report=report, update=lambda *_: None)
    return report


@pytest.mark.parametrize("policy", deep_after(1, POLICIES))
def test_any_policy_holds(policy: str) -> None:
    """Nothing is found, and the engine has published, hit and, where it merges, merged."""
    report = fuzzed(policy, "", steps=2500)
    merges = {"Merge: done"} if policy == "as transformers" else set()

    assert report.finding is None, report.finding
    assert {"Publish: done", "Hit: done", *merges} <= report.coverage.outcomes.keys()
    assert report.coverage.corners["Allocate takes an idle page"]


@pytest.mark.parametrize("bug", deep_after(4, BUGS))
def test_each_bug_of_an_index_is_found(bug: str) -> None:
    """By the clause that it violates."""
    report = fuzzed(NEEDS.get(bug, "as vLLM"), bug, steps=STEPS)

    assert report.finding is not None
    assert report.finding.clause in CLAUSES.get(bug, "PC").split(" or ")


def toy(policy: str = "as vLLM", pages: int = 4) -> PrefixToy:
    """A toy with pages of two cells."""
    sizes = Geometry(pages=pages, page_size=2, slots=3, pages_per_seq=3)
    return make(policy, "", sizes, default_limits(sizes), CleanupMode.INCREMENTAL)


def written(slot: int, text: tuple[int, ...], context: int = 0) -> tuple[Action, ...]:
    """A sequence with all of its cells."""
    cells = tuple((slot, position) for position in range(len(text)))
    begun = act.Assign(slot, text, Params(max_new=1), request=slot)
    return (act.Reserve(slot, context), begun, act.Allocate(cells), act.Write(cells))


def test_what_the_engine_chose_is_taken_by_the_specification() -> None:
    """The idle page that became idle last is evicted, where the specification takes the first."""
    lockstep = Lockstep(toy("newest", pages=2))
    for action in (*written(0, (1, 1)), *written(1, (2, 2)), act.Free(0), act.Free(1)):
        lockstep.do(action)
    lockstep.do(act.Reserve(2))
    lockstep.do(act.Allocate(((2, 0),)))

    assert [Evict((2, 2))] == [one.action for one in lockstep.unasked]
    assert [(1, 1)] == [entry.chain for entry in lockstep.state.indexed if entry]


def test_a_page_is_published_before_its_sequence_ends() -> None:
    """As a cache does that takes over the pages of what it frees."""
    lockstep = Lockstep(toy("at the end"))
    for action in (*written(0, (1, 1, 2, 2)), act.Free(0)):
        lockstep.do(action)

    assert [Publish(0, 2), Publish(0, 4)] == [one.action for one in lockstep.unasked]
    assert all(entry is None or entry.rank == 1 for entry in lockstep.state.indexed)


@pytest.mark.parametrize("kept", [True, False])
def test_a_key_moves_to_another_page_with_its_content(*, kept: bool) -> None:
    """Whether that one is in a row (kept), or idle as the one that was evicted."""
    lockstep = Lockstep(toy())
    ends = (act.Free(0),) if kept else (act.Free(0), act.Free(1))
    third = (act.Reserve(2), act.Allocate(((2, 0), (2, 1), (2, 2), (2, 3), (2, 4))))
    for action in (*written(0, (1, 1)), *written(1, (1, 1)), *ends, *third):
        lockstep.do(action)
    seen = lockstep.seen.indexed

    assert seen is not None
    assert seen.count((0, 1, 1)) == 1
    assert [(1, 1)] == [entry.chain for entry in lockstep.state.indexed if entry]


def test_a_run_covers_what_an_engine_of_this_kind_can_do() -> None:
    """What it does unasked is required too, but for evictions, which may be those of the rules."""
    profile = toy().profile
    sizes = [SIZES, small(pages=9)]
    wanted = Coverage().coverable(offered_by(profile, sizes, poisonable=False))

    corners = {"hit an idle page", "Allocate takes an idle page"}
    assert {"Publish: done", "Hit: done", *corners} <= {*wanted}
    assert {"Evict: done", "Merge: done", "Publish: STALE"}.isdisjoint(wanted)


def test_no_pair_of_steps_has_one_that_is_not_asked_for() -> None:
    """What happens unasked is no step of a run, so that no pair with it could be reached."""
    engine = toy()
    run = campaign.Run(usual=(Setting(SIZES, engine.profile.cleanup, default_limits(SIZES)),))
    kinds = {step.kind for pair in run.pairs(engine) for step in pair}

    assert {Hit, act.Write} <= kinds <= engine.profile.actions


@pytest.mark.deep
def test_what_an_engine_does_not_declare_is_not_counted() -> None:
    """A key that moves to another page is followed as a merge, which this engine never does."""
    report = fuzzed("newest", "", steps=4000)

    assert "Publish: done" in report.coverage.outcomes
    assert "Merge: done" not in report.coverage.outcomes


def test_a_shared_page_need_not_be_merged_unasked() -> None:
    """An engine that merges a page as soon as it is written has it in one row alone."""
    profile, corner = toy("as transformers").profile, "merge a page that others keep"
    asked = evolve(
        profile, actions=profile.actions | {act.Clone, Merge}, unasked=profile.unasked - {Merge}
    )
    unasked = evolve(profile, actions=profile.actions | {act.Clone})

    assert corner in Coverage().coverable(offered_by(asked, [SIZES], poisonable=False))
    assert corner not in Coverage().coverable(offered_by(unasked, [SIZES], poisonable=False))


def test_an_engine_without_contexts_is_told_none() -> None:
    """The layer above it has no word for them."""
    sizes = small()
    engine = SpecEngine(sizes, default_limits(sizes), CleanupMode.INCREMENTAL)
    named = Lockstep(engine).as_sent(act.Reserve(1, 3))
    engine.profile = evolve(engine.profile, contexts=False)

    assert act.Reserve(1, 3) == named
    assert act.Reserve(1) == Lockstep(engine).as_sent(act.Reserve(1, 3))


@pytest.mark.parametrize(
    "given", [{"unasked": {Hit}}, {"unasked": {Publish, Drop}}, {"unasked": 3}, {"contexts": 1}]
)
def test_a_profile_with_other_values_is_refused(given: dict[str, object]) -> None:
    """Only Publish, Merge and Evict happen unasked, and not what the engine is asked for too."""
    sizes = small()
    with pytest.raises(InvalidInput, match=f"Profile.{next(iter(given))}"):
        Profile(
            name="an engine",
            geometry=sizes,
            limits=default_limits(sizes),
            cleanup=CleanupMode.INCREMENTAL,
            actions={act.Reserve, Hit},
            **given,  # type: ignore[arg-type]
        )


def test_what_is_asked_does_not_happen_unasked() -> None:
    """An action has one way to come about."""
    sizes = small()
    with pytest.raises(InvalidInput, match="none that is in"):
        Profile(
            name="an engine",
            geometry=sizes,
            limits=default_limits(sizes),
            cleanup=CleanupMode.INCREMENTAL,
            actions=ACTIONS,
            unasked={Merge},
        )


class Shown(PrefixToy):
    """A toy whose next view follows a script: what it did to its index by itself."""

    script: Callable[["Shown"], None] | None = None

    def apply(self, action: Action) -> Result:
        """Take the action, or refuse it; then do what the script says."""
        try:
            return super().apply(action)
        finally:
            script, self.script = self.script, None
            if script is not None:
                script(self)


def shown(*, pages: int) -> tuple[Lockstep, Shown]:
    """A toy in lockstep that has one text in two slots, and has published nothing yet."""
    sizes = Geometry(pages=pages, page_size=2, slots=3, pages_per_seq=3)
    policy = evolve(POLICIES["at the end"], twins="merged")
    engine = Shown(sizes, default_limits(sizes), CleanupMode.INCREMENTAL, policy=policy)
    lockstep = Lockstep(engine)
    for slot in (0, 1):
        for action in written(slot, (1, 1)):
            lockstep.do(action)
    lockstep.do(act.Reserve(2))
    return lockstep, engine


def test_a_key_moves_in_the_step_that_frees_its_page() -> None:
    """Nothing idle is kept: the key of a page that is freed moves to another one at once."""
    lockstep, engine = shown(pages=6)

    def move(engine: Shown) -> None:
        engine._pages[0, (1, 1)] = [engine._rows[1][0]]
        engine._free.append(engine._idle.pop())

    engine.script = lambda engine: engine._publish(0, 2)
    lockstep.do(act.Append(1, ()))
    assert [Publish(0, 2)] == [one.action for one in lockstep.unasked]
    engine.script = move
    lockstep.do(act.Free(0))

    assert lockstep.state.sequences[0] is None
    assert [(1, 1)] == [entry.chain for entry in lockstep.state.indexed if entry]


def test_who_had_a_page_first_has_published_it() -> None:
    """A row that is merged onto a page in the same step, at a refusal too, did not publish it."""
    lockstep, engine = shown(pages=2)

    def publish(engine: Shown) -> None:
        engine._publish(1, 2)
        engine._publish(0, 2)  # and is merged

    engine.script = publish
    reasons = lockstep.do(act.Allocate(((2, 0),)))

    assert {Reason.OUT_OF_PAGES} == reasons
    assert [Publish(1, 2), Merge(0, 0)] == [one.action for one in lockstep.unasked]


def test_the_page_before_another_one_enters_first() -> None:
    """A longer key does not publish a shorter one that another slot has published."""
    sizes = Geometry(pages=6, page_size=2, slots=3, pages_per_seq=3)
    policy = evolve(POLICIES["at the end"], twins="merged")
    engine = Shown(sizes, default_limits(sizes), CleanupMode.INCREMENTAL, policy=policy)
    lockstep = Lockstep(engine)
    for action in (*written(0, (1, 1, 2, 2)), *written(1, (1, 1))[:-1]):
        lockstep.do(action)

    def publish(engine: Shown) -> None:
        engine._pages[0, (1, 1)] = [engine._rows[1][0]]
        engine._pages[0, (1, 1, 2, 2)] = [engine._rows[0][1]]

    engine.script = publish
    lockstep.do(act.Write(((1, 0), (1, 1))))

    assert [Publish(1, 2), Publish(0, 4)] == [one.action for one in lockstep.unasked]
