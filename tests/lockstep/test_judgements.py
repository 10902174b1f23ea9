"""What a lockstep makes of failures, refusals without end, a judge in its place, and hidden fields.

Each engine is the specification but for one thing.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import pytest
from attrs import evolve
from drawn_histories import ROOMY, WINDOWED, Wrapped, after_each, copied, drawn, engine_of, trial
from spec_engine import SpecEngine
from spec_tools import planted

from conformance.history import Attend, PoisonDead
from conformance.lockstep import serving
from conformance.lockstep.called import Called
from conformance.lockstep.granted import LONGEST, Granted
from conformance.lockstep.lockstep import SERVE, Lockstep, Violation, differing, require_shown
from conformance.protocol import (
    Action,
    AdapterMistake,
    Engine,
    EngineFailed,
    Poison,
    Result,
)
from spec import view as views
from spec.fields import VIEWED
from spec.machines import actions as act
from spec.rung import LadderBroken
from spec.state import State
from spec.view import View
from spec.vocabulary import (
    CleanupMode,
    FinishReason,
    InvalidInput,
    Params,
    Reason,
    Refusal,
    Refused,
    Request,
    default_limits,
    refused,
)

NOTES: Final = ("the first note", "the second note")


def judged(error: Violation) -> tuple[object, ...]:
    """All that a violation tells."""
    return error.clause, error.message, error.action, error.before, error.after


def names_of(reasons: frozenset[Reason]) -> str:
    """The names of some reasons in the order of the alphabet."""
    return ", ".join(sorted(one.name for one in reasons))


def steps(seed: int = 4) -> Iterator[tuple[Any, Action]]:
    """The lockstep before each step of a history, and that step."""
    return after_each(engine_of(ROOMY), drawn(ROOMY, seed))


def raising(error: Exception, *, acts: bool = False) -> Callable[[Engine, Action], Result]:
    """An engine that raises an error with NOTES; acts: after it has taken the action."""
    for note in NOTES:
        error.add_note(note)

    def apply(inner: Engine, action: Action) -> Result:
        if acts:
            inner.apply(action)
        raise error

    return apply


def notes(error: BaseException) -> tuple[str, ...]:
    """The notes of an error."""
    return tuple(getattr(error, "__notes__", ()))


@pytest.mark.parametrize("raised", [None, "KeyError: 3"])
def test_a_failure_of_an_engine_where_nothing_is_refused_is_its_own(raised: str | None) -> None:
    """It keeps its clause, its text and its notes, and the view after it is kept if it raised."""
    for lockstep, step in steps():
        if lockstep.reasons(step):
            continue
        error = EngineFailed("it fell over", clause="PROG", raised=raised)
        other = trial(lockstep, apply=raising(error, acts=True))
        with pytest.raises(EngineFailed) as found:
            other.do(step)
        assert (str(error), "PROG", raised) == (
            str(found.value), found.value.clause, found.value.raised,
        )  # fmt: skip
        assert NOTES == notes(found.value)
        assert error is found.value.__cause__
        assert (other.engine.observe() if raised else lockstep.seen) == other.seen


def unreadable(_view: View) -> View:
    """A view that cannot be read."""
    raise EngineFailed("no view")


def unseen(_view: View) -> View:
    """A view that cannot be shown."""
    raise InvalidInput("View", seen=None, allowed="a view", remedy="Show it.")


def test_an_exception_where_the_specification_refuses_is_an_untranslated_refusal() -> None:
    """If anything has changed, or cannot be read, it is the engine's failure and says so."""
    told_of = 0
    for lockstep, step in steps():
        reasons = lockstep.reasons(step)
        if not reasons:
            continue
        error = EngineFailed("the engine raised it", raised="IndexError: 7")
        other = trial(lockstep, apply=raising(error))
        with pytest.raises(AdapterMistake) as mistake:
            other.do(step)
        assert f"the adapter's apply({step})" == mistake.value.name
        said = f"IndexError: 7, where the specification refuses: {names_of(reasons)}"
        assert said == mistake.value.seen
        assert NOTES == notes(mistake.value)
        seen = lockstep.seen
        changes: tuple[tuple[Any, str, Any], ...] = (
            (unreadable, "the view, which cannot be read", seen),
            (unseen, "the view, which cannot be read", seen),
            *(
                (lambda _, view=view: view, name, view)
                for name, value in CHANGES.items()
                for view in [evolve(seen, **{name: value(getattr(seen, name))})]
            ),
        )
        for view, changed, after in changes:
            other = trial(lockstep, apply=raising(error), view=view)
            with pytest.raises(EngineFailed) as found:
                other.do(step)
            told = f"; the specification refuses too: {names_of(reasons)}; changed: {changed}"
            assert "the engine raised it" + told == str(found.value)
            assert ("ATOMIC", "IndexError: 7") == (found.value.clause, found.value.raised)
            assert after == other.seen
            told_of += 1
        silent = trial(lockstep, apply=raising(EngineFailed("its process ended")))
        with pytest.raises(EngineFailed) as ended:
            silent.do(step)
        assert "its process ended" == str(ended.value)

    assert told_of


CHANGES: Final[dict[str, Callable[[Any], Any]]] = {
    "used": lambda value: tuple(not one for one in value),
    "counts": lambda value: tuple(one + 1 for one in value),
    "rows": lambda value: value[::-1] if value != value[::-1] else ((0,) * len(value[0]),) * 4,
    "tokens": lambda value: ((7, 7, 7), *value[1:]),
    "cells": lambda value: ((7, 7, 7), *value[1:]),
    "queue": lambda value: (*value, (1, 0, 0)),
}
"""Another value of some fields."""


def test_two_views_differ_in_the_fields_that_have_other_entries() -> None:
    """Cells that are read one at a time are compared by their entries, in either direction."""

    class OneAtATime(list[Any]):
        """Cells that end without a word."""

        def __iter__(self) -> Iterator[Any]:
            raise TypeError

        def __eq__(self, other: object) -> bool:
            raise TypeError

        __hash__ = None

    seen = engine_of(ROOMY).observe()
    assert seen.cells is not None
    for name, change in CHANGES.items():
        other = evolve(seen, **{name: change(getattr(seen, name))})
        assert [name] == differing(seen, other) == differing(other, seen)
        hide: dict[str, Any] = {} if name in {"used", "rows"} else {name: None}
        hidden = evolve(seen, **hide) if hide else other
        assert [name] == differing(seen, hidden) == differing(hidden, seen)
    several = evolve(seen, queue=((1, 0, 0),), used=(True,) * 4, allocated=(1, 0, 0, 0))
    assert ["used", "allocated", "queue"] == differing(seen, several)
    assert [] == differing(seen, evolve(seen))
    lazily, last = evolve(seen), evolve(seen)
    object.__setattr__(lazily, "cells", OneAtATime(seen.cells))
    object.__setattr__(last, "cells", OneAtATime([*seen.cells[:-1], (7,)]))
    assert [] == differing(lazily, seen)
    assert ["cells"] == differing(lazily, last)


@pytest.mark.parametrize("noted", [False, True])
def test_a_mistake_on_an_illegal_call_may_be_one_that_nobody_makes(*, noted: bool) -> None:
    """If the adapter's own code raised, the message says how to declare the call as guarded."""
    for lockstep, step in steps():
        reasons = lockstep.reasons(step)
        error = InvalidInput("the adapter's x", seen="KeyError: 1", allowed="y", remedy="Mend z.")
        apply = raising(error)
        if not noted:
            error.__notes__.clear()
        with pytest.raises(InvalidInput) as found:
            trial(lockstep, apply=apply).do(step)
        if not reasons or not noted:
            assert error is found.value
            continue
        ordered = sorted(one.name for one in reasons)
        guards = ", ".join(f"({type(step).__name__}, Reason.{name})" for name in ordered)
        told = found.value
        assert ("the adapter's x", "y") == (told.name, told.allowed)
        assert f"KeyError: 1, where the specification refuses: {', '.join(ordered)}" == told.seen
        assert told.remedy == (
            "Mend z. If the layer above the engine never makes such a call, declare it in "
            f"Profile.guarded: {guards}."
        )
        assert NOTES == notes(told)
        assert error is told.__cause__


class Judge:
    """A judge of steps that keeps what it is given, and says what it is told to say."""

    def __init__(self, *says: tuple[str, str]) -> None:
        self.given, self.says = list[tuple[View, View, View]](), says

    def __call__(self, before: View, seen: View, wanted: View) -> Iterator[tuple[str, str]]:
        """What it says, whatever it is given."""
        self.given.append((before, seen, wanted))
        return iter(self.says)


def test_a_judge_replaces_every_other_judgement() -> None:
    """It sees the views before, after and as they should be, and is the only one to find."""
    silent, strict = Judge(), Judge(("X", "it is odd"), ("Y", "so is that"))
    first = Lockstep(engine_of(ROOMY), oracle=silent).seen
    assert [(first,) * 3] == silent.given
    for lockstep, step in steps():
        reasons = lockstep.reasons(step)
        wanted = views.of(lockstep.machine, lockstep.state)
        after = copied(lockstep)
        after.do(step)
        wrong = evolve(after.seen, queue=((9, 9, 9),), used=(True,) * 4)
        for judge in (silent, strict):
            other = trial(lockstep, apply=odd, view=lambda _, wrong=wrong: wrong, **lying())
            other._oracle = judge
            given = (lockstep.seen, wrong, wanted if reasons else after.seen)
            if judge is silent:
                assert frozenset() == other.do(step)
                assert (wrong, after.state) == (other.seen, other.state)
                other.attend()
                other.compare_statistics(step)
                other.serve()
                assert given == judge.given[-1]
                continue
            with pytest.raises(Violation) as found:
                other.do(step)
            assert ("X", "it is odd", step, lockstep.seen, wrong) == judged(found.value)
            assert given == judge.given[-1]


def odd(_inner: Engine, _action: Action) -> Any:
    """An engine that answers every call with a word."""
    return "odd"


def lying() -> dict[str, Callable[..., Any]]:
    """Methods that show what is wrong, and must not be asked."""
    return {
        "attend": lambda _: {0: {99: 9}},
        "statistics": lambda _: {"active": 99},
        "events": lambda _: [("stored", (0, 1))],
        "logprobs": lambda _: [[1.0]] * 9,
        "serve": lambda *_: [(9, 9, (), "odd")],
        "erased": lambda _: "nothing",
    }


def test_a_judge_sees_a_refusal_that_changes_the_view() -> None:
    """A refusal is none of its business, unless the view is another one."""
    for lockstep, step in steps():
        judge = Judge(("X", "it is odd"))
        for apply in (refusing(Reason.STOPS), refusing(Reason.SLOT_RANGE)):
            other = trial(lockstep, apply=apply, view=lambda _, seen=lockstep.seen: seen)
            other._oracle = judge
            assert other.do(step) <= {Reason.STOPS, Reason.SLOT_RANGE}
            assert (lockstep.state, lockstep.seen) == (other.state, other.seen)
        assert [] == judge.given
        seen = evolve(lockstep.seen)
        other = trial(lockstep, apply=refusing(Reason.STOPS), view=lambda _, seen=seen: seen)
        other._oracle = judge
        with pytest.raises(Violation) as found:
            other.do(step)
        wrong = "it is odd; the engine refused the action: STOPS"
        assert ("X", wrong, step, lockstep.seen, seen) == judged(found.value)


def refusing(*reasons: Reason) -> Callable[[Engine, Action], Result]:
    """An engine that refuses for these reasons."""

    def apply(_inner: Engine, _action: Action) -> Result:
        raise refused([Refusal(one) for one in reasons])

    return apply


def test_a_lockstep_climbs_only_if_it_is_told_to() -> None:
    """A specification that disagrees with its lower rungs is found by climbing alone."""
    wrong = planted(engine_of(ROOMY).machine, act.Reserve, effect=lambda _m, state, _a, _p: state)
    for climb in (True, False):
        lockstep = Lockstep(engine_of(ROOMY), climb=climb)
        lockstep.machine = wrong
        if climb:
            with pytest.raises(LadderBroken, match="on Reserve"):
                lockstep.do(act.Reserve())
        else:
            with pytest.raises(Violation, match=r"used\[0\] is True, should be False"):
                lockstep.do(act.Reserve())
    climbing = Lockstep(engine_of(ROOMY), climb=True)
    for step in drawn(ROOMY, 2):
        climbing.do(step)


class Forgetful(SpecEngine):
    """It may refuse more, and refuses its action of a number."""

    at = -1
    reason = Reason.OUT_OF_PAGES

    def __init__(self, *given: Any, **policy: Any) -> None:
        super().__init__(*given, **policy)
        self.profile = evolve(self.profile, refuses="may_refuse_more")
        self.done = 0

    def apply(self, action: Action) -> Result:
        """Take the action, or refuse it."""
        self.done += 1
        if self.done - 1 == self.at:
            raise refused(self.reason)
        return super().apply(action)


ROUND_TRIP: Final = (
    act.Reserve(0),
    act.Assign(0, (1, 2, 3), Params(max_new=2), 1),
    act.Allocate(((0, 0), (0, 1), (0, 2))),
    act.Allocate(((0, 3), (0, 4))),
    act.Free(0),
)
"""A history that ends where it begins; the third action takes two pages, the fourth one."""


@pytest.mark.parametrize("trips", [1, 2])
@pytest.mark.parametrize("at", range(len(ROUND_TRIP)))
@pytest.mark.parametrize("reason", [Reason.OUT_OF_PAGES, Reason.STOPS])
def test_what_was_done_in_the_same_place_is_done_again(reason: Reason, at: int, trips: int) -> None:
    """A later refusal is told, with the pages that were given or that it was done before."""
    lockstep = Lockstep(engine_of(ROOMY, Forgetful))
    engine = lockstep.engine
    assert isinstance(engine, Forgetful)
    engine.at, engine.reason = trips * len(ROUND_TRIP) + at, reason
    for step in (*ROUND_TRIP * trips, *ROUND_TRIP[:at]):
        assert frozenset() == lockstep.do(step)
    before, step = lockstep.seen, ROUND_TRIP[at]

    with pytest.raises(Violation) as found:
        lockstep.do(step)

    pages = {2: "2 pages were", 3: "1 page was"}.get(at, "0 pages were")
    clause, what = {
        Reason.OUT_OF_PAGES: ("CONS", f"{pages} given in this state before"),
        Reason.STOPS: ("ATOMIC", "it was done before"),
    }[reason]
    wrong = f"the action is refused: {reason.name}, should be done: {what}, "
    wrong += f"after the same {at} actions from the initial state"
    assert (clause, wrong, step) == judged(found.value)[:3]
    assert (before, lockstep.seen) == judged(found.value)[3:]


@pytest.mark.parametrize("at", range(len(ROUND_TRIP)))
def test_what_was_never_done_in_the_same_place_may_be_refused(at: int) -> None:
    """A refusal at first, or of another action, is none; nor is one of what must be refused."""
    first = Lockstep(engine_of(ROOMY, Forgetful))
    assert isinstance(first.engine, Forgetful)
    first.engine.at = at
    for step in ROUND_TRIP[:at]:
        first.do(step)
    assert frozenset({Reason.OUT_OF_PAGES}) == first.do(ROUND_TRIP[at])
    assert frozenset() == first.do(ROUND_TRIP[at])

    again = Lockstep(engine_of(ROOMY, Forgetful))
    for step in (*ROUND_TRIP, *ROUND_TRIP[:at]):
        again.do(step)
    assert isinstance(again.engine, Forgetful)
    again.engine.at = again.engine.done
    assert frozenset({Reason.OUT_OF_PAGES}) == again.do(act.Reserve(3))


def exact_engines_forget() -> Lockstep:
    """A lockstep with an engine that refuses exactly, after two round trips."""
    lockstep = Lockstep(engine_of(ROOMY))
    for step in ROUND_TRIP * 2:
        lockstep.do(step)
    return lockstep


def test_an_exact_engine_is_told_of_its_refusal_alone() -> None:
    """Nothing is added of what it has done before."""
    lockstep = trial(exact_engines_forget(), apply=refusing(Reason.OUT_OF_PAGES))

    with pytest.raises(Violation) as found:
        lockstep.do(ROUND_TRIP[0])

    assert "the action is refused: OUT_OF_PAGES, should be done" == found.value.message


@pytest.mark.parametrize("length", [LONGEST - 1, LONGEST, LONGEST + 1, LONGEST + 3])
def test_what_is_granted_is_remembered_up_to_a_length(length: int) -> None:
    """The action after LONGEST others is not kept; each trip from the initial state begins anew."""
    initial = engine_of(ROOMY).state
    other = initial._replace(counts=(1, *initial.counts[1:]))
    granted, path = Granted(initial), [act.Free(at) for at in range(length)]
    assert 0 == granted.steps
    for trip in range(2):
        for at, step in enumerate(path):
            known = trip > 0 and at < LONGEST
            assert (at, known) == (granted.steps, step in granted)
            assert act.Free(-1) not in granted
            granted.add(step, other)
        assert length == granted.steps
        granted.add(act.Reset(), initial)
        assert 0 == granted.steps


OF_STEP: Final[Mapping[type, str]] = {
    act.Reset: "RESET",
    act.Truncate: "RB",
    act.Release: "WIN",
    act.Hit: "PC",
    act.Evict: "EVICT",
}
"""The clause of anything that is wrong after a step; of other steps each field has its own."""


def test_a_wrong_statistic_is_told_with_its_step() -> None:
    """The clause is STAT, or that of the step; the view is the one after it, twice."""
    for past, step in steps():
        lockstep = copied(past)
        lockstep.do(step)
        for name, value in lockstep.engine.statistics().items():
            other = trial(
                lockstep, statistics=lambda inner, name=name: {**inner.statistics(), name: 99}
            )
            with pytest.raises(Violation) as found:
                other.compare_statistics(step)
            clause = OF_STEP.get(type(step), "STAT")
            wrong = f"the statistic {name} is 99, should be {value}"
            assert (clause, wrong, step, lockstep.seen, lockstep.seen) == judged(found.value)
        trial(lockstep, statistics=lambda inner: inner.statistics()).compare_statistics(step)
        trial(lockstep, statistics=lambda _: {}).compare_statistics(step)
        trial(lockstep).compare_statistics(step)


def test_wrong_log_probabilities_are_told_with_the_action() -> None:
    """Those of each drawn token of an output are compared when it is taken; given ones are not."""
    request = Request(id=1, prompt=(8,), params=Params(max_new=4))
    history = (act.Prefill((request,)), act.Enqueue(0, 9), act.Generate())
    for enqueued in (False, True):
        lockstep = Lockstep(engine_of(ROOMY))
        for step in history:
            if enqueued or not isinstance(step, act.Enqueue):
                lockstep.do(step)
        after = copied(lockstep)
        after.do(act.TakeOutputs())
        right = after.engine.logprobs()
        for at in range(4):
            shown = [[one + (at == place) for place, one in enumerate(right[0])]]
            other = trial(lockstep, logprobs=lambda _, shown=shown: shown)
            if enqueued and at == 1:
                assert frozenset() == other.do(act.TakeOutputs())
                continue
            with pytest.raises(Violation) as found:
                other.do(act.TakeOutputs())
            wrong = f"the log-probability of token {at} of output (1, 0) is {shown[0][at]}, "
            wrong += f"should be {right[0][at]}"
            assert judged(found.value) == (
                "ALONE", wrong, act.TakeOutputs(), lockstep.seen, other.seen,
            )  # fmt: skip


def waiting() -> Any:
    """A lockstep in which requests wait, run and have outputs."""
    lockstep = Lockstep(engine_of(ROOMY))
    one = Request(id=7, prompt=(1, 2), params=Params(max_new=1))
    for step in (act.Prefill((one,)), act.Submit(evolve(one, id=8)), act.Submit(evolve(one, id=9))):
        lockstep.do(step)
    return lockstep


def serving_engine(inner: SpecEngine, requests: Any) -> Any:
    """Serve as the specification does."""
    return inner.serve(requests)


@pytest.mark.parametrize(
    "one",
    [
        None,
        (1, 0, (4,)),
        (1, 0, (4,), "stop", 0),
        (None, 0, (4,), "stop"),
        (1, None, (4,), "stop"),
        (1, 0.5, (4,), "stop"),
        (1, 0, 4, "stop"),
        (1, 0, ("a",), "stop"),
        (1, 0, (4,), "unheard of"),
    ],
)
def test_an_output_in_another_form_is_a_mistake_of_the_adapter(one: object) -> None:
    """It stands beside right outputs, and is named with the form that is asked for."""
    right = (0, 0, (4,), FinishReason.STOP)
    adapter: Any = Called(lambda: Wrapped(engine_of(ROOMY), serve=lambda *_: [right, one]))

    with pytest.raises(AdapterMistake, match=r"serve\(requests\).*\(request, choice, generated"):
        adapter.serve([])


def test_what_is_served_is_judged_by_its_outputs_and_the_view_after_it() -> None:
    """A wrong output, or a view with something left, is told of serving to the end."""
    lockstep = waiting()
    right = serving.serve(lockstep.machine, lockstep.state)
    assert right is not None
    before, after = lockstep.seen, views.of(lockstep.machine, right.state)
    asked = list[Any]()

    def short(inner: SpecEngine, requests: Any) -> Any:
        served = inner.serve(requests)
        asked.append(requests)
        return served[1:]

    with pytest.raises(Violation) as found:
        trial(lockstep, serve=short).serve()
    wrong = (
        f"what is served to the end is {list(right.outputs[1:])}, should be {list(right.outputs)}"
    )
    assert ("OUT", wrong, SERVE, before, after) == judged(found.value)
    assert [right.requests] == asked
    for name, change in CHANGES.items():
        seen = evolve(after, **{name: change(getattr(after, name))})
        ends = partial(replaced, after, seen)
        other = trial(lockstep, serve=serving_engine, view=ends)
        with pytest.raises(Violation) as found:
            other.serve()
        assert (SERVE, before, seen) == judged(found.value)[2:]
    other = trial(lockstep, serve=serving_engine)
    other.serve()
    assert (right.state, after) == (other.state, other.seen)


def replaced(one: View, other: View, shown: View) -> View:
    """Another view in the place of one."""
    return other if shown == one else shown


def test_a_refusal_to_serve_is_judged_as_any_other() -> None:
    """What can be served is served; an engine that may refuse more changes nothing."""
    lockstep = waiting()
    right = serving.serve(lockstep.machine, lockstep.state)
    assert right is not None
    state, before, asked = lockstep.state, lockstep.seen, list[Any]()
    shown = evolve(before, queue=((7, 7, 7),))

    def refuses(inner: SpecEngine, requests: Any) -> Any:
        if requests != right.requests:
            return inner.serve(requests)
        asked.append(requests)
        raise refused(Reason.OUT_OF_PAGES)

    def view(seen: View) -> View:
        return shown if asked else seen

    with pytest.raises(Violation) as found:
        trial(lockstep, serve=refuses, view=view).serve()
    given = ", ".join(map(str, right.requests))
    wrong = f"the action is refused: OUT_OF_PAGES, should be done; given were {given}"
    assert ("ATOMIC", wrong, SERVE, before, shown) == judged(found.value)
    lockstep.engine.profile = evolve(lockstep.engine.profile, refuses="may_refuse_more")
    other = trial(lockstep, serve=refuses)
    other.serve()
    assert (state, before) == (other.state, other.seen)
    asked.clear()
    other = trial(lockstep, serve=refuses, view=view)
    with pytest.raises(Violation) as found:
        other.serve()
    assert ("Q", SERVE, before, shown) == (found.value.clause, *judged(found.value)[2:])


def keeps_the_first(inner: SpecEngine, requests: Any) -> Any:
    """Submit one after another, and keep those before the one that is refused."""
    for request in requests:
        inner.apply(act.Submit(request))
    return inner.serve(())


def checks_each_alone(inner: SpecEngine, requests: Any) -> Any:
    """Check each request beside those that waited before alone."""
    for request in requests:
        inner.machine.step(inner.state, act.Submit(request))
    return inner.serve(requests[:1])


def tells_another_reason(inner: SpecEngine, requests: Any) -> Any:
    """Refuse for another reason than the specification."""
    try:
        return inner.serve(requests)
    except Refused as error:
        raise refused(Reason.OUT_OF_PAGES) from error


@pytest.mark.parametrize(
    ("serve", "clause", "told"),
    [
        (keeps_the_first, "ATOMIC", "the reason is CHOICE_TAKEN, should be NEVER_FITS"),
        (checks_each_alone, "ATOMIC", "the action is done, should be refused: CHOICE_TAKEN"),
        (tells_another_reason, "ATOMIC", "the reason is OUT_OF_PAGES, should be "),
    ],
)
def test_a_list_of_which_one_is_refused_is_refused_as_a_whole(
    serve: Callable[[SpecEngine, Any], Any], clause: str, told: str
) -> None:
    """A repeated id in it is noticed, and none of it waits afterwards."""
    with pytest.raises(Violation) as found:
        trial(waiting(), serve=serve).serve()

    assert (clause, SERVE) == (found.value.clause, found.value.action)
    assert told in found.value.message


def test_lists_that_cannot_be_served_name_an_id_twice_or_ask_for_too_much() -> None:
    """Their reasons are those of their last request, and without a reason there is none."""
    lockstep = waiting()

    found = list(serving.refused_lists(lockstep.machine, lockstep.state))

    assert [Reason.CHOICE_TAKEN, Reason.CHOICE_TAKEN, Reason.NEVER_FITS] == [
        reason for _, reasons in found for reason in reasons
    ]
    assert [(0, 0), (0, 7), (0, 1)] == [tuple(one.id for one in given) for given, _ in found]
    assert [] == list(serving.refused_lists(lockstep.machine, no_room(lockstep.state)))


def no_room(state: State) -> State:
    """The state with limits under which no request can be submitted."""
    return state._replace(limits=evolve(state.limits, prefill_tokens=1))


def test_an_engine_that_serves_nothing_is_asked_for_nothing() -> None:
    """One without the method, or without requests that wait, is left as it is."""
    for lockstep in (trial(waiting()), Lockstep(Wrapped(engine_of(ROOMY)))):
        state, seen = lockstep.state, lockstep.seen
        lockstep.serve()
        assert (state, seen) == (lockstep.state, lockstep.seen)
    appending = SpecEngine(
        ROOMY, default_limits(ROOMY), CleanupMode.NONE, actions=frozenset({act.Reserve, act.Append})
    )
    lockstep = Lockstep(Wrapped(appending, serve=lambda *_: pytest.fail("it has no requests")))
    lockstep.serve()


def test_a_step_is_sent_with_the_slot_that_the_layer_above_chooses() -> None:
    """Steps of the harness, and slots that the engine chooses, are as they were given."""
    engine = engine_of(ROOMY)
    chooses = Lockstep(engine)
    engine = engine_of(ROOMY)
    engine.profile = evolve(engine.profile, guarded={Reason.NO_FREE_SLOT})
    told = Lockstep(engine)
    sent = list[Action]()

    def apply(inner: Engine, action: Action) -> Result:
        sent.append(action)
        return inner.apply(action)

    for step in (PoisonDead(Poison.NAN), Attend()):
        assert step is told.as_sent(step) is chooses.as_sent(step)
    for slot in range(ROOMY.slots):
        for lockstep, expected in ((told, act.Reserve(slot)), (chooses, act.Reserve())):
            assert expected == lockstep.as_sent(act.Reserve())
            trial(lockstep, apply=apply).do(act.Reserve())
            assert expected == sent.pop()
            lockstep.do(act.Reserve())


def test_a_guarded_call_is_refused_without_the_engine() -> None:
    """It is sent exactly if the specification refuses it for no guarded reason."""
    guards = (
        frozenset[Any](),
        frozenset({Reason.SLOT_RANGE, Reason.SLOT_UNUSED}),
        frozenset({(act.Clone, Reason.SLOT_UNUSED), Reason.OUT_OF_PAGES}),
        frozenset(Reason),
    )
    withheld = 0
    for lockstep, step in steps():
        for guarded in guards:
            sent = list[Action]()

            def apply(inner: Engine, action: Action, sent: list[Action] = sent) -> Result:
                sent.append(action)
                return inner.apply(action)

            other = trial(lockstep, apply=apply)
            other.engine.profile = evolve(other.engine.profile, guarded=guarded)
            reasons = lockstep.reasons(step)
            asked = not any(one in guarded or (type(step), one) in guarded for one in reasons)
            assert asked == other.sends(step)
            other.do(step)
            assert [step] * asked == [evolve(one) for one in sent] or asked
            assert asked == bool(sent)
            withheld += not asked

    assert withheld


def test_a_batch_in_parts_ends_with_the_first_that_is_refused() -> None:
    """The reasons are those of that part, and no later part is sent."""
    engine = engine_of(ROOMY)
    engine.profile = evolve(engine.profile, batches="one slot")
    lockstep = Lockstep(engine)
    for slot in range(3):
        lockstep.do(act.Reserve(slot))

    reasons = lockstep.do(act.Allocate(((0, 0), (1, 5), (2, 0))))

    assert frozenset({Reason.BATCH_POSITIONS}) == reasons
    assert (1, 0, 0, 0) == lockstep.seen.allocated
    assert frozenset() == lockstep.do(act.Allocate(((1, 0), (2, 0))))


@pytest.mark.parametrize("field", [one.name for one in VIEWED if one.name not in {"used", "rows"}])
def test_only_fields_without_which_rows_mean_nothing_must_be_shown(field: str) -> None:
    """A hidden field is bad input if its rung is offered and requires it, or has drafts."""
    full = engine_of(WINDOWED)
    hide: dict[str, Any] = {field: None}
    hidden = evolve(full.observe(), **hide)
    drafts: set[type] = {act.Commit, act.Dispatch, act.Propose, act.Truncate}
    required: dict[str, set[type]] = {
        "first_page": {act.Release},
        "indexed": {act.Drop, act.Evict, act.Hit, act.Merge, act.Publish, act.Share},
        "committed": drafts,
        "proposed": drafts,
        "flights": {act.Deliver, act.Dispatch, act.Retire},
    }
    told = sorted(kind.__name__ for kind in required.get(field, ()))

    if told:
        with pytest.raises(InvalidInput, match=f"^View.{field}: saw None") as found:
            require_shown(full.profile, hidden)
        assert f"Show it, or do not offer {', '.join(told)}." == found.value.remedy
        without = evolve(full.profile, actions=full.profile.actions - required[field])
        require_shown(without, hidden)
        no_tokens = evolve(hidden, tokens=None)
        if field not in {"first_page", "indexed", "flights"}:
            require_shown(full.profile, no_tokens)
    else:
        require_shown(full.profile, hidden)
    require_shown(full.profile, full.observe())


def test_a_queue_beside_append_is_the_callers() -> None:
    """Only an engine with both is refused."""
    whole = engine_of(ROOMY)
    appending = SpecEngine(
        ROOMY, default_limits(ROOMY), CleanupMode.NONE, actions=frozenset({act.Reserve, act.Append})
    )
    for profile in (whole.profile, appending.profile):
        for queue in (None, (), ((1, 0, 0),)):
            shown = evolve(whole.observe(), queue=queue)
            if profile is appending.profile and queue is not None:
                with pytest.raises(InvalidInput, match=r"^View\.queue") as found:
                    require_shown(profile, shown)
                assert queue == found.value.seen
            else:
                require_shown(profile, shown)
