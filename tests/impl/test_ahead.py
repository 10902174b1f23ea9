"""Requests served ahead of the device: the tokens of naive decoding at any lag, and none lost."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pytest
from attrs import evolve
from deep import deep_after
from engine_tools import (
    KEPT,
    SETUPS,
    WINDOWED,
    assert_holds,
    assert_identical,
    params,
    request,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import Array
from test_host import NARROW, RELEASING, Results, alone, results, workloads
from test_interrupts import interrupted, moments
from test_state_lost import Broken

from conformance.numerics import llama
from impl import ahead
from impl.ahead import Ahead, AheadState
from impl.engine import Engine, StateLost
from impl.host import Host, Stalled
from impl.setup import Setup
from spec import ladder
from spec.machines import actions as act
from spec.machines import naive
from spec.machines.actions import Action
from spec.vocabulary import (
    LAG,
    CleanupMode,
    FinishReason,
    Geometry,
    InvalidInput,
    Params,
    Reason,
    Refused,
    Request,
    ResetMode,
    default_limits,
)

INCREMENTAL: Final = SETUPS[CleanupMode.INCREMENTAL]
LAGS: Final = range(LAG + 1)
TEXT: Final = (1, 2, 3)
MACHINE: Final = ladder.whole()


def single(requests: tuple[Request, ...]) -> tuple[Request, ...]:
    """The same requests, each with one choice."""
    return tuple(evolve(one, n_generations=1) for one in requests)


def assert_idle(engine: Engine) -> None:
    """Assert that nothing is left on the device."""
    stats = engine.stats()
    assert (0, 0, 0, 0) == (stats.active, stats.queued, stats.outputs, stats.in_flight)
    assert engine.setup.geometry.pages == stats.free_pages


@pytest.mark.parametrize("name", deep_after(1, RELEASING))
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_each_lag_gives_the_tokens_of_naive_decoding(name: str, data: st.DataObject) -> None:
    """More requests than fit, some of which stop, get what naive decoding and `Host` give them."""
    setup = RELEASING[name]
    requests = single(data.draw(workloads(setup, most=9)))
    expected = Host(Engine(setup)).generate(requests)
    assert alone(*requests) == results(expected)

    for lag in LAGS:
        engine = Engine(setup)
        server = Ahead(engine, lag=lag)
        assert expected == server.generate(requests), lag
        assert AheadState() == server.state
        assert_idle(engine)


WINDOW: Final = evolve(WINDOWED, cleanup=CleanupMode.INCREMENTAL)


@pytest.mark.parametrize("lag", LAGS)
def test_a_window_is_kept_at_each_lag(lag: int) -> None:
    """The positions that a step in flight reads are those of the window."""
    one = request(1, TEXT, 5)
    tokens, _ = naive.generate(one.prompt, one.params, window=3)

    (output,) = Ahead(Engine(WINDOW), lag=lag).generate([one]).values()

    assert tokens == output.tokens


PROMPTS: Final = [evolve(one, n_generations=1) for one in llama.REQUESTS]


def test_a_real_model_gives_the_same_tokens_at_each_lag() -> None:
    """Requests to a Llama get the tokens of `Host`; each is sent once more, to stop earlier."""
    weights = llama.drawn_weights(1)
    usual = Host(Engine(llama.SETUP, weights)).generate(PROMPTS)
    stopping = [
        evolve(one, id=100 + one.id, params=evolve(one.params, stops=((text[len(text) // 2],),)))
        for one in PROMPTS
        for text in [usual[one.id, 0].tokens]
    ]
    both = [*PROMPTS, *stopping]
    expected = results(Host(Engine(llama.SETUP, weights)).generate(both))
    assert FinishReason.STOP in {reason for _, reason in expected.values()}

    for lag in LAGS:
        served = results(Ahead(Engine(llama.SETUP, weights), lag=lag).generate(both))
        assert expected == served, lag


class Mirror:
    """The specification beside an engine: takes each action that is started on it, and compares."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        setup = engine.setup
        self.state = MACHINE.initial(setup.geometry, setup.limits, setup.cleanup)
        self.most_open, self.stale = 0, 0
        self._engine, self._start = engine, engine.start
        monkeypatch.setattr(engine, "start", self.start)

    def start(self, name: str, *rest: Any) -> Any:
        """Start a call of the engine, and do the same here."""
        report = self._start(name, *rest)
        for action in self._actions(name, rest):
            assert not tuple(MACHINE.refusals(self.state, action)), action
            self.state = MACHINE.step(self.state, action)
        assert_holds(self._engine, self.state)
        self.most_open = max(self.most_open, len(self.state.flights))
        self.stale += sum(not part.current for one in self.state.flights for part in one.parts)
        return report

    def _actions(self, name: str, rest: tuple[Any, ...]) -> Iterator[Action]:
        match name:
            case "launch":
                counts = enumerate(rest[1].tolist())
                yield act.Dispatch(tuple((slot, count) for slot, count in counts if count))
                yield act.Retire()
            case "begin":
                _, slot, tokens, length, row = rest
                text = tuple(tokens[:length].tolist())
                stops = tuple(
                    tuple(stop[-size:].tolist())
                    for stop, size in zip(row.stops[0], row.stop_lens[0], strict=True)
                    if size
                )
                how = params(int(row.max_new[0]), *stops, seed=int(row.seeds[0]))
                yield act.Reserve(int(slot))
                yield act.Assign(int(slot), text, how, int(row.requests[0]))
            case "deliver":
                yield act.Deliver()
            case _:
                yield act.TakeOutputs()


@pytest.mark.parametrize("setup", [INCREMENTAL, SETUPS[CleanupMode.END], NARROW, WINDOW])
@pytest.mark.parametrize("lag", LAGS)
def test_each_call_is_legal_and_is_that_of_the_specification(
    setup: Setup, lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each call all is as specified, also if a sequence ends that later steps have."""
    text, _ = naive.generate(TEXT, params(3), window=setup.geometry.window)
    requests = [
        request(number, TEXT, 1 + number % 3, stops=(text[: number % 2],) * (number % 2))
        for number in range(9)
    ]
    engine = Engine(setup)
    mirror = Mirror(engine, monkeypatch)

    assert 9 == len(Ahead(engine, lag=lag).generate(requests))

    assert lag + 1 == mirror.most_open
    assert bool(lag) is bool(mirror.stale)


@pytest.mark.parametrize("lag", LAGS)
def test_no_report_is_read_before_its_time(lag: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `lag` + 1 steps none is read, and the next one waits for the first one alone."""
    engine = Engine(INCREMENTAL)
    server, read = Ahead(engine, lag=lag), list[object]()
    finish = engine.finish

    def reading(report: Array) -> Any:
        read.append(report)
        return finish(report)

    monkeypatch.setattr(engine, "finish", reading)
    server.submit(request(1, (1,), 6))

    for _ in range(lag + 1):
        assert server.step()
    assert not read
    assert server.step()
    assert 2 == len(read)  # the begin, and the first step
    assert server.step()
    assert 3 + (lag == 0) == len(read)  # the second step; the delivery may be behind it


def test_a_stop_is_known_as_many_steps_late_as_the_lag() -> None:
    """The step that draws the stop is the first; the sequence is in `lag` further steps."""
    (first,), _ = naive.generate(TEXT, params(1))
    for lag in LAGS:
        server = Ahead(Engine(INCREMENTAL), lag=lag)
        server.submit(request(1, TEXT, 5, stops=((first,),)))
        steps = 0
        while server.step():
            steps += 1

        assert 1 + lag == steps
        (output,) = server.take_outputs()
        assert ((first,), FinishReason.STOP) == (output.tokens, output.reason)


def test_an_id_is_taken_until_its_output_is_returned() -> None:
    """It is refused while the request waits, decodes, or its output is not returned."""
    server, one = Ahead(Engine(INCREMENTAL)), request(1, TEXT, 2)
    server.submit(one)
    while server.step():
        with pytest.raises(Refused, match="CHOICE_TAKEN"):
            server.submit(one)
    with pytest.raises(Refused, match="CHOICE_TAKEN"):
        server.submit(one)
    assert 1 == len(server.take_outputs())
    assert alone(one) == results(server.generate([one]))


def test_what_is_not_served_is_refused_by_name() -> None:
    """Several choices, a lag that is too long, an engine in use, and requests that never fit."""
    engine = Engine(INCREMENTAL)
    server = Ahead(engine)
    with pytest.raises(InvalidInput, match="n_generations: saw 2"):
        server.generate([request(1, (1,), 1), request(2, (1,), 1, 2)])
    for wrong, reason in ((request(1, (1,) * 8, 1), "TOO_LONG"), (request(1, (1,), 8), "TOO_LONG")):
        with pytest.raises(Refused, match=reason):
            server.submit(wrong)
    assert AheadState() == server.state
    for lag in (-1, LAG + 1, True, None):
        with pytest.raises(InvalidInput, match="lag"):
            Ahead(engine, lag=lag)  # type: ignore[arg-type]
    engine.reserve()
    with pytest.raises(Refused, match="an engine without requests"):
        Ahead(engine)


def test_without_cleanup_it_stalls_and_says_why() -> None:
    """When finished sequences have all slots, the rest waits, and a reset lets it be served."""
    requests = [request(number, (number,), 1) for number in range(6)]
    server = Ahead(Engine(KEPT))
    with pytest.raises(Stalled, match="NO_FREE_SLOT") as caught:
        server.generate(requests)

    assert alone(*requests[:4]) == results(caught.value.outputs)
    waiting = server.state.waiting
    assert tuple(requests[4:]) == waiting
    server.reset()
    assert alone(*waiting) == results(server.generate(waiting))


class Watched:
    """Calls that are started on an engine: those that it refuses, which must change nothing."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused = list[str]()
        self._engine, self._start = engine, engine.start
        monkeypatch.setattr(engine, "start", self.start)

    def start(self, name: str, *rest: Any) -> Any:
        """Start a call of the engine, and look at the state before and after."""
        before = self._engine.extract()
        report = self._start(name, *rest)
        if np.asarray(report)[0]:
            self.refused.append(name)
            assert_identical(before, self._engine.extract())
        return report


@pytest.mark.parametrize("lag", LAGS)
def test_a_step_that_the_device_refuses_is_told_and_changes_nothing(
    lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do calls behind it, and when the cause is gone all requests are served."""
    engine = Engine(INCREMENTAL)
    server, requests = Ahead(engine, lag=lag), [request(1, TEXT, 5), request(2, (2,), 3)]
    server.submit(requests[0])
    assert server.step()
    for slot, cells in ((2, 4), (3, 8)):  # someone else takes all other pages
        engine.reserve(slot)
        engine.allocate([(slot, at) for at in range(cells)])
    watched = Watched(engine, monkeypatch)
    assert server.step()
    assert server.step()  # it is the one that is refused, which nobody knows yet
    server.submit(requests[1])

    with pytest.raises(Refused) as caught:
        server.generate([])

    assert frozenset({Reason.OUT_OF_PAGES}) == caught.value.reasons
    assert ["launch", *["begin"] * bool(lag), *["launch"] * lag] == watched.refused
    assert not server.state.flights
    for slot in (2, 3):
        engine.free(slot)
    assert alone(*requests) == results(server.generate([]))
    assert_idle(engine)


def test_a_request_that_the_device_refuses_goes_back_to_the_line() -> None:
    """Someone else has taken the slot; the reason is told with the next step that is read."""
    engine = Engine(INCREMENTAL)
    server, one = Ahead(engine), request(1, TEXT, 2)
    server.submit(one)
    engine.reserve(0)

    with pytest.raises(Refused, match="SLOT_USED"):
        server.generate([])

    assert AheadState(waiting=(one,)) == server.state
    engine.free(0)
    assert alone(one) == results(server.generate([]))


@pytest.mark.parametrize("lag", LAGS)
def test_what_has_ended_is_let_go_with_a_step_that_is_refused(lag: int) -> None:
    """The refused step is the last one that names its slot."""
    sizes = Geometry(pages=4, page_size=2, slots=2, pages_per_seq=4)
    engine = Engine(evolve(INCREMENTAL, geometry=sizes, limits=default_limits(sizes)))
    (stop, *_), _ = naive.generate((1, 2), Params(max_new=1))
    server = Ahead(engine, lag=lag)
    server.submit(request(1, (1, 2), 6, stops=((stop,),)))
    assert server.step()
    engine.reserve(1)
    for cells in ((0, 1), (2, 3), (4, 5)):  # someone else takes all other pages
        engine.allocate([(1, at) for at in cells])
    with suppress(Refused):
        server.generate([])
    engine.free(1)

    served = [request(2, (3,) * 5, 3), request(3, (4,) * 5, 3)]
    assert alone(*served).items() <= results(server.generate(served)).items()
    assert () == server.state.held
    assert_idle(engine)


def test_requests_behind_one_that_is_refused_wait_in_their_order() -> None:
    """Two have begun behind it, and go back to the line."""
    engine = Engine(INCREMENTAL)
    server, requests = Ahead(engine), [request(number, TEXT, 2) for number in (1, 2, 3)]
    engine.reserve(0)
    for one in requests:
        server.submit(one)

    with pytest.raises(Refused, match="SLOT_USED"):
        server.generate([])

    assert AheadState(waiting=tuple(requests)) == server.state


def test_an_id_is_taken_while_its_output_is_owed() -> None:
    """The sequence has ended, and its output was not read yet."""
    server = Ahead(Engine(INCREMENTAL), lag=1)
    for one in (request(1, (1,), 1), request(2, (2,), 6)):
        server.submit(one)
    while not server.state.owed:
        assert server.step()

    with pytest.raises(Refused, match="CHOICE_TAKEN"):
        server.submit(request(1, (3,), 1))


def test_what_someone_else_kept_from_the_cleanup_is_freed_when_it_is_in_the_way() -> None:
    """With cleanup at the end, a sequence of someone else keeps what has ended in its slot."""
    engine = Engine(SETUPS[CleanupMode.END])
    server = Ahead(engine, lag=1)
    server.submit(request(1, TEXT, 2))
    assert server.step()
    engine.reserve(3)
    server.generate([])
    engine.free(3)
    server.submit(request(2, (1,), 2))

    with pytest.raises(Refused, match="SLOT_USED"):
        server.generate([])
    assert alone(request(2, (1,), 2)) == results(server.generate([]))
    assert_idle(engine)


def test_a_reset_delivers_steps_of_someone_else() -> None:
    """Also one that has not retired."""
    engine = Engine(INCREMENTAL)
    server = Ahead(engine)
    server.submit(request(1, TEXT, 2))
    assert server.step()
    engine.reserve(3)
    engine.assign(3, (1,), Params(max_new=2), request=9)
    engine.dispatch([(3, 1)])

    server.reset()

    assert AheadState() == server.state
    assert_idle(engine)
    assert alone(*REQUESTS) == results(server.generate(REQUESTS))


def test_an_error_between_device_and_host_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device has begun a step of which the host does not know: all is lost until a reset."""
    server = Ahead(Engine(INCREMENTAL))
    server.submit(REQUESTS[0])
    monkeypatch.setattr(ahead, "launched", lambda *_: 1 // 0)

    with pytest.raises(ZeroDivisionError):
        server.step()
    monkeypatch.undo()
    with pytest.raises(StateLost):
        server.step()

    server.reset()
    assert alone(*REQUESTS) == results(server.generate(REQUESTS))


def test_a_step_that_someone_else_delivers_is_told() -> None:
    """Host and engine are then in different states, until a reset."""
    engine = Engine(INCREMENTAL)
    server, one = Ahead(engine), request(1, TEXT, 2)
    server.submit(one)
    assert server.step()
    engine.deliver()

    with pytest.raises(Refused, match="NO_FLIGHT"):
        server.generate([])
    with pytest.raises(StateLost):
        server.step()
    server.reset()
    assert alone(one) == results(server.generate([one]))


REQUESTS: Final = [request(number, (1, number), 2 + number % 2) for number in range(4)]


# Python itself drops an interrupt while a generator is closed, and warns about it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("apart", deep_after(1, [7, 1]))
@pytest.mark.parametrize("lag", deep_after(1, reversed(LAGS)))
def test_an_interrupt_at_any_moment_loses_no_output(lag: int, apart: int) -> None:
    """The requests that were queued are served, and those that were not are sent again."""
    expected = alone(*REQUESTS)
    engine = Engine(INCREMENTAL)
    count = moments(lambda: Ahead(engine, lag=lag).generate(REQUESTS))
    reached = 0
    for at in range(0, count, apart):
        server, served = Ahead(engine, lag=lag), Results()
        with interrupted(at):
            try:
                served = results(server.generate(REQUESTS))
            except KeyboardInterrupt:
                reached += 1
        if not served:
            served = results(server.generate([] if known(server.state) else REQUESTS))
        assert expected == served, at
        assert AheadState() == server.state, at
        assert_idle(engine)

    assert reached > count // apart // 2


def known(state: AheadState) -> bool:
    """Whether the requests were queued: all of them are, or none."""
    return state != AheadState()


@pytest.mark.parametrize("name", ["begin", "launch", "deliver", "take_outputs"])
@pytest.mark.parametrize("mode", ResetMode)
def test_a_call_that_fails_on_the_device_is_named_until_the_reset(
    name: str, mode: ResetMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report cannot be read and the state is gone: every method raises StateLost."""
    engine = Engine(INCREMENTAL)
    server, start = Ahead(engine), engine.start

    def failing(called: str, *rest: Any) -> Any:
        report = start(called, *rest)
        if called == name:
            for leaf in engine.packed.short:
                leaf.delete()
            return Broken()
        return report

    monkeypatch.setattr(engine, "start", failing)
    with pytest.raises((RuntimeError, ValueError, StateLost, TypeError)):
        server.generate(REQUESTS)
    monkeypatch.undo()
    calls = (lambda: server.submit(REQUESTS[0]), server.step, server.take_outputs)
    for call in (*calls, lambda: server.generate([])):
        with pytest.raises(StateLost, match=r"Call reset\(\)"):
            call()

    server.reset(mode)
    assert AheadState() == server.state
    assert alone(*REQUESTS) == results(server.generate(REQUESTS))


def test_a_reset_with_steps_in_flight_leaves_nothing() -> None:
    """What they hold is given back, and the ids can be used again."""
    engine = Engine(INCREMENTAL)
    server = Ahead(engine)
    for one in REQUESTS:
        server.submit(one)
    for _ in range(3):
        assert server.step()

    server.reset()

    assert AheadState() == server.state
    assert_idle(engine)
    assert alone(*REQUESTS) == results(server.generate(REQUESTS))


def test_each_entry_point_is_compiled_once_for_all_lags() -> None:
    """Neither the first call, whose report before it is none, nor another lag compiles again."""
    setup = evolve(INCREMENTAL, limits=evolve(INCREMENTAL.limits, outputs=6))
    for lag in LAGS:
        engine = Engine(setup)
        assert alone(*REQUESTS) == results(Ahead(engine, lag=lag).generate(REQUESTS))

    names = ("begin", "deliver", "launch", "take_outputs")
    assert dict.fromkeys(names, 1) == engine.compilations()
