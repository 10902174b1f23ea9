"""Deadlines: whatever a step comes to, its alarm and its clock end with it."""

import math
import signal
import threading
import time
from collections.abc import Callable
from itertools import product
from typing import Final

import pytest
from spec_engine import SpecEngine, small

from conformance.history import Attend, PoisonDead, Step
from conformance.lockstep import watchdog
from conformance.lockstep.lockstep import Lockstep
from conformance.lockstep.run import finish, replay, take
from conformance.lockstep.watchdog import (
    FIRST_SECONDS,
    Hung,
    Patience,
    Watchdog,
    patience_of,
    set_alarm,
)
from conformance.protocol import Action, EngineFailed, Poison, Result
from spec.machines import actions as act
from spec.vocabulary import CleanupMode, InvalidInput, default_limits

SIZES: Final = small(pages=6, page_size=2, slots=3, pages_per_seq=4)
RESERVE: Final = act.Reserve(0)
ENDS: Final[dict[str, Exception | None]] = {
    "done": None,
    "failed": EngineFailed("no", clause="CONS"),
    "hung": Hung("late"),
    "bad input": InvalidInput("name", seen=1, allowed="2", remedy="Change it."),
    "an error of the kit": RuntimeError("no"),
}
"""What may come of a step, by the exception that ends it."""
STEPS: Final[tuple[Step, ...]] = (RESERVE, PoisonDead(Poison.NAN), Attend())


class Ending(SpecEngine):
    """The specification as an engine whose calls end in one way, and note the time that is left."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__(SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)
        self.error, self.left = error, list[float]()

    def end(self) -> None:
        """Note the time that is left, and raise."""
        self.left.append(signal.getitimer(signal.ITIMER_REAL)[0])
        if self.error is not None:
            raise self.error

    def apply(self, action: Action) -> Result:
        """Take the action, or raise."""
        self.end()
        return super().apply(action)

    def poison(self, kind: Poison) -> None:
        """Overwrite, or raise."""
        self.end()
        super().poison(kind)

    def attend(self) -> dict[int, dict[int, int]]:
        """The read sets, or an exception."""
        self.end()
        return {slot: dict(cells) for slot, cells in super().attend().items()}

    def serve(self, requests: object) -> tuple[()]:
        """Serve nothing, or raise."""
        del requests
        self.end()
        return ()


def ended(work: Callable[[], object]) -> str:
    """The name of what a step comes to: a clause of a finding, or another exception."""
    try:
        work()
    except Exception as error:
        return str(getattr(error, "clause", type(error).__name__))
    return "done"


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_step_has_its_alarm_and_leaves_none(how: str, step: Step) -> None:
    """The alarm is set for the seconds of the step, and is gone after it, however it ends."""
    engine = Ending(ENDS[how])
    lockstep = Lockstep(engine)

    found = ended(lambda: take(lockstep, step, seconds=20.0))

    right = {"failed": "CONS", "hung": "PROG", "bad input": "InvalidInput"}
    assert {**right, "done": "done"}.get(how, "RuntimeError") == found
    assert 15 < engine.left[0] <= 20
    assert (0.0, 0.0) == signal.getitimer(signal.ITIMER_REAL)


@pytest.mark.parametrize("how", [how for how in ENDS if how != "done"])
def test_serving_to_the_end_has_its_alarm_and_leaves_none(how: str) -> None:
    """Serving to the end is a step with a limit as well."""
    engine = Ending(ENDS[how])
    lockstep = Lockstep(engine)

    found = ended(lambda: finish(lockstep, seconds=20.0))

    right = {"failed": "CONS", "hung": "PROG", "bad input": "InvalidInput"}
    assert right.get(how, "RuntimeError") == found
    assert 15 < engine.left[0] <= 20
    assert (0.0, 0.0) == signal.getitimer(signal.ITIMER_REAL)


class Clock(Watchdog):
    """A watchdog that notes the steps that it is told of, and never starts its thread."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None)
        self.begun = list[tuple[int, float]]()

    def begin(self, history: object, seconds: float) -> None:
        """Note the length of the history, and its limit."""
        assert isinstance(history, list)
        self.begun.append((len(history), seconds))
        super().begin(history, seconds)


@pytest.mark.parametrize("how", ENDS)
def test_the_clock_of_a_history_stops_with_it(how: str) -> None:
    """Each step of a history starts the clock anew, and it has stopped when the history ends."""
    clock = Clock()

    ended(
        lambda: replay(lambda: Ending(ENDS[how]), STEPS, seconds=20.0, watchdog=clock, serve=False)
    )

    count = len(STEPS) if how == "done" else 1
    assert [(number, 20.0) for number in range(1, count + 1)] == clock.begun
    assert None is clock._due


@pytest.mark.parametrize("seconds", [0.5, 15.0, 39.0, 40.0, 41.0, 500.0])
def test_a_limit_is_never_less_than_it_was_asked_for(seconds: float) -> None:
    """A step may take what was asked for, and one that may compile as much or more."""
    limits = patience_of(seconds)

    assert Patience(step=seconds, first=sorted((seconds, FIRST_SECONDS))[1]) == limits
    for here, warm_up in product((True, False), (0.0, 1.0, limits.first, limits.first + 1)):
        more = 0.0 if here else sorted((warm_up, limits.first))[0]
        assert seconds + more == limits.after_warm_up(here=here, warm_up=warm_up)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_limit_that_is_none_is_refused(seconds: float) -> None:
    """No step can take no time, or any time."""
    with pytest.raises(InvalidInput):
        patience_of(seconds)


def test_an_alarm_rings_in_the_main_thread_alone() -> None:
    """Another thread sets no alarm, and a cancelled one does not ring."""
    thread = threading.Thread(target=set_alarm, args=(5.0,))
    thread.start()
    thread.join()
    assert (0.0, 0.0) == signal.getitimer(signal.ITIMER_REAL)

    set_alarm(0.01)
    with pytest.raises(Hung):
        time.sleep(5)
    set_alarm(0.01)
    set_alarm(0)
    time.sleep(0.03)


@pytest.mark.parametrize("ends", [False, True])
def test_a_step_that_outlasts_its_limit_and_grace_is_told_once(
    *, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history is told with the step that hangs, unless the step ends in time."""
    monkeypatch.setattr(watchdog, "GRACE_SECONDS", 0.3)
    told = list[tuple[Step, ...]]()
    rang = threading.Event()

    def hang(history: tuple[Step, ...], _message: str) -> None:
        told.append(history)
        rang.set()

    with Watchdog(hang) as dog:
        history: list[Step] = [RESERVE]
        dog.begin(history, 0.1)
        history.append(Attend())
        if ends:
            dog.end()
        rang.wait(0.8 if ends else 10)

    assert ([] if ends else [(RESERVE, Attend())]) == told


def test_the_grace_comes_after_the_limit() -> None:
    """The thread waits longer than the alarm, so that the alarm comes first."""
    clock = Clock()
    before = time.monotonic()

    clock.begin([RESERVE], 7.0)

    assert clock._due is not None
    assert 7.0 + watchdog.GRACE_SECONDS <= clock._due - before < 8.0 + watchdog.GRACE_SECONDS
    assert 0 <= clock.waited < 1
