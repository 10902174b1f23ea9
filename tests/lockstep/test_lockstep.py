"""The comparer, tested with one right and many wrong engines that are not ours."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import toy_engine
from attrs import evolve
from deep import deep_after
from spec_engine import SpecEngine, small
from spec_tools import grown

from conformance.fuzzing import campaign, settings
from conformance.fuzzing.state_machine import LEVELS, Campaign
from conformance.history import History
from conformance.lockstep.comparer import result_difference
from conformance.lockstep.lockstep import Lockstep, Violation
from conformance.lockstep.run import replay
from conformance.protocol import Action, Engine, Result, Rounds
from spec import clauses, index
from spec.machines import actions as act
from spec.table import BatchPlan
from spec.view import View
from spec.vocabulary import (
    INVALID,
    CleanupMode,
    FinishReason,
    Geometry,
    InvalidInput,
    Limits,
    Params,
    Reason,
    Request,
    default_limits,
)

SIZES = small(pages=4, page_size=2, slots=3, pages_per_seq=4)


def toy(bug: str = "", sizes: Geometry = SIZES) -> toy_engine.Adapter:
    """A toy engine with one of its bugs, or with none."""
    adapter = toy_engine.Adapter(sizes, default_limits(sizes), CleanupMode.INCREMENTAL)
    adapter.allocator.bug = bug
    return adapter


def run(engine: Engine, history: History) -> Lockstep:
    """The lockstep after an engine has taken a history of actions."""
    lockstep = Lockstep(engine)
    for step in history:
        assert isinstance(step, Action)
        lockstep.do(step)
    return lockstep


def turns(target: Campaign, level: str, *, start: int, steps: int) -> campaign.Run:
    """Fuzz one level until this many steps are taken or a step fails."""
    report = campaign.Run(coverage=target.coverage)
    while report.steps < steps and report.finding is None:
        campaign._take_turn(target, level, start, report)
        start += 1
    return report


class Wrapped:
    """An engine whose results or views are changed by a function."""

    def __init__(
        self,
        inner: Engine,
        *,
        result: Callable[[Result], Result] = lambda result: result,
        view: Callable[[View], View] = lambda view: view,
    ) -> None:
        self.profile, self._inner, self._result, self._view = inner.profile, inner, result, view

    def apply(self, action: Action) -> Result:
        """The changed result of the inner engine."""
        return self._result(self._inner.apply(action))

    def observe(self) -> View:
        """The changed view of the inner engine."""
        return self._view(self._inner.observe())


TAKING = act.Allocate | act.Clone | act.Prefill | act.Round | act.Admit | act.Dispatch


class NextFit(SpecEngine):
    """The specification with a policy of its own: the next free page after the last one taken."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        self.profile = evolve(self.profile, policy="any")
        self.turn = 0

    def apply(self, action: Action) -> Result:
        """Take an action with the pages that this policy chooses."""
        if isinstance(action, act.Generate):
            return self._generate()
        if isinstance(action, TAKING):
            self.machine.step(self.state, action)
            order = [*range(self.turn, len(self.state.in_use)), *range(self.turn)]
            held, counts = self.state.indexed, self.state.in_use
            pages = [page for page in order if not counts[page] and not index.has(held, page)]
            later = index.next_pages(held, counts, counts.count(0))
            pages += [page for page in later if page not in pages]
            count = len(pages)
            if isinstance(action, act.Allocate | act.Clone | act.Dispatch):
                count = self.machine.pages_wanted(self.state, action)
            before = self.state.in_use
            self._go(action, self.machine.step(self.state, action, tuple(pages[:count])))
            taken = [page for page in pages if self.state.in_use[page] and not before[page]]
            self.turn = (taken[-1] + 1) % len(self.state.in_use) if taken else self.turn
            return None
        return super().apply(action)

    def _generate(self) -> Result:
        for done in range(self.profile.limits.rounds):
            found = self.machine.refusals(self.state, act.Round())
            if found:
                return Rounds(done, min(refusal.reason for refusal in found))
            self.apply(act.Round())
        return Rounds(self.profile.limits.rounds, None)


@contextmanager
def violation(clause: str, part: str) -> Iterator[None]:
    """The block raises a Violation of this clause whose message has this part."""
    with pytest.raises(Violation) as caught:
        yield
    assert (clause, True) == (caught.value.clause, part in caught.value.message), caught.value


PLAN = BatchPlan(
    order=(0,), slot_ids=(0,), destinations=(0,), kv_lens=(1,), page_indices=((0,),),
    cu_q_lens=(0, 1), num_seqs=1,
)  # fmt: skip


@pytest.mark.parametrize("wrong", [False, 0.0])
@pytest.mark.parametrize(
    ("action", "with_zero"),
    [
        (act.Reserve(), lambda zero: zero),
        (act.Allocate(((0, 0),)), lambda zero: evolve(PLAN, destinations=(zero,))),
        (act.Pack(), lambda zero: ((7, zero, 1), (7, 2, 1))),
        (act.TakeOutputs(), lambda zero: ((1, 0, (zero,), FinishReason.STOP),)),
        (act.Generate(), lambda zero: Rounds(zero, None)),
    ],
)
def test_a_result_has_numbers_of_the_right_kind(
    action: Action, with_zero: Callable[[Any], object], wrong: object
) -> None:
    """False and 0.0 equal 0 in Python, and are no slot, token, destination or count."""
    assert None is result_difference(action, with_zero(0), [with_zero(0)])
    found = result_difference(action, with_zero(wrong), [with_zero(0)])

    assert found is not None
    assert (with_zero(wrong), str(with_zero(0))) == (found.seen, found.expected)


def test_the_adapter_of_a_foreign_allocator_is_short() -> None:
    """Forty lines are enough to hold an allocator of unknown design to the specification."""
    assert 40 >= len(
        [line for line in inspect.getsource(toy_engine.Adapter).splitlines() if line.strip()]
    )


def test_one_page_of_two_sequences_is_seen_in_the_rows_alone() -> None:
    """With a policy of its own an engine may name pages as it likes, and each page once."""

    def one_page(view: View) -> View:
        rows = tuple(tuple(0 if page == 1 else page for page in row) for row in view.rows)
        return evolve(view, rows=rows, counts=None, written=None, committed=None, cells=None)

    inner = NextFit(small(), default_limits(small()), CleanupMode.NONE)
    inner.profile = evolve(inner.profile, actions={act.Reserve, act.Allocate, act.Free})
    lockstep = Lockstep(Wrapped(inner, view=one_page))
    for step in (act.Reserve(0), act.Reserve(1), act.Allocate(((0, 0),))):
        lockstep.do(step)

    with violation("DET", "row 1 names page 0, which is another page's"):
        lockstep.do(act.Allocate(((1, 0),)))


@pytest.mark.parametrize("at", deep_after(1, range(3)))
def test_a_foreign_allocator_passes_random_histories(at: int) -> None:
    """An engine with another page policy that hides tokens and cells passes random histories."""
    setting = settings.usual(small())[at]
    target = Campaign(make=partial(settings.make, toy_engine.Adapter, *setting))

    report = turns(target, "lifecycle", start=11, steps=500)

    assert None is report.finding
    assert 500 <= target.steps
    assert {"Reserve", "Assign", "Allocate", "Write", "Clone", "Free"} == set(
        target.coverage.actions
    )
    assert target.coverage.corners["page size 1" if at == 1 else "clone inside a page"]


@pytest.mark.parametrize(
    ("at", "level"), deep_after(1, [*reversed([*enumerate(LEVELS)]), (2, "scheduling")])
)
def test_pages_are_compared_through_one_bijection(at: int, level: str) -> None:
    """An engine with another page policy passes every level, rounds and cleanup included."""
    usual = settings.usual(small())
    setting = usual[at % len(usual)]
    target = Campaign(make=partial(settings.make, NextFit, *setting))

    report = turns(target, level, start=5, steps=500)

    assert None is report.finding, report.finding


def test_a_page_may_be_freed_and_taken_again_in_one_action() -> None:
    """One Generate may free a page and take it for another sequence although no row has moved."""
    sizes = small(pages=6, page_size=2, slots=3, pages_per_seq=4)
    limits = evolve(default_limits(sizes), rounds=2)
    engine = NextFit(sizes, limits, CleanupMode.INCREMENTAL)
    short = Request(id=1, prompt=(1,), params=Params(max_new=2))
    long = Request(id=2, prompt=(1, 2, 3), params=Params(max_new=5))

    lockstep = run(engine, (act.Prefill((short, long)), act.Generate()))

    assert (1, 2, 0) == lockstep.state.sequences[1].row  # type: ignore[union-attr]
    assert (1, 2, 3) == lockstep.seen.rows[1][:3]


def _settings(engine: Engine) -> tuple[Geometry, Limits, CleanupMode]:
    return engine.profile.geometry, engine.profile.limits, engine.profile.cleanup


def test_what_is_not_shown_is_not_checked_and_said() -> None:
    """The clauses that need a field of value None are listed, and the others are still judged."""
    seen = run(toy(), grown(0, 3, request=1)).seen

    ahead = ("SNAP", "SETTLED", "FENCE", "HELD")
    named = ("LEN", "WIN", "PC", "CHAIN", "CONTENT", "READ", "Q", "OUT", *ahead)
    assert (*named, "FRAME", "EVICT", "RB") == clauses.not_checked(seen)
    assert ("CONS", "UAF", "RC", *clauses.not_checked(seen)) == clauses.not_checked(
        evolve(seen, counts=None)
    )
    geometry, limits, cleanup = _settings(toy())
    assert ("WIN",) == clauses.not_checked(run(SpecEngine(geometry, limits, cleanup), ()).seen)
    windowed = SpecEngine(evolve(geometry, window=2), limits, cleanup)
    assert () == clauses.not_checked(run(windowed, ()).seen)


@pytest.mark.parametrize("field", ["committed", "proposed"])
def test_an_engine_with_drafts_shows_them_beside_its_tokens(field: str) -> None:
    """An engine that shows tokens without the fields of drafts is refused as bad input."""
    hidden: dict[str, Any] = {field: None}

    def engine(**more: Any) -> Wrapped:
        return Wrapped(
            SpecEngine(*_settings(toy())), view=lambda view: evolve(view, **hidden, **more)
        )

    with pytest.raises(InvalidInput, match=rf"View\.{field}") as refused:
        Lockstep(engine())
    assert "Show it, or do not offer Commit, Dispatch, Propose, Truncate" in str(refused.value)
    assert "RB" in clauses.not_checked(Lockstep(engine(tokens=None)).seen)


def test_an_engine_with_releases_shows_its_first_pages() -> None:
    """Without them a row with released entries would be taken for one with holes."""
    geometry, limits, cleanup = _settings(toy())
    engine = SpecEngine(evolve(geometry, window=2), limits, cleanup)

    with pytest.raises(InvalidInput, match=r"View\.first_page: saw None.*do not offer Release"):
        Lockstep(Wrapped(engine, view=lambda view: evolve(view, first_page=None)))


def test_an_engine_without_drafts_shows_nothing_of_them() -> None:
    """It has no steps in flight: what is written of its tokens is committed."""
    geometry, limits, cleanup = _settings(toy())
    engine = SpecEngine(evolve(geometry, window=2), limits, cleanup)
    drafts = {act.Propose, act.Commit, act.Truncate, act.Dispatch}
    engine.profile = evolve(engine.profile, actions=engine.profile.actions - drafts)

    Lockstep(Wrapped(engine, view=lambda view: evolve(view, committed=None, proposed=None)))


def test_an_engine_shows_the_same_fields_in_every_view() -> None:
    """A field that is shown at first and hidden later is not taken for one that is not shown."""

    def hides(view: View) -> View:
        return evolve(view, tokens=None) if any(view.used) else view

    lockstep = Lockstep(Wrapped(SpecEngine(*_settings(toy())), view=hides))
    with pytest.raises(InvalidInput, match=r"View\.tokens: saw 'shown in one view"):
        lockstep.do(act.Reserve(0))


def test_an_engine_that_shows_rows_alone_is_still_compared() -> None:
    """A view may hold rows and used slots alone, and they still reveal a moved row."""

    def rows_only(view: View) -> View:
        return View(geometry=view.geometry, counts=None, used=view.used, rows=view.rows)

    moving = (*grown(0, 3, request=1), *grown(1, 1, request=2), act.Free(1))

    assert None is replay(lambda: Wrapped(toy(), view=rows_only), moving)
    with violation("DET", "row 0 names page 1 where it named 3"):
        run(Wrapped(toy("rename"), view=rows_only), moving)


@pytest.mark.parametrize(
    ("bug", "history", "clause", "part"),
    [
        ("leak", (*grown(0, 3, request=1), act.Free(0)), "CONS", "counts[2] is 1, should be 0"),
        (
            "double free",
            (*grown(0, 2, request=1), act.Clone(0, 1, 1), act.Free(0)),
            "UAF",
            "names page 3, whose count is 0",
        ),
        (
            "rename",
            (*grown(0, 3, request=1), *grown(1, 1, request=2), act.Free(1)),
            "DET",
            "row 0 names page 1 where it named 3",
        ),
        (
            "forgets to count",
            (*grown(0, 2, request=1), act.Clone(0, 1, 1)),
            "RC",
            "counts[3] is 1, should be 2",
        ),
        (
            "refuses what is legal",
            grown(0, 7, request=1),
            "ATOMIC",
            "refused: OUT_OF_PAGES, should be done",
        ),
        ("does what is illegal", (act.Free(2),), "ATOMIC", "should be refused: SLOT_UNUSED"),
        (
            "changes when it refuses",
            (*grown(0, 6, request=1), *grown(1, 4, request=2)),
            "CONS",
            "counts[0] is 1, should be 0",
        ),
    ],
)
def test_a_bug_of_a_foreign_engine_violates_its_clause(
    bug: str, history: History, clause: str, part: str
) -> None:
    """Each bug violates its clause, and the engine without the bug passes."""
    with violation(clause, part):
        run(toy(bug), history)
    assert None is replay(toy, history)


def test_an_engine_may_declare_that_it_refuses_more() -> None:
    """A legal action may be refused by an engine that declares so, but not for a wrong reason."""
    cautious = toy("refuses what is legal")
    cautious.profile = evolve(cautious.profile, refuses="may_refuse_more")
    history = grown(0, 7, request=1)

    lockstep = run(cautious, history[:2])
    assert {Reason.OUT_OF_PAGES} == lockstep.do(act.Allocate(tuple((0, at) for at in range(7))))
    assert frozenset() == lockstep.do(act.Allocate(((0, 0),)))
    with violation("ATOMIC", "the action is done, should be refused: SLOT_UNUSED"):
        evolved = toy("does what is illegal")
        evolved.profile = cautious.profile
        run(evolved, (act.Free(1),))


def test_a_refusal_gives_one_of_the_right_reasons() -> None:
    """A reason that does not hold is a violation, although the action is illegal."""
    engine = toy()
    engine.allocator.slots = 2

    with violation("ATOMIC", "the reason is SLOT_RANGE, should be SLOT_UNUSED"):
        run(engine, (act.Free(2),))


@pytest.mark.parametrize(
    ("action", "wrong", "clause"),
    [
        (act.Reserve(), lambda _: 1, "DET"),
        (act.Pack(), lambda leaving: leaving[1:], "Q"),
        (act.TakeOutputs(), lambda outputs: outputs[::-1], "OUT"),
        (act.Generate(), lambda rounds: evolve(rounds, done=rounds.done + 1), "PROG"),
        (act.Generate(), lambda rounds: evolve(rounds, refused=Reason.OUT_OF_PAGES), "PROG"),
    ],
)
def test_a_wrong_result_violates_the_clause_of_its_action(
    action: Action, wrong: Callable[[Result], Result], clause: str
) -> None:
    """The result of an action is compared, unless the engine returns None."""
    settings = _settings(SpecEngine(small(), default_limits(small()), CleanupMode.NONE))
    prompts = tuple(
        Request(id=name, prompt=(name, 2, 3), params=Params(max_new=most))
        for name, most in ((1, 1), (2, 1), (3, 6))
    )
    state = run(SpecEngine(*settings), (act.Prefill(prompts),)).state

    def engine(result: Callable[[Result], Result]) -> Wrapped:
        inner = SpecEngine(*settings)
        inner.state = state
        return Wrapped(inner, result=result)

    def take(result: Callable[[Result], Result]) -> None:
        lockstep = Lockstep(SpecEngine(*settings))
        lockstep.state, lockstep.engine = state, engine(result)
        lockstep.seen = lockstep.engine.observe()
        lockstep.do(action)

    with violation(clause, "the result is"):
        take(wrong)
    take(lambda _: None)
    take(lambda result: result)


def test_a_wrong_plan_is_told() -> None:
    """The plan of an allocation is compared with the plan for the engine's own rows."""

    def shifted(plan: Result) -> Result:
        if not isinstance(plan, BatchPlan):
            return plan
        return evolve(plan, destinations=tuple(at + 1 for at in plan.destinations))

    settings = _settings(toy())

    with violation("DET", "destinations=(1, 2)"):
        run(Wrapped(SpecEngine(*settings), result=shifted), grown(0, 2, request=1))


@pytest.mark.parametrize(
    ("field", "value", "clause"),
    [
        ("used", (True, False, False), "DET"),
        ("allocated", (0, 0, 4), "LEN"),
        ("written", (0, 1, 0), "LEN"),
        ("tokens", ((), (7,), ()), "LEN"),
        ("finished", (False, True, False), "OUT"),
        ("queue", ((1, 0, 0),), "Q"),
        ("outputs", ((1, 0, (), FinishReason.LIMIT),), "OUT"),
        ("counts", (0, 0, 1, 0), "CONS"),
        ("rows", ((0, INVALID, INVALID, INVALID),) + ((INVALID,) * 4,) * 2, "ROW"),
    ],
)
def test_every_field_of_a_view_is_held_to_something(field: str, value: object, clause: str) -> None:
    """A new engine that shows a field with any but its initial value is found at once."""
    settings = _settings(toy())

    with violation(clause, ""):
        Lockstep(Wrapped(SpecEngine(*settings), view=lambda view: changed(view, field, value)))


def changed(view: View, field: str, value: Any) -> View:
    """The view with another value in one field."""
    return evolve(view, **{field: value})
