"""Whole requests: each gets the tokens of naive decode of it alone, whatever else is served."""

from collections import Counter
from random import Random
from typing import ClassVar

import pytest
from attrs import evolve
from deep import deep_after
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from spec_draws import one_of, request_of
from spec_tools import MACHINE, SERVING, counts, geometry, judge, limits

from spec.machines import admission, naive
from spec.machines.actions import (
    Action,
    Admit,
    Generate,
    Reset,
    Round,
    Submit,
    TakeOutputs,
)
from spec.state import State
from spec.vocabulary import (
    Capacity,
    CleanupMode,
    FinishReason,
    Geometry,
    Limits,
    Params,
    Reason,
    Refused,
    Request,
    Tokens,
    default_limits,
)
from spec.vocabulary.capacity import COPIES, RESERVATIONS

Outputs = dict[tuple[int, int], tuple[Tokens, FinishReason]]
SEEDS = st.integers(0, 2**32 - 1)
CLEANING = (CleanupMode.INCREMENTAL, CleanupMode.END)
"""The modes for which progress is claimed."""

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple)
params = st.builds(
    Params,
    max_new=st.integers(1, 7),
    temperature=st.sampled_from((0.0, 0.7)),
    seed=st.integers(0, 3),
)
requests = st.lists(
    st.builds(
        Request, id=st.just(0), prompt=tokens, params=params, n_generations=st.integers(1, 3)
    ),
    min_size=1,
    max_size=5,
).map(lambda found: tuple(evolve(one, id=number) for number, one in enumerate(found)))


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    """Any page size, and room for the largest of these requests, or for more."""
    size = draw(st.integers(1, 5))
    row = -(-14 // size)
    pages = draw(st.integers(3 * row, 5 * row))
    return geometry(pages=pages, page_size=size, slots=draw(st.integers(3, 5)), pages_per_seq=row)


@st.composite
def with_limits(draw: st.DrawFn, sizes: Geometry) -> Limits:
    """Any limits that let one of these requests in."""
    least = {"queue": sizes.slots, "outputs": sizes.slots, "prefill_tokens": 7}
    names = ("prefill_seqs", "round_tokens", "rounds")
    least |= dict.fromkeys(names, 1)
    return evolve(
        default_limits(sizes), **{name: at + draw(st.integers(0, 4)) for name, at in least.items()}
    )


def stopping(request: Request) -> Request:
    """The same request with a stop sequence that its second choice meets, if it is long enough."""
    text, _ = naive.generate(request.prompt, request.params, 1)
    return evolve(request, params=evolve(request.params, stops=(text[1:3],) if text[1:] else ()))


def alone(given: tuple[Request, ...]) -> Outputs:
    """The expected outputs of every choice."""
    return {
        (one.id, choice): naive.generate(one.prompt, one.params, choice)
        for one in given
        for choice in range(one.n_generations)
    }


def taken(state: State) -> Outputs:
    """The outputs that are not taken yet."""
    found = state.outputs
    return {(one.request, one.choice): (one.tokens, one.reason) for one in found}


def serve(
    given: tuple[Request, ...],
    sizes: Geometry,
    bounds: Limits,
    cleanup: CleanupMode = CleanupMode.INCREMENTAL,
) -> Outputs:
    """Submit all, run until idle, in no more steps than admissions and tokens can need."""
    state = SERVING.initial(sizes, bounds, cleanup)
    for one in given:
        state = SERVING.step(state, Submit(one))
    outputs: Outputs = {}
    steps = len(given) + sum(one.n_generations * one.params.max_new for one in given)
    while not state.idle:
        assert steps > 0, "no progress"
        steps -= 1
        state = SERVING.step(state, Generate() if SERVING.refusals(state, Admit()) else Admit())
        assert not taken(state).keys() & outputs.keys()
        outputs |= taken(state)
        state = SERVING.step(state, TakeOutputs())
    assert {0} == set(counts(state))
    return outputs


@settings(max_examples=250, deadline=None, derandomize=True)
@given(requests, geometries(), st.data())
def test_outputs_are_those_of_naive_decode(
    found: tuple[Request, ...], sizes: Geometry, data: st.DataObject
) -> None:
    """Each choice gets the tokens and reason of naive decode of it alone, and all pages return."""
    found = tuple(stopping(one) if data.draw(st.booleans()) else one for one in found)
    bounds = data.draw(with_limits(sizes))

    assert alone(found) == serve(found, sizes, bounds, data.draw(st.sampled_from(CLEANING)))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(requests, geometries(), st.data())
def test_outputs_do_not_depend_on_limits(
    found: tuple[Request, ...], sizes: Geometry, data: st.DataObject
) -> None:
    """Queue, round, prefill and loop sizes change when a token is drawn, never which."""
    narrow, wide = data.draw(with_limits(sizes)), default_limits(sizes)

    assert serve(found, sizes, wide) == serve(found, sizes, narrow)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(requests, geometries(), geometries())
def test_outputs_do_not_depend_on_geometry(
    found: tuple[Request, ...], one: Geometry, other: Geometry
) -> None:
    """Page size, pool and slots change where K and V lie, never a token."""
    assert serve(found, one, default_limits(one)) == serve(found, other, default_limits(other))


def test_without_cleanup_a_request_can_starve() -> None:
    """With cleanup `none` finished sequences hold their slots, so the next request starves."""
    sizes = geometry(pages=8, page_size=2, slots=1, pages_per_seq=4)
    both = tuple(Request(id=number, prompt=(1,), params=Params(max_new=2)) for number in (0, 1))

    assert alone(both) == serve(both, sizes, default_limits(sizes))
    with pytest.raises(AssertionError, match="no progress"):
        serve(both, sizes, default_limits(sizes), CleanupMode.NONE)


class AdmissionMachine(RuleBasedStateMachine):
    """Requests arrive at any time; none is overtaken, starves, or is affected by the others."""

    reached: ClassVar[Counter[str]] = Counter()

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        """A small machine."""
        rng = Random(seed)
        sizes = geometry(
            pages=one_of(rng, 3, 4, 6, 9),
            page_size=one_of(rng, 1, 2, 3, 4),
            slots=one_of(rng, 1, 2, 3, 4),
            pages_per_seq=one_of(rng, 3, 4),
        )
        ahead = one_of(rng, 0, 1, sizes.max_len)
        copy, reserve = rng.choice(COPIES), rng.choice(RESERVATIONS)
        capacity = Capacity(copy=copy, lookahead=ahead, reserve=reserve)
        cleanup = rng.choice(CLEANING)
        self.state = SERVING.initial(sizes, limits(sizes, rounds=2), cleanup, capacity)
        self.arrived: tuple[Request, ...] = ()
        self.outputs: Outputs = {}
        self.steps = 0

    def take(self, action: Action) -> None:
        """Take an action, or see it refused; the outputs are those of each request alone."""
        before, name = self.state, type(action).__name__
        found = SERVING.refusals(before, action)
        if found:
            self.reached[f"{name} refused"] += 1
            with pytest.raises(Refused) as caught:
                SERVING.step(before, action)
            assert found == frozenset(caught.value.refusals)
            return
        self.reached[f"{name} done"] += 1
        after = SERVING.climb(before, action)
        assert after == SERVING.step(before, action)
        judge(before, after)
        self.state = after

    @rule(seed=SEEDS)
    def submit(self, seed: int) -> None:
        """A request arrives; some could never fit."""
        self.steps += 1
        rng = Random(seed << 8 | self.steps)
        request = request_of(self.state, rng, self.steps)
        if one_of(rng, 0, 1):
            request = self.exact(rng)
        waiting = self.state.waiting
        self.take(Submit(request))
        if waiting != self.state.waiting:
            self.arrived += (request,)

    def exact(self, rng: Random) -> Request:
        """A request that needs all unreserved pages, or one more."""
        sizes = self.state.geometry
        left = sizes.pages - admission.reserved_pages(self.state) + one_of(rng, 0, 1)
        whole = max(2, min(left * sizes.page_size, sizes.max_len))
        size = rng.randrange(1, whole)
        return Request(id=self.steps, prompt=(1,) * size, params=Params(max_new=whole - size))

    @rule()
    def admit(self) -> None:
        """Admit a request if it fits."""
        self.take(Admit())
        if admission.reserved_pages(self.state) == self.state.geometry.pages:
            self.reached["pool reserved exactly"] += 1

    @rule()
    def generate(self) -> None:
        """A few rounds."""
        self.take(Generate())

    @rule()
    def take_outputs(self) -> None:
        """The caller takes what has finished."""
        assert not taken(self.state).keys() & self.outputs.keys()
        self.outputs |= taken(self.state)
        self.take(TakeOutputs())

    @precondition(lambda self: self.steps % 4 == 3)
    @rule()
    def reset(self) -> None:
        """Reset, which drops waiting requests too."""
        self.take(Reset())
        fresh = self.state
        config = (fresh.geometry, fresh.limits, fresh.cleanup, fresh.capacity)
        assert self.state == SERVING.initial(*config)
        self.arrived, self.outputs = (), {}

    @invariant()
    def nobody_overtakes(self) -> None:
        """The waiting requests are the last to have arrived, in order."""
        assert self.arrived[len(self.arrived) - len(self.state.waiting) :] == self.state.waiting

    @invariant()
    def promises_are_kept(self) -> None:
        """Promised pages fit the pool and cover the pages in use, and no round lacks a page."""
        sizes, below = self.state.geometry, self.state
        in_use = sizes.pages - counts(below).count(0)
        assert in_use <= admission.reserved_pages(self.state) <= sizes.pages
        reasons = {refusal.reason for refusal in MACHINE.refusals(below, Round())}
        assert reasons <= {Reason.QUEUE_EMPTY, Reason.OUTPUTS_FULL}

    def teardown(self) -> None:
        """Every request that arrived gets each of its outputs once."""
        if not hasattr(self, "state"):
            return
        for _ in range(200):
            self.take_outputs()
            if self.state.idle:
                break
            self.take(Generate() if SERVING.refusals(self.state, Admit()) else Admit())
        self.take_outputs()
        assert self.state.idle
        assert alone(self.arrived) == self.outputs


@pytest.mark.parametrize("examples", deep_after(1, [60, 150]))
def test_admission_is_fair_and_keeps_its_promises(examples: int) -> None:
    """Requests at any time are admitted in order, never starve, and get their own tokens."""
    AdmissionMachine.reached.clear()
    run_state_machine_as_test(
        AdmissionMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            derandomize=True,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )

    assert set() == {
        "Submit done",
        "Submit refused",
        "Admit done",
        "Admit refused",
        "Generate done",
        "Reset done",
        "pool reserved exactly",
    } - set(AdmissionMachine.reached)
