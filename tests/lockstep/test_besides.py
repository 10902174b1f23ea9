"""What an engine shows besides its view: bugs that no view shows are found."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import pytest
from attrs import evolve
from deep import deep_after
from jax import Array
from spec_engine import SpecEngine, small

from conformance.engines import ours as reference
from conformance.fuzzing import campaign
from conformance.history import History
from conformance.lockstep.called import Called
from conformance.lockstep.not_checked import not_checked
from conformance.lockstep.run import replay
from conformance.protocol import AdapterMistake, Engine
from conformance.seeded_bugs import Plant, patch, planted
from conformance.seeded_bugs.catalogue import PLANTS
from impl import host
from impl.cache import paged
from impl.engine import Stats
from impl.host import Host, HostState, Stalled
from impl.setup import Setup
from impl.state import State, outputs, slots
from impl.state.outputs import Outputs
from impl.state.slots import Slots
from impl.steps import decode, statistics
from spec import model
from spec.fields import OutputEntry
from spec.machines import actions as act
from spec.stats import NAMED
from spec.vocabulary import (
    CleanupMode,
    Params,
    Reason,
    Refusal,
    Request,
    ResetMode,
    default_limits,
    refused,
)

SIZES = small()
END = CleanupMode.END


def request(number: int, prompt: tuple[int, ...], new: int, *, choices: int = 1) -> Request:
    """A request of some choices, each of `new` tokens."""
    params = Params(max_new=new, temperature=1.0, seed=7)
    return Request(id=number, prompt=prompt, params=params, n_generations=choices)


SERVED: History = (
    act.Submit(request(1, (5, 6, 7), 3, choices=2)),
    act.Submit(request(2, (8,), 2)),
    act.Admit(),
    act.Submit(request(3, (9, 9), 1)),
    act.Generate(),
    act.TakeOutputs(),
    act.Admit(),
    act.TakeOutputs(),
)
"""Three requests, of which one waits until the others have finished."""
DRAFTED: History = (
    act.Prefill((request(1, (5, 6, 7), 5),)),
    act.Round(),
    act.Clone(0, 1, 1),
    act.Purge(0),
    act.Allocate(((0, 4),)),
    act.Write(((0, 4),)),
    act.Propose(0, (3, 4)),
    act.Purge(0),
    act.Allocate(((0, 5), (0, 6))),
    act.Write(((0, 5), (0, 6))),
    act.Commit(0, 6),
    act.Truncate(0, 6),
    act.Enqueue(1, 4),
    act.Generate(),
    act.TakeOutputs(),
)
"""A draft that is committed and one that is cut off; a clone with an enqueued token."""
ERASED: History = (
    act.Prefill((request(1, (5, 6, 7), 2),)),
    act.Generate(),
    act.Reset(ResetMode.PHYSICAL),
)


def engine() -> Engine:
    """A new reference engine."""
    return reference.make(SIZES, default_limits(SIZES), END)


def hiding() -> Engine:
    """The reference engine behind an adapter that shows its view alone."""
    return Hiding(engine())


class Hiding:
    """An engine that shows its view alone."""

    def __init__(self, inner: Engine) -> None:
        self.profile, self.apply, self.observe = inner.profile, inner.apply, inner.observe


def _keep_one_later(keep: Callable[..., State]) -> Callable[..., State]:
    def wrong(setup: Setup, state: State, at: Array, reasons: Array) -> State:
        moved = state.slots._replace(logprobs=jnp.roll(state.slots.logprobs, 1, axis=1))
        after = keep(setup, state._replace(slots=moved), at, reasons)
        return after._replace(slots=state.slots)

    return wrong


def _fork_no_logprobs(fork: Callable[..., Slots]) -> Callable[..., Slots]:
    def wrong(held: Slots, parents: Array, children: Array, choices: Array) -> Slots:
        return fork(held, parents, children, choices)._replace(logprobs=held.logprobs)

    return wrong


def _all_wait(waiting: Callable[[Outputs], Array]) -> Callable[[Outputs], Array]:
    return lambda held: jnp.ones_like(waiting(held))


def _count_less(stats: Callable[..., Array]) -> Callable[..., Array]:
    return lambda setup, weights, state: stats(setup, weights, state).at[3].add(-1)


def _zero_one_page(_zero: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda kv_pages: kv_pages.at[1].set(0)


def _release_nothing(_release: object) -> Callable[..., host.HostState]:
    return lambda state, _stats: state


PLANTED: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], str, History]] = {
    "the output has the log-probabilities of other tokens": (
        decode.keep_outputs, _keep_one_later, "ALONE", SERVED,
    ),
    "a clone has no log-probabilities": (slots.fork, _fork_no_logprobs, "ALONE", DRAFTED),
    "every entry of the outputs waits": (outputs.waiting, _all_wait, "STAT", SERVED),
    "the largest count is one less": (statistics.stats, _count_less, "STAT", SERVED),
    "a physical reset zeroes one page": (paged.zero, _zero_one_page, "RESET", ERASED),
    "the host keeps every reservation": (host.release, _release_nothing, "STAT", SERVED),
}  # fmt: skip
"""Bugs that no view shows: the function, its change, the clause, a history that shows it."""


@pytest.mark.parametrize("bug", deep_after(1, PLANTED))
def test_a_bug_that_no_view_shows_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A history fails at the clause, and holds for an adapter that shows its view alone."""
    right, change, clause, history = PLANTED[bug]
    plant = Plant(
        id="SH1", thread="", mechanism=bug, clause=clause, patches=(patch(right, change),)
    )
    monkeypatch.setitem(PLANTS, "SH1", plant)

    with planted("SH1"):
        found, unseen = replay(engine, history), replay(hiding, history)

    assert found is not None
    assert clause == found.clause
    assert unseen is None


@pytest.mark.parametrize("history", deep_after(1, [(one,) for one in (SERVED, DRAFTED, ERASED)]))
def test_the_reference_engine_shows_what_is_right(history: History) -> None:
    """Its statistics, log-probabilities and erased cells are those of the specification."""
    assert replay(engine, history) is None


def _without_the_first(generate: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Host, requests: Sequence[Request]) -> dict[Any, Any]:
        return dict(list(generate(self, requests).items())[1:])

    return wrong


def _one_turn(_serve: object) -> Callable[..., None]:
    def wrong(self: Host, stats: Stats) -> None:
        self._admit(stats)
        self.generate_rounds()
        self._collect()

    return wrong


WAITING: History = tuple(act.Submit(request(number, (number, 2), 3)) for number in range(1, 7))
"""More requests than there are slots."""


@pytest.mark.parametrize(
    ("method", "change", "clause", "told"),
    [
        ("generate", _without_the_first, "OUT", "what is served"),
        ("_serve", _one_turn, "PROG", "it is done with 4 requests waiting and 0 tokens queued"),
    ],
)
def test_a_bug_of_serving_to_the_end_is_found(
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    change: Callable[..., Any],
    clause: str,
    told: str,
) -> None:
    """It is found at the end of a history, whose single steps are right."""
    assert replay(engine, WAITING) is None
    monkeypatch.setattr(Host, method, change(getattr(Host, method)))

    found, unseen = replay(engine, WAITING), replay(hiding, WAITING)

    assert found is not None
    assert (clause, WAITING) == (found.clause, found.history)
    assert told in found.message
    assert unseen is None


def _keeping_what_stalled_holds(generate: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Host, requests: Sequence[Request]) -> Any:
        try:
            return generate(self, requests)
        except Stalled as stalled:
            self._state = evolve(self._state, finished=tuple(stalled.outputs.values()))
            raise

    return wrong


def test_what_can_never_be_served_ends_with_what_has_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where no slot is ever freed, outputs come once, and a host that keeps them too is found."""
    stuck = partial(reference.make, SIZES, default_limits(SIZES), CleanupMode.NONE)
    assert replay(stuck, WAITING) is None
    monkeypatch.setattr(Host, "generate", _keeping_what_stalled_holds(Host.generate))

    found = replay(stuck, WAITING)

    assert found is not None
    assert ("OUT", WAITING) == (found.clause, found.history)


def _without_kept(state: HostState, requests: Any, stats: Stats) -> Any:
    """The requests whose ids are taken, if the outputs that the host keeps do not count."""
    return TAKEN_CHOICES(evolve(state, finished=()), requests, stats)


TAKEN_CHOICES = host._taken_choices


def test_two_outputs_with_one_name_are_both_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting request may have the id of one that the caller prefills, and comes after it."""
    waits, prefilled = act.Submit(request(1, (1, 2), 3)), act.Prefill((request(1, (5,), 2),))
    at_once = tuple(act.Submit(request(number, (2,), 1)) for number in (1, 2))
    assert replay(engine, (waits, prefilled)) is None
    assert replay(engine, (*at_once, prefilled, act.Prefill((request(9, (0,), 2),)))) is None
    assert replay(engine, (at_once[0], act.Prefill((request(1, (5,), 1),)))) is None
    reserved = (act.Reserve(None),) * (SIZES.slots - 2)
    crowd, one = act.Submit(request(1, (2,), 1, choices=3)), act.Prefill((request(1, (5,), 1),))
    after = partial(reference.make, SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)
    assert replay(after, (*reserved, crowd, one)) is None
    monkeypatch.setattr(host, "_taken_choices", _without_kept)

    found = replay(engine, (waits, prefilled))

    assert found is not None
    assert ("OUT", (waits, prefilled)) == (found.clause, found.history)


def test_the_id_of_a_request_that_has_left_is_free_for_the_caller() -> None:
    """It is no admitted request any more when the caller gives its id to another one."""
    left = (act.Submit(request(1, (1,), 1)), act.Admit(), act.Reserve(0))
    taken = act.Assign(0, (2,), Params(max_new=2), 1, 1)

    assert replay(engine, (*left, taken)) is None
    assert replay(engine, (*left, act.Prefill((request(1, (2,), 2),)))) is None


def refuse(_requests: object) -> None:
    """Refuse what the specification serves."""
    raise refused([Refusal(Reason.OUT_OF_PAGES, None, None)])


def test_what_can_be_served_is_not_refused() -> None:
    """A refusal violates ATOMIC, and a list of something else is a mistake of the adapter."""
    made = Showing()
    made.serve = refuse  # type: ignore[assignment, method-assign]
    found = replay(lambda: made, ())

    assert found is not None
    assert "ATOMIC" == found.clause
    with pytest.raises(AdapterMistake, match="generated tokens, reason"):
        Called(lambda: Showing(serve=3)).serve(())  # type: ignore[attr-defined]


def test_a_machine_without_requests_serves_none() -> None:
    """The caller of an engine with Append has the queue, and nothing is served at the end."""
    actions = frozenset({act.Reserve, act.Append})
    appending = SpecEngine(SIZES, default_limits(SIZES), END, actions=actions)

    assert replay(lambda: appending, ()) is None


def test_an_example_with_requests_ends_with_serving_what_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fuzzing run finds a bug that only serving to the end shows."""

    class Silent(SpecEngine):
        def serve(self, requests: Sequence[Request]) -> tuple[OutputEntry, ...]:
            return super().serve(requests)[1:]

    report = campaign.Run()
    options = campaign.Options(geometry=SIZES, alone=True, steps=3000, ceiling=False)
    monkeypatch.setattr(campaign, "replay", lambda *_, **__: None)  # the warm-up would find it
    campaign.run(Silent, options, report=report, update=lambda *_: None)

    assert report.finding is not None
    assert "OUT" == report.finding.clause
    assert "what is served to the end" in report.finding.message


class Showing(SpecEngine):
    """The specification as an engine that shows something else in place of some of it."""

    def __init__(self, **shown: object) -> None:
        super().__init__(SIZES, default_limits(SIZES), END)
        for name, value in shown.items():
            setattr(self, name, lambda *_, value=value: value)


def test_every_statistic_is_compared() -> None:
    """A wrong number, or a wrong list, is found under each name."""
    for name in NAMED:
        found = replay(lambda name=name: Showing(statistics={name: (99,)}), SERVED[:1])  # type: ignore[misc]

        assert found is not None
        assert ("STAT", 1) == (found.clause, len(found.history))
        assert f"the statistic {name} is (99,)" in found.message


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        ((-0.5, -0.5, -0.5),) * 3,
        ((float("nan"),) * 3, (), ()),
        ((-0.5,) * 4, (-0.5,) * 3, (-0.5,) * 2),
    ],
)
def test_log_probabilities_of_every_token_are_compared(wrong: object) -> None:
    """Missing ones, further ones, and numbers that are none are found."""
    found = replay(lambda: Showing(logprobs=wrong), SERVED[:6])

    assert found is not None
    assert "ALONE" == found.clause
    assert "the log-probability of token 0 of output" in found.message


class TooLow(SpecEngine):
    """Its log-probability of the second token of each output is too low."""

    def logprobs(self) -> tuple[tuple[float, ...], ...]:
        """Those of the outputs that were taken last."""
        return tuple((one[0], one[1] - 0.25, *one[2:]) for one in super().logprobs())


@pytest.mark.parametrize(
    ("between", "clause"),
    [
        ((act.Enqueue(0, 9),), None),
        ((act.Enqueue(0, 9), act.Free(0), request(1, (8,), 3)), "ALONE"),
    ],
)
def test_a_token_that_was_enqueued_excuses_its_own_sequence_alone(
    between: tuple[Any, ...], clause: str | None
) -> None:
    """Its log-probability may be any; that of a later sequence of the same name may not."""
    steps = [act.Prefill((one,)) if isinstance(one, Request) else one for one in between]
    history = (act.Prefill((request(1, (8,), 4),)), *steps, act.Generate(), act.TakeOutputs())
    found = replay(lambda: TooLow(SIZES, default_limits(SIZES), END), history)

    assert clause == (found and found.clause)


def test_a_log_probability_within_the_tolerance_is_right() -> None:
    """An error of less than half of the least difference is none; one of more is one."""
    right = model.logprobs((8,), (4,))

    assert right == tuple(jnp.float32(one).item() for one in right)
    for factor, clause in ((0.4, None), (0.6, "ALONE")):
        one = act.Prefill((Request(id=1, prompt=(8,), params=Params(max_new=1)),))
        shown = [[right[0] + factor * model.LOGPROB_STEP]]
        found = replay(lambda shown=shown: Showing(logprobs=shown), (one, act.TakeOutputs()))  # type: ignore[misc]

        assert clause == (found and found.clause)


@pytest.mark.parametrize(
    ("method", "shown", "told"),
    [
        ("statistics", {"pages": 1}, "under names of active"),
        ("statistics", 3, "under names of active"),
        ("statistics", {"active": 0.5}, "integers"),
        ("logprobs", 3, "a list of numbers for each output"),
        ("logprobs", ["many"], "a list of numbers for each output"),
    ],
)
def test_what_cannot_be_compared_is_a_mistake_of_the_adapter(
    method: str, shown: object, told: str
) -> None:
    """The message names the method, and what it should return."""
    with pytest.raises(AdapterMistake, match=told) as raised:
        getattr(Called(lambda: Showing(**{method: shown})), method)()
    assert method in str(raised.value)


def test_what_is_not_shown_is_not_checked() -> None:
    """Each method that an adapter lacks is named, with what it would show."""
    told = dict(not_checked(Hiding(engine())))
    ours = " ".join(dict(not_checked(engine())))

    assert "the adapter has no statistics" == told["STAT"]
    assert "the adapter has no logprobs" == told["ALONE, log-probabilities"]
    erased = "RESET, that a physical reset erases the cells"
    assert "the adapter has no erased" == told[erased]
    assert "the adapter has no serve" == told["OUT, of requests that are served in one call"]
    assert "STAT" not in ours
    assert "served" not in ours
    assert "log-probabilities" not in ours
    assert "physical" not in ours
    some = dict(not_checked(Showing(statistics={"active": 0})))
    assert (
        "STAT: admitted, evicted_pages, free_pages, hit_pages, idle_pages, largest_count, occ"
        in " ".join(some)
    )
    hidden = ours_without_cells()
    assert "the engine does not show cells" == dict(not_checked(hidden))[erased]


def ours_without_cells() -> Engine:
    """The reference engine without its cells."""
    return reference.make_without_cells(SIZES, default_limits(SIZES), END)
