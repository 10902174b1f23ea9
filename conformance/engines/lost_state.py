"""Our engine and host without their state: every method says so, until a reset."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from conformance.engines.trouble import (
    Failed,
    Pressed,
    Trouble,
    TroubledEngine,
    is_main_thread,
)
from conformance.protocol import EngineFailed
from impl.engine import Engine, StateLost
from impl.host import Host
from spec.vocabulary import Params, Refused, Request


def require_lost(calls: Mapping[str, Callable[[], object]]) -> None:
    """Raise EngineFailed if one of these calls goes on without its state."""
    for name, call in calls.items():
        try:
            call()
        except StateLost:
            continue
        except Refused:  # it has looked at a state that is lost
            pass
        raise EngineFailed(f"{name} goes on without its state", clause="RESET")


def lose(engine: TroubledEngine, host: Host) -> None:
    """Lose the state, in a call that Ctrl-C meets too if that can be.

    Raises EngineFailed unless host and engine say so, with what waits, and Ctrl-C is raised.
    """
    waiting, engine.fails = host.state.waiting, True
    if is_main_thread():
        _lose_with_ctrl_c(engine, host)
    else:
        with suppress(Failed):
            host.take_outputs()
    require_lost(calls_of_host(host))
    require_lost(calls_of_engine(engine))
    if host.state.waiting != waiting:
        wrong = f"{host.state.waiting} wait after a call that failed, and not {waiting}"
        raise EngineFailed(wrong, clause="RESET")


def _lose_with_ctrl_c(engine: TroubledEngine, host: Host) -> None:
    try:
        with engine.meets(Trouble.CTRL_C, 0):
            host.take_outputs()
    except Pressed:
        return
    except Failed:
        pass
    raise EngineFailed("Ctrl-C in a call that fails is lost", clause="ATOMIC")


def calls_of_host(host: Host) -> dict[str, Callable[[], object]]:
    """A call of each public method but `reset`, by name."""
    return {
        "stats": host.stats,
        "settle": host.settle,
        "submit": partial(host.submit, Request(id=0, prompt=(0,), params=Params(max_new=1))),
        "admit": host.admit,
        "generate_rounds": host.generate_rounds,
        "take_outputs": host.take_outputs,
        "generate": partial(host.generate, ()),
    }


def calls_of_engine(engine: Engine) -> dict[str, Callable[[], object]]:
    """A call of each public method that reads or changes the state, but `reset`, by name."""
    params, cell = Params(max_new=1), [(0, 0)]
    return {
        "reserve": engine.reserve,
        "assign": partial(engine.assign, 0, (0,), params, request=0),
        "allocate": partial(engine.allocate, cell),
        "write": partial(engine.write, cell),
        "clone": partial(engine.clone, 0, choice=0),
        "free": partial(engine.free, 0),
        "free_finished": engine.free_finished,
        "enqueue": partial(engine.enqueue, 0, 0),
        "pack": engine.pack,
        "purge": partial(engine.purge, 0),
        "propose": partial(engine.propose, 0, (0,)),
        "commit": partial(engine.commit, 0, 1),
        "truncate": partial(engine.truncate, 0, 0),
        "release": partial(engine.release, 0, 0),
        "hit": partial(engine.hit, 0, 1),
        "share_prefix": partial(engine.share_prefix, 0, 0, 1),
        "publish": partial(engine.publish, 0, 0),
        "merge": partial(engine.merge, 0, 0),
        "evict": partial(engine.evict, (0,)),
        "drop": engine.drop,
        "prefill": partial(engine.prefill, [Request(id=0, prompt=(0,), params=params)]),
        "round": engine.round,
        "mixed_round": partial(engine.mixed_round, [(0, 1)]),
        "dispatch": partial(engine.dispatch, [(0, 1)]),
        "retire": engine.retire,
        "deliver": engine.deliver,
        "preempt": partial(engine.preempt, 0),
        "replay": partial(engine.replay, 0, (0,)),
        "generate": engine.generate,
        "take_outputs": engine.take_outputs,
        "stats": engine.stats,
        "take_events": engine.take_events,
        "extract": engine.extract,
        "start": partial(engine.start, "deliver"),
    }
