"""Lost states: a call that failed with the state in it is named, and a reset recovers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_tools import SETUPS, assert_identical, params, request
from test_host import alone, results
from test_interrupts import CALLS, Alarm, go_on, raising

from impl.engine import Engine, StateLost
from impl.host import Host, HostState
from spec.vocabulary import CleanupMode, ResetMode

SETUP = SETUPS[CleanupMode.INCREMENTAL]
REQUESTS = [request(number, (1, number), 2 + number % 2, 1 + number % 2) for number in range(4)]


class Broken:
    """An answer that cannot be read, as if XLA failed after the call had returned."""

    def __array__(self, *_: object, **__: object) -> np.ndarray[Any, Any]:
        raise RuntimeError("the device failed")


def losing(engine: Engine, name: str, error: BaseException) -> None:
    """Make the next call of this entry point take the state and raise."""
    run = engine._entries[name]

    def broken(*given: Any) -> Any:
        engine._entries[name] = run
        run(*given)
        raise error

    engine._entries[name] = broken


EVERY: dict[str, Callable[[Engine], object]] = {
    **CALLS,
    "packed": lambda engine: engine.packed,
    "extract": Engine.extract,
    "stats": Engine.stats,
    "take_events": Engine.take_events,
    "pack": Engine.pack,
    "round": Engine.round,
    "mixed_round": lambda engine: engine.mixed_round([(0, 1)]),
    "dispatch": lambda engine: engine.dispatch([(0, 1)]),
    "retire": Engine.retire,
    "start": lambda engine: engine.start("retire"),
    "deliver": Engine.deliver,
    "preempt": lambda engine: engine.preempt(0),
    "replay": lambda engine: engine.replay(0, (1,)),
    "generate": Engine.generate,
    "free_finished": Engine.free_finished,
    "free": lambda engine: engine.free(0),
    "purge": lambda engine: engine.purge(0),
    "enqueue": lambda engine: engine.enqueue(0, 1),
    "clone": lambda engine: engine.clone(0, choice=1),
    "propose": lambda engine: engine.propose(0, (1,)),
    "commit": lambda engine: engine.commit(0, 1),
    "truncate": lambda engine: engine.truncate(0, 1),
    "release": lambda engine: engine.release(0, 0),
    "hit": lambda engine: engine.hit(0, 1),
    "share_prefix": lambda engine: engine.share_prefix(0, 0, 1),
    "publish": lambda engine: engine.publish(0, 1),
    "merge": lambda engine: engine.merge(0, 0),
    "evict": lambda engine: engine.evict((1,)),
    "drop": Engine.drop,
    "allocate": lambda engine: engine.allocate([(0, 0)]),
    "write": lambda engine: engine.write([(0, 0)]),
    "assign": lambda engine: engine.assign(0, (1,), params(1), request=1),
}
OTHERS = {"reset", "inject", "compilations", "finish"}
"""The methods that need no state."""


@pytest.mark.parametrize("mode", ResetMode)
@pytest.mark.parametrize(
    "error", [RuntimeError("XLA failed"), KeyboardInterrupt(), Alarm()], ids=repr
)
def test_a_lost_state_is_named_until_the_reset(mode: ResetMode, error: BaseException) -> None:
    """Every method raises StateLost, and after a reset the engine equals a new one."""
    engine = Engine(SETUP)
    host = Host(engine)
    host.generate(REQUESTS)
    host.submit(REQUESTS[0])
    losing(engine, "prefill_requests", error)

    with pytest.raises(type(error)):
        host.admit()

    public = {name for name in vars(Engine) if not name.startswith("_")}
    assert public == EVERY.keys() | OTHERS
    for name in EVERY.keys() - OTHERS:
        with pytest.raises(StateLost, match=r"Call reset\(\)"):
            EVERY[name](engine)
    on_host: dict[str, Callable[[], object]] = {
        "submit": lambda: host.submit(REQUESTS[1]),
        "generate": lambda: host.generate([]),
        "admit": host.admit,
        "generate_rounds": host.generate_rounds,
        "take_outputs": host.take_outputs,
        "settle": host.settle,
        "stats": host.stats,
    }
    public = {name for name in vars(Host) if not name.startswith("_")}
    assert public == on_host.keys() | {"reset", "state"}
    for call in on_host.values():
        with pytest.raises(StateLost, match=r"Call reset\(\)"):
            call()
    assert (REQUESTS[0],) == host.state.waiting
    host.reset(mode)
    assert_identical(Engine(SETUP).extract(), engine.extract())
    assert HostState() == host.state
    assert alone(*REQUESTS) == results(host.generate(REQUESTS))


def test_a_state_that_failed_on_the_device_is_lost_too() -> None:
    """If the answer or the state cannot be read after the call returned, the state is lost."""
    engine = Engine(SETUP)
    engine.reserve()
    run = engine._entries["reserve"]

    def failed(weights: Any, packed: Any, *rest: Any) -> Any:
        state, _ = run(weights, packed, *rest)
        for leaf in state.short:
            leaf.delete()
        return state, Broken()

    engine._entries["reserve"] = failed
    with pytest.raises(RuntimeError, match="the device failed"):
        engine.reserve()
    with pytest.raises(StateLost):
        engine.stats()
    engine.reset()
    assert_identical(Engine(SETUP).extract(), engine.extract())


def test_a_call_that_fails_before_it_begins_loses_nothing() -> None:
    """An error while an entry point is compiled leaves the engine unchanged."""
    engine = Engine(SETUP)
    engine.reserve()
    before, run = engine.extract(), engine._entries["reserve"]
    engine._entries["reserve"] = lambda *_: raising(RuntimeError("no memory to compile"))
    with pytest.raises(RuntimeError, match="no memory"):
        engine.reserve()
    engine._entries["reserve"] = run

    assert_identical(before, engine.extract())
    assert 1 == engine.reserve()


def test_a_lost_engine_takes_a_state() -> None:
    """A lost engine continues with an injected state."""
    engine = Engine(SETUP)
    engine.reserve()
    held = engine.extract()
    losing(engine, "reserve", RuntimeError())
    with pytest.raises(RuntimeError):
        engine.reserve()

    engine.inject(held)
    assert 1 == engine.reserve()


WINDOWS = [
    (name, number, when)
    for name in ("stats", "prefill", "generate", "take_outputs")
    for number in range(3)
    for when in ("before", "after")
]


@pytest.mark.parametrize(("name", "number", "when"), WINDOWS)
def test_what_no_signal_handler_holds_is_named(
    name: str, number: int, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an exception at a call of the engine, the host goes on or raises StateLost."""
    engine = Engine(SETUP)
    host, calls, real = Host(engine), [0], getattr(engine, name)

    def breaking(*given: Any) -> Any:
        calls[0] += 1
        if calls[0] - 1 != number:
            return real(*given)
        if when == "after":
            real(*given)
        raise Alarm

    monkeypatch.setattr(engine, name, breaking)
    with pytest.raises(Alarm):
        host.generate(REQUESTS)
    monkeypatch.undo()

    try:
        served = go_on(host)
    except StateLost:
        assert name in {"prefill", "take_outputs"}
        host.reset()
        served = results(host.generate(REQUESTS))
    assert alone(*REQUESTS) == served
