"""The list of unchecked clauses: every clause is either judged or on the list."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import toy_engine
from attrs import evolve
from spec_engine import SpecEngine, small

from conformance.lockstep.not_checked import (
    FINISHING,
    clauses_not_judged,
    not_checked,
)
from conformance.lockstep.run import replay
from conformance.protocol import Action, Engine, Result, Rounds
from conformance.rungs.lifecycle import CLEANUPS
from spec.clauses import CLAUSES
from spec.machines import actions as act
from spec.view import View
from spec.vocabulary import (
    INVALID,
    Capacity,
    CleanupMode,
    FinishReason,
    Params,
    Reason,
    Refusal,
    Request,
    default_limits,
    refused,
)
from spec.vocabulary.events import Event

SIZES = small(pages=6, page_size=2, slots=3, pages_per_seq=4, window=8)
ALONE = Params(max_new=3)
HISTORY = (
    act.Reserve(0),
    act.Assign(0, (5, 6, 7), ALONE, 1),
    act.Allocate(((0, 0), (0, 1), (0, 2))),
    act.Write(((0, 0), (0, 1), (0, 2))),
    act.Clone(0, 1, 1),
    act.Free(1),
    act.Reset(),
    act.Submit(Request(id=2, prompt=(1, 2), params=ALONE)),
    act.Admit(),
    act.Generate(),
    act.Reserve(0),
    act.Assign(0, (5, 6), ALONE, 3),
    act.Propose(0, (7,)),
    act.Truncate(0, 0),
    act.Reserve(1),
    act.Assign(1, (1, 2, 3, 4), ALONE, 4),
    act.Allocate(((1, 0), (1, 1), (1, 2), (1, 3))),
    act.Write(((1, 0), (1, 1), (1, 2), (1, 3))),
    act.Publish(1, 4),
    act.Publish(1, 4),
    act.Reserve(2),
    act.Assign(2, (1, 2, 3), ALONE, 5),
    act.Dispatch(((2, 1),)),
    act.Retire(),
    act.Dispatch(((2, 1),)),
    act.Free(2),
)


class Lying:
    """An engine that shows another view from its nth step on, or does that step wrongly."""

    def __init__(
        self,
        inner: Engine,
        step: int,
        show: Callable[[View], View] | None = None,
        do: Callable[[Action], Result] | None = None,
        count: Mapping[str, object] | None = None,
        tell: Sequence[Event] | None = None,
    ) -> None:
        self.profile, self._inner, self._step = inner.profile, inner, step
        self._show, self._do, self._count, self._taken = show, do, count or {}, 0
        self._tell = tell

    def apply(self, action: Action) -> Result:
        """The result of the inner engine, or of the lie at its step."""
        self._taken += 1
        if self._do is not None and self._taken == self._step:
            return self._do(action)
        return self._inner.apply(action)

    def observe(self) -> View:
        """The view of the inner engine, or the lie from its step on."""
        view = self._inner.observe()
        return self._show(view) if self._show is not None and self._taken >= self._step else view

    def statistics(self) -> Mapping[str, object]:
        """Those of the inner engine, or those of the lie from its step on."""
        return self._count if self._taken >= self._step else {}

    def events(self) -> Sequence[Event]:
        """Those of the inner engine, or those of the lie from its step on."""
        told: Sequence[Event] = self._inner.events()  # type: ignore[attr-defined]
        return told if self._tell is None or self._taken < self._step else self._tell


def right() -> SpecEngine:
    """An engine that shows every field and offers every action."""
    return SpecEngine(SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)


def without_tokens(view: View) -> View:
    """The view by which CONTENT is not judged, which would be violated before READ."""
    return evolve(view, tokens=None)


def put(name: str, index: int, value: Any) -> Callable[[View], View]:
    """A function that changes one entry of a field of a view."""

    def change(view: View) -> View:
        values = list(getattr(view, name))
        values[index] = value
        changed: dict[str, Any] = {name: tuple(values)}
        return evolve(view, **changed)

    return change


def refuse(_action: Action) -> Result:
    """Refuse an action, although it is legal."""
    raise refused([Refusal(Reason.OUT_OF_PAGES, None, None)])


def two_names(view: View) -> View:
    """A view in which two slots can write the same pages, with the counts to match."""
    rows = (view.rows[0], (*view.rows[0][:2], INVALID, INVALID), view.rows[2])
    return evolve(view, rows=rows, counts=(2, 2, 0, 0, 0, 0))


def one_more(view: View) -> View:
    """A view with one more token in slot 0."""
    assert view.tokens is not None
    return evolve(view, tokens=((*view.tokens[0], 9), *view.tokens[1:]))


def one_released(view: View) -> View:
    """The first page of slot 0 is given back, and its cells are in the window."""
    rows = ((INVALID, *view.rows[0][1:]), *view.rows[1:])
    return evolve(view, rows=rows, counts=(0, 1, 0, 0, 0, 0), first_page=(1, 0, 0))


LIES: dict[str, tuple[int, dict[str, Any]]] = {
    "CONS": (1, {"show": put("counts", 5, 1)}),
    "UAF": (3, {"show": put("counts", 0, 0)}),
    "RC": (3, {"show": put("counts", 0, 2)}),
    "ROW": (3, {"show": put("allocated", 0, 1)}),
    "LEN": (4, {"show": put("written", 0, 4)}),
    "SHARE": (5, {"show": two_names}),
    "CONTENT": (4, {"show": put("cells", 0, (9,))}),
    "READ": (4, {"show": put("cells", 1, ())}),
    "Q": (4, {"show": lambda view: evolve(view, queue=((7, 2, 0),))}),
    "OUT": (4, {"show": lambda view: evolve(view, outputs=((1, 0, (), FinishReason.STOP),))}),
    "ATOMIC": (3, {"do": refuse}),
    "RESET": (7, {"do": lambda _: None}),
    "STAT": (5, {"count": {"active": 1}}),
    "EVT": (19, {"tell": []}),
    "DET": (1, {"do": lambda _: 2}),
    "PROG": (10, {"do": lambda _: Rounds(0, None)}),
    "ALONE": (2, {"show": one_more}),
    "WIN": (4, {"show": one_released}),
    "RB": (14, {"show": put("proposed", 0, (7,))}),
    "PC": (19, {"show": put("indexed", 0, (0, 1, 3))}),
    "CHAIN": (19, {"show": put("indexed", 0, ())}),
    "EVICT": (20, {"show": put("indexed", 1, ())}),
    "SNAP": (23, {"show": put("flights", 0, (False, ((2, 0, 2, False),), ()))}),
    "HELD": (23, {"show": put("held", 2, 0)}),
    "SETTLED": (24, {"show": put("committed", 2, 1)}),
    "FENCE": (26, {"show": put("used", 2, 1)}),
}
"""For each clause that can be judged: a step, and the lie that violates the clause at this step."""


def test_an_engine_that_shows_everything_is_judged_by_all_but_four() -> None:
    """Three clauses compare runs or values of attention; the specification compiles nothing."""
    assert {"ATT", "KNOB", "GEOM", "JIT"} == set(clauses_not_judged(right()))


def test_every_clause_is_judged_or_listed() -> None:
    """The clauses that are judged for a plain allocator are exactly those that are not listed."""
    toy = toy_engine.Adapter(SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)
    listed = clauses_not_judged(toy)

    assert {"CONS", "UAF", "RC", "ROW", "SHARE", "WX", "ATOMIC", "DET"} == set(CLAUSES) - set(
        listed
    )
    assert "the engine does not show tokens, cells" == listed["CONTENT"]
    assert "the engine does not offer Reset" == listed["RESET"]
    assert "the engine does not offer Prefill or Round or Generate" == listed["ALONE"]
    assert "the adapter has no statistics" == listed["STAT"]
    assert "the adapter has no compilations and no pool_copies" == listed["JIT"]
    assert list(listed) == [name for name in CLAUSES if name in listed]
    parts = dict(not_checked(toy))
    assert "the engine promises no policy" == parts["DET, which free page is taken"]
    assert "ATOMIC, refusal of legal actions" not in parts
    toy.profile = evolve(toy.profile, refuses="may_refuse_more")
    assert "ATOMIC, refusal of legal actions" in dict(not_checked(toy))


@pytest.mark.parametrize("clause", LIES)
def test_a_clause_that_is_not_listed_can_be_found_violated(clause: str) -> None:
    """An engine with a lie at one step is found at this step by the clause."""
    step, lie = LIES[clause]

    def honest() -> Engine:
        return Lying(right(), 0, without_tokens) if clause == "READ" else right()

    found = replay(lambda: Lying(honest(), step, **lie), HISTORY)

    assert None is replay(honest, HISTORY)
    assert clause not in clauses_not_judged(honest())
    assert found is not None
    assert (clause, step) == (found.clause, len(found.history))


def test_only_clauses_of_two_views_are_without_a_lie() -> None:
    """WX and FRAME take two steps to violate, and the planted bugs do that."""
    judged = set(CLAUSES) - set(clauses_not_judged(right()))

    assert {"WX", "FRAME"} == judged - set(LIES)


def test_an_engine_with_append_has_a_caller_with_a_queue() -> None:
    """Append is not missing from an engine with a queue, nor the queue from one with Append."""
    limits, actions = default_limits(SIZES), frozenset({act.Reserve, act.Append})
    appending = SpecEngine(SIZES, limits, CleanupMode.NONE, actions=actions)
    theirs = dict(not_checked(appending))
    ours = " ".join(name for name, _ in not_checked(right()))

    apart = next(name for name, why in theirs.items() if "its caller has the queue" in why)
    queue = "Admit, Deliver, Dispatch, Enqueue, Generate, MixedRound, Pack, Preempt, Prefill, Purge"
    assert f"{queue}, Replay, Retire, Round, Submit" == apart
    assert "Append" not in ours


@pytest.mark.parametrize("finishing", sorted(FINISHING, key=str))
def test_cleanup_of_what_never_finishes_is_reported(finishing: type) -> None:
    """A cleanup has nothing to do, and is listed, until one action may finish a sequence."""
    limits, actions = default_limits(SIZES), frozenset({act.Reserve, *CLEANUPS})
    idle = SpecEngine(SIZES, limits, CleanupMode.NONE, actions=actions)
    serving = SpecEngine(SIZES, limits, CleanupMode.NONE, actions=actions | {finishing})
    what = "FreeFinished, TakeOutputs after a sequence has finished"

    assert "no offered action finishes one" == dict(not_checked(idle))[what]
    assert what not in dict(not_checked(serving))


@pytest.mark.parametrize(
    ("lookahead", "pages_per_seq", "listed"),
    [
        (0, 1, []),
        (1, 1, ["lookahead past 0 cells"]),
        (5, 4, []),
        (6, 4, ["lookahead past 5 cells"]),
    ],
)
def test_a_lookahead_past_the_rows_is_reported(
    lookahead: int, pages_per_seq: int, listed: list[str]
) -> None:
    """A lookahead is told from others if one cell, it, and another page fit a row."""
    sizes = small(pages=6, page_size=2, slots=3, pages_per_seq=pages_per_seq)
    capacity = Capacity(lookahead=lookahead)
    engine = SpecEngine(sizes, default_limits(sizes), CleanupMode.NONE, capacity=capacity)
    pages = {
        ahead: [
            Capacity(lookahead=ahead).row_pages(sizes, cell, 0) for cell in range(sizes.max_len)
        ]
        for ahead in (lookahead, lookahead + 1)
    }

    found = {what: why for what, why in not_checked(engine) if what.startswith("lookahead")}
    assert dict.fromkeys(listed, "the rows of these sizes end there") == found
    assert (lookahead > 0 and pages[lookahead] == pages[lookahead + 1]) == bool(listed)


def test_batches_of_several_slots_need_several_slots() -> None:
    """With one slot no batch has tokens of several."""
    sizes = small(pages=6, page_size=2, slots=1, pages_per_seq=4)
    alone = SpecEngine(sizes, default_limits(sizes), CleanupMode.NONE)

    assert "these sizes have one slot" == dict(not_checked(alone))["batches of several slots"]
    assert "batches of several slots" not in dict(not_checked(right()))


def test_every_call_that_is_guarded_is_reported() -> None:
    """A guarded reason is reported for each action that the specification refuses for it."""
    guarded = {
        (act.Allocate, Reason.SLOT_UNUSED),
        (act.Write, Reason.BATCH_WIDTH),
        Reason.SLOT_USED,
    }
    engine = SpecEngine(SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)
    engine.profile = evolve(engine.profile, guarded=guarded)

    found = [what for what, why in not_checked(engine) if "Profile.guarded" in why]
    assert [
        "Allocate that is refused for SLOT_UNUSED",
        "Clone that is refused for SLOT_USED",
        "Reserve that is refused for SLOT_USED",
        "Write that is refused for BATCH_WIDTH",
    ] == found


def test_a_profile_that_guards_everything_is_told() -> None:
    """Nothing can then be refused."""
    engine = SpecEngine(SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)
    engine.profile = evolve(engine.profile, guarded=set(Reason))

    assert ("refusals", "Profile.guarded leaves no reason for which a call could be refused") in [
        *not_checked(engine)
    ]


def test_the_reasons_of_an_action_are_those_of_its_checks() -> None:
    """An action that contains another has its reasons too, without those that cannot be."""
    machine = SpecEngine(SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL).machine

    assert {Reason.SLOT_RANGE, Reason.SLOT_UNUSED} == machine.reasons(act.Free)
    assert Reason.OUT_OF_PAGES in machine.reasons(act.Round)
    assert Reason.SLOT_RANGE not in machine.reasons(act.Round)
