"""A pair of engines: what it offers, whom it blames, and the legal differences that it counts."""

from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any, Final, get_args

import pytest
from attrs import evolve
from drawn_histories import ROOMY, Renaming, Wrapped, drawn, engine_of
from spec_engine import SpecEngine, WithoutCells

from conformance.lockstep.differential import (
    PAGES,
    REASONS,
    REFUSES,
    Differences,
    Pair,
    PairFactory,
)
from conformance.lockstep.lockstep import Violation
from conformance.protocol import Action, Batches, Engine, EngineFailed, Poison, Result
from spec.machines import actions as act
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    Limits,
    Reason,
    Refusal,
    Refused,
    default_limits,
    refused,
)

BOTH: Final = frozenset({"poison", "compilations", "pool_copies"})
"""What a pair offers if either engine does; the others are those of A."""
METHODS: Final[dict[str, tuple[Any, Any]]] = {
    "poison": ((Poison.NAN,), None),
    "attend": ((), {}),
    "compilations": ((), {"round": 1}),
    "pool_copies": ((), {"round": ("a copy",)}),
    "statistics": ((), {}),
    "events": ((), ()),
    "logprobs": ((), ()),
    "erased": ((), None),
}
"""The optional methods of a pair: what they are called with, and an answer."""


def offering(*names: str, calls: list[str] | None = None) -> Wrapped:
    """The specification with these optional methods alone, which note that they are called."""

    def answer(name: str) -> Callable[..., Any]:
        def method(_inner: Engine, *_given: object) -> Any:
            if calls is not None:
                calls.append(name)
            return METHODS[name][1]

        return method

    return Wrapped(engine_of(ROOMY), **{name: answer(name) for name in names})


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("a", "b"), [*product((False, True), repeat=2)])
def test_a_pair_offers_what_its_engines_do(name: str, *, a: bool, b: bool) -> None:
    """Either is enough for what is asked of each of them; the rest is asked of A."""
    asked: tuple[list[str], list[str]] = ([], [])
    pair: Any = Pair(
        offering(*[name] * a, calls=asked[0]), offering(*[name] * b, calls=asked[1]), Differences()
    )

    assert hasattr(pair, name) == (a or (b and name in BOTH))
    assert [] == [other for other in METHODS if other != name and hasattr(pair, other)]
    if hasattr(pair, name):
        given, right = METHODS[name]
        found = getattr(pair, name)(*given)
        if name in {"compilations", "pool_copies"}:
            right = {
                f"{who}: {entry}": value
                for who, has in (("A", a), ("B", b))
                if has
                for entry, value in right.items()
            }
        assert right == found
        after_a_step = name == "statistics"  # before one, there is nothing to compare
        both = a and b and name not in {"events", "logprobs", "erased"} and not after_a_step
        assert [name] * a == asked[0]
        assert ([name] * b if name in BOTH or both else []) == asked[1]


@pytest.mark.parametrize(("a", "b"), [*product(get_args(Batches), repeat=2)])
def test_a_pair_has_the_profile_that_both_can_take(a: Batches, b: Batches) -> None:
    """It has the actions of both, the guards of either, and the smaller batches."""
    ours, theirs = engine_of(ROOMY), engine_of(ROOMY)
    some = frozenset({act.Reserve, act.Free, act.Allocate})
    guards = (
        frozenset({Reason.SLOT_RANGE, Reason.STOPS}),
        frozenset({Reason.STOPS, Reason.WINDOW}),
    )
    ours.profile = evolve(
        ours.profile, name="A", batches=a, guarded=guards[0], actions=some | {act.Write}
    )
    theirs.profile = evolve(
        theirs.profile, name="B", batches=b, guarded=guards[1], actions=some | {act.Clone}
    )
    words = get_args(Batches)

    found = Pair(ours, theirs, Differences()).profile

    assert "A" == found.name
    assert some == found.actions
    assert guards[0] | guards[1] == found.guarded
    assert words[max(words.index(a), words.index(b))] == found.batches
    assert evolve(ours.profile, actions=some, guarded=found.guarded, batches=found.batches) == found


@pytest.mark.parametrize(("a", "b"), [*product([True, False], repeat=2)])
def test_a_pair_has_the_contexts_that_both_have(*, a: bool, b: bool) -> None:
    """A context that one of them does not know would be hit by it alone."""
    ours, theirs = engine_of(ROOMY), engine_of(ROOMY)
    ours.profile = evolve(ours.profile, contexts=a)
    theirs.profile = evolve(theirs.profile, contexts=b)

    assert (a and b) is Pair(ours, theirs, Differences()).profile.contexts


class Saying(SpecEngine):
    """The specification, which may refuse more, and refuses as it is told to."""

    says: Callable[[Action, frozenset[Reason]], frozenset[Reason]] = staticmethod(
        lambda _action, reasons: reasons
    )

    def __init__(self, *given: Any, **policy: Any) -> None:
        super().__init__(*given, **policy)
        self.profile = evolve(self.profile, refuses="may_refuse_more")

    def apply(self, action: Action) -> Result:
        """Take the action, or refuse it for other reasons."""
        found = self.machine.refusals(self.state, action)
        reasons = self.says(action, frozenset(one.reason for one in found))
        if reasons:
            raise refused([Refusal(one) for one in reasons])
        return super().apply(action)


def saying(says: Callable[[Action, frozenset[Reason]], frozenset[Reason]]) -> Saying:
    """An engine that refuses as this function says."""
    engine = engine_of(ROOMY, Saying)
    assert isinstance(engine, Saying)
    engine.says = says
    return engine


def lowest(_action: Action, reasons: frozenset[Reason]) -> frozenset[Reason]:
    """Refuse for the lowest reason alone."""
    return frozenset(sorted(reasons)[:1])


def highest(_action: Action, reasons: frozenset[Reason]) -> frozenset[Reason]:
    """Refuse for the highest reason alone."""
    return frozenset(sorted(reasons)[-1:])


def exactly(_action: Action, reasons: frozenset[Reason]) -> frozenset[Reason]:
    """Refuse as the specification does."""
    return reasons


SAYS: Final = (lowest, highest, exactly)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("a", "b"), [*product(SAYS, repeat=2)])
def test_other_reasons_are_counted_and_kept(seed: int, a: Any, b: Any) -> None:
    """Each step with one counts once when it has held, and the first history is kept."""
    seen, taken, expected = Differences(), list[Action](), 0
    first: tuple[Action, ...] = ()
    one = saying(a)
    pair = Pair(one, saying(b), seen)
    for step in drawn(ROOMY, seed):
        taken.append(step)
        bare = engine_of(ROOMY)
        bare.state = one.state
        reasons = frozenset(one.reason for one in bare.machine.refusals(bare.state, step))
        given = a(step, reasons)
        if given:
            with pytest.raises(Refused) as no:
                pair.apply(step)
            assert given == no.value.reasons
        else:
            assert bare.apply(step) == pair.apply(step)
        assert expected == seen.counts[REASONS]
        if given != b(step, reasons):
            expected += 1
            first = first or tuple(taken)
        pair.settle()
        pair.settle()
        assert expected == seen.counts[REASONS]
        assert pair.observe() == bare.observe()

    assert {REASONS} >= {kind for kind, times in seen.counts.items() if times}
    assert ({REASONS: (pair.profile, first)} if expected else {}) == seen.first


@pytest.mark.parametrize("who", ["A", "B"])
@pytest.mark.parametrize("at", [0, 3, 9])
def test_two_engines_part_where_one_refuses_what_the_other_does(at: int, who: str) -> None:
    """The step is counted once, and B follows no more; A is asked alone."""
    taken = list(drawn(ROOMY, 5))
    legal = [
        number
        for number, step in enumerate(taken)
        if not engine_after(taken[:number]).machine.refusals(
            engine_after(taken[:number]).state, step
        )
    ]
    number = legal[at]

    def shy(_action: Action, reasons: frozenset[Reason]) -> frozenset[Reason]:
        return frozenset({Reason.STOPS}) if len(asked) == number + 1 else reasons

    asked, followed, seen = list[Action](), list[Action](), Differences()
    engines = [saying(exactly), saying(exactly)]
    engines[who == "B"].says = shy

    def noting(engine: Saying, notes: list[Action]) -> Any:
        def apply(inner: Engine, action: Action) -> Result:
            notes.append(action)
            return inner.apply(action)

        def shows(_inner: Engine, *_given: object) -> Any:
            notes.append(act.Pack())
            return {}

        return Wrapped(engine, apply=apply, poison=shows, attend=shows, statistics=shows)

    pair: Any = Pair(noting(engines[0], asked), noting(engines[1], followed), seen)
    for step in taken:
        try:
            pair.apply(step)
        except Refused:
            continue
    pair.settle()
    for method in ("poison", "attend", "statistics"):
        before = len(followed)
        pair_method = getattr(pair, method)
        pair_method(*METHODS[method][0])
        assert before == len(followed)

    assert taken[: number + 1] == followed
    assert taken == asked[: len(taken)]
    assert 1 == seen.counts[REFUSES]
    assert (pair.profile, tuple(taken[: number + 1])) == seen.first[REFUSES]


def engine_after(history: list[Action]) -> SpecEngine:
    """An engine that has taken a history."""
    engine = engine_of(ROOMY)
    for step in history:
        try:
            engine.apply(step)
        except Refused:
            continue
    return engine


@pytest.mark.parametrize("seed", range(4))
def test_other_pages_are_counted(seed: int) -> None:
    """A step that is done counts if the rows of the two differ after it."""
    for a, b in ((SpecEngine, Renaming), (Renaming, SpecEngine), (Renaming, Renaming)):
        seen, one, other = Differences(), engine_of(ROOMY, a), engine_of(ROOMY, b)
        pair, expected = Pair(one, other, seen), 0
        for step in drawn(ROOMY, seed):
            with suppress(Refused):
                pair.apply(step)
            pair.settle()
            expected += one.observe().rows != other.observe().rows
            assert expected == seen.counts[PAGES]
        assert {PAGES} >= set(seen.counts)
        assert bool(expected) == (a is not b)


@pytest.mark.parametrize("method", ["apply", "poison", "statistics", "attend"])
@pytest.mark.parametrize("before", ["A", "B"])
def test_the_engine_that_goes_wrong_in_a_call_is_blamed(method: str, before: str) -> None:
    """It is A, whoever was blamed before, unless B goes wrong."""

    def fails(*_: object) -> Any:
        raise EngineFailed("it fell over")

    def right(name: str) -> dict[str, Any]:
        return {} if name == "apply" else {name: lambda *_: METHODS[name][1]}

    given: tuple[Any, ...] = (act.Reserve(),) if method == "apply" else METHODS[method][0]
    for wrong in ("", "A", "B"):
        seen = Differences()
        a, b = (
            Wrapped(engine_of(ROOMY), **({method: fails} if wrong == who else right(method)))
            for who in ("A", "B")
        )
        pair: Any = Pair(a, b, seen)
        if method == "statistics":  # before a step, there is nothing to compare
            pair.apply(act.Reserve())
        seen.fault = before
        if wrong:
            with pytest.raises((EngineFailed, Violation)):
                getattr(pair, method)(*given)
        else:
            getattr(pair, method)(*given)
        assert (wrong or "A") == seen.fault
        factory = PairFactory(SpecEngine, WithoutCells, seen)
        assert (WithoutCells if wrong == "B" else SpecEngine) is factory.at_fault


def test_a_block_is_blamed_on_its_engine_alone() -> None:
    """After it the engine before is to blame; an error in it leaves the blame."""
    seen = Differences()
    for before, name in product("AB", repeat=2):
        seen.fault = before
        with seen.blaming(name):
            assert name == seen.fault
        assert before == seen.fault
        with pytest.raises(KeyError), seen.blaming(name):
            raise KeyError
        assert name == seen.fault


def test_a_factory_of_pairs_makes_both_of_the_same_sizes() -> None:
    """Each gets geometry, limits and cleanup, and the pairs share what they have seen."""
    given = (ROOMY, default_limits(ROOMY), CleanupMode.END)
    made = list[Any]()

    def make(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> SpecEngine:
        made.append((geometry, limits, cleanup))
        return SpecEngine(geometry, limits, cleanup)

    factory = PairFactory(make, make)
    pairs = [factory(*given), factory(*given)]

    assert [given] * 4 == made
    assert "A" == factory.seen.fault
    for pair in pairs:
        pair.apply(act.Reserve())
    assert {} == dict(factory.seen.counts)
    assert None is not PairFactory(SpecEngine, WithoutCells)(*given).observe().cells
    assert None is PairFactory(WithoutCells, SpecEngine)(*given).observe().cells
