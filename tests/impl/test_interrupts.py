"""Interrupts at any moment: no state is lost, or the loss is named and a reset recovers.

CPython looks for signals where a Python function begins and where a call into C has returned. A
profiler is called at exactly these moments, so that a signal raised by it comes at each in turn.
"""

import _signal  # type: ignore[import-not-found]
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from deep import deep_after
from engine_tools import SETUPS, leaves, request
from test_host import Results, alone, results

import impl
from impl.engine import Engine
from impl.host import Host, HostState
from impl.interrupts import hold_interrupts
from impl.state import State
from spec.vocabulary import CleanupMode, Refused

SETUP = SETUPS[CleanupMode.INCREMENTAL]
REQUESTS = [request(number, (1, number), 2 + number % 2, 1 + number % 2) for number in range(4)]
OURS = str(Path(impl.__file__).parent)


class Alarm(Exception):
    """An exception that the handler of another signal raises."""


@contextmanager
def interrupted(at: int) -> Iterator[list[int]]:
    """Raise SIGINT at the moment of this number in the engine's code. Yields the moments passed."""
    passed = [0]

    def look(frame: FrameType, event: str, _: object) -> None:
        if event in {"call", "c_return"} and frame.f_code.co_filename.startswith(OURS):
            passed[0] += 1
            if passed[0] - 1 == at:
                signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.setprofile(look)
    try:
        yield passed
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, previous)


def moments(work: Callable[[], object]) -> int:
    """The number of moments in some work after everything is compiled."""
    work()
    with interrupted(-1) as passed:
        work()
    return passed[0]


def same(first: State, second: State) -> bool:
    """Whether two states are the same, bit for bit."""
    pairs = zip(leaves(first), leaves(second), strict=True)
    return all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)


def go_on(host: Host) -> Results:
    """Serve the requests that are left, and send those again that the host does not know."""
    known = {one.id for one in (*host.state.waiting, *host.state.admitted)}
    stats = host.stats()
    known |= {key[0] for key in stats.occupants | stats.untaken}
    known |= {output.request for output in host.state.finished}
    return results(host.generate([one for one in REQUESTS if one.id not in known]))


CALLS: dict[str, Callable[[Engine], object]] = {
    "prefill": lambda engine: engine.prefill(REQUESTS[:1]),
    "reserve": lambda engine: engine.reserve(),
    "take_outputs": lambda engine: engine.take_outputs(),
    "reset": lambda engine: engine.reset(),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_of_a_call_leaves_the_state_before_or_after_it(name: str) -> None:
    """At every moment the action is done or not done as a whole, and the engine can go on."""
    engine, call = Engine(SETUP), CALLS[name]
    engine.prefill([request(9, (1,), 1)])
    before = engine.extract()

    def once() -> None:
        engine.inject(before)
        call(engine)

    count = moments(once)
    after = engine.extract()
    reached = set()
    for at in range(count):
        engine.inject(before)
        with interrupted(at) as passed:
            try:
                call(engine)
            except KeyboardInterrupt:
                reached.add(at)
        if at in reached:
            assert passed[0] > at
        held = engine.extract()
        assert same(held, before) or same(held, after), at

    assert len(reached) > 5


# Python itself drops an interrupt while a generator is closed, and warns about it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("apart", deep_after(1, [3, 1]))
def test_an_interrupted_host_loses_no_output(apart: int) -> None:
    """After an interrupt at any moment of serving, all outputs are returned in the end."""
    expected = alone(*REQUESTS)
    engine = Engine(SETUP)
    count = moments(lambda: Host(engine).generate(REQUESTS))
    reached = 0
    for at in range(0, count, apart):
        host, served = Host(engine), Results()
        with interrupted(at):
            try:
                served = results(host.generate(REQUESTS))
            except KeyboardInterrupt:
                reached += 1
        if not served:
            served = go_on(host)
        assert expected == served, at
        assert HostState() == host.state, at
        stats = host.stats()
        assert (0, 0, 0, frozenset()) == (stats.active, stats.queued, stats.outputs, stats.untaken)

    assert reached > count // apart // 2


def test_interrupts_while_requests_are_served_again_and_again() -> None:
    """With real interrupts from another thread at random moments, every output is returned once."""
    expected, rng = alone(*REQUESTS), random.Random(0)
    host, hits = Host(Engine(SETUP)), 0
    host.generate(REQUESTS)
    began = time.perf_counter()
    host.generate(REQUESTS)
    usual = time.perf_counter() - began
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(60):
            timer = threading.Timer(
                rng.uniform(0, usual), partial(os.kill, os.getpid(), signal.SIGINT)
            )
            served = Results()
            try:
                timer.start()
                served = results(host.generate(REQUESTS))
                timer.join()
                time.sleep(1)
            except KeyboardInterrupt:
                hits += 1
            timer.join()
            served = served or go_on(host)
            assert expected == served
            assert HostState() == host.state
    finally:
        signal.signal(signal.SIGINT, previous)

    assert hits > 30


def test_outputs_that_were_not_returned_keep_their_ids() -> None:
    """Outputs that were not returned keep their ids until the next `take_outputs` returns them."""
    host = Host(Engine(SETUP))
    host.submit(REQUESTS[0])
    host.admit()
    while host.stats().queued:
        host.generate_rounds()
    with interrupted_at_the_end_of(host._take), pytest.raises(KeyboardInterrupt):
        host.take_outputs()

    assert 0 == host.stats().outputs
    with pytest.raises(Refused, match="CHOICE_TAKEN"):
        host.submit(REQUESTS[0])
    assert alone(REQUESTS[0]) == results(
        {(one.request, one.choice): one for one in host.take_outputs()}
    )
    assert () == host.take_outputs()
    host.submit(REQUESTS[0])


@contextmanager
def interrupted_at_the_end_of(method: Callable[..., object]) -> Iterator[None]:
    """Raise SIGINT when this function returns."""
    code = method.__func__.__code__  # type: ignore[attr-defined]

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_code is code:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, previous)


def test_held_interrupts_reach_their_handler_afterwards() -> None:
    """The handler is called once after the work, with number and frame, and is installed again."""
    seen: list[tuple[int, object]] = []
    done: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append((number, frame and frame.f_code.co_name))
        assert [1] == done

    def work() -> str:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append(1)
        return "result"

    previous = signal.signal(signal.SIGINT, note)
    try:
        assert "result" == hold_interrupts(work)
        assert note is signal.getsignal(signal.SIGINT)
        with pytest.raises(Alarm):
            hold_interrupts(partial(raising, Alarm()))
        assert note is signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert [(signal.SIGINT, "hold_interrupts")] == seen


def raising(error: BaseException) -> None:
    """Raise an exception."""
    raise error


def test_a_held_interrupt_is_not_lost_to_the_handler_of_another_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other handlers run when ours is installed again; where one raises, both are told."""
    given, calls = _signal.signal, list[object]()

    def install(number: int, handler: signal.Handlers) -> object:
        calls.append(handler)
        if len(calls) == 2:
            raise Alarm
        return given(number, handler)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.setattr(_signal, "signal", install)
        with pytest.raises(KeyboardInterrupt) as found:
            hold_interrupts(partial(signal.raise_signal, signal.SIGINT))
        monkeypatch.undo()
        assert signal.default_int_handler is signal.getsignal(signal.SIGINT)
        assert isinstance(found.value.__context__, Alarm)
    finally:
        signal.signal(signal.SIGINT, previous)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_python_does_not_handle_is_left_alone(handler: signal.Handlers) -> None:
    """A handler that cannot be called is not replaced, and in another thread none is."""
    previous = signal.signal(signal.SIGINT, handler)
    try:
        assert handler is hold_interrupts(lambda: signal.getsignal(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, previous)
    before, seen = signal.getsignal(signal.SIGINT), []
    look = partial(signal.getsignal, signal.SIGINT)
    thread = threading.Thread(target=lambda: seen.append(hold_interrupts(look)))
    thread.start()
    thread.join()
    assert [before] == seen
