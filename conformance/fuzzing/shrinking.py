"""Shrinking of failing histories.

Shrinking works on concrete actions: it leaves out steps, and makes steps smaller, as long as the
same clause is violated. Neither the draws nor Hypothesis are needed to reproduce the result.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from attrs import evolve

from conformance.history import History, Step
from conformance.lockstep.called import not_new
from conformance.lockstep.differential import Differences, Pair, PairFactory
from conformance.lockstep.lockstep import SERVE
from conformance.lockstep.run import Finding, MakeEngine, TakeAgain, replay
from conformance.lockstep.watchdog import FIRST_SECONDS, Watchdog
from conformance.rungs.registry import simpler_steps
from spec.machines import actions as act

DIFFERENCE_SECONDS: Final = 5.0
"""How long the history of a permitted difference is shrunk."""
_SLOTS = ("slot", "parent", "child")
"""Fields of actions that name a slot."""
MOST_SLOTS: Final = 64
"""Slot numbers from here on are not changed: some of them are wrong on purpose."""


def shrink(
    make: MakeEngine,
    finding: Finding,
    *,
    seconds: float,
    step_seconds: float = FIRST_SECONDS,
    watchdog: Watchdog | None = None,
) -> Finding:
    """The smallest history found in this time that still violates the same clause.

    A run compares some things at a sample of its steps, and a replay at each. If that finds another
    clause first, that is the one. step_seconds: how long each step may take.

    Raises AdapterMistake if a new engine goes wrong before any step: it is not new.

    Ctrl-C ends the shrinking and not the run: the smallest history so far is kept.
    """
    if not finding.history:
        return finding
    again = partial(replay, make, seconds=step_seconds, watchdog=watchdog)
    try:
        first = again(())
        replayed = again(finding.history) if seconds > 0 else None
    except KeyboardInterrupt:
        return finding
    if first is not None and not _is_served(first):
        raise not_new(first.message)
    return shrink_with(again, replayed or finding, seconds=seconds)


def _is_served(finding: Finding) -> bool:
    """Whether the steps went well, and only what is served after them went wrong."""
    return finding.violation is not None and finding.violation.action is SERVE


def shrink_with(again: TakeAgain, finding: Finding, *, seconds: float) -> Finding:
    """The same, with `again` to replay a history."""
    deadline = time.monotonic() + seconds
    best = finding
    try:
        while time.monotonic() < deadline:
            smaller = _first_failing(again, best, deadline)
            if smaller is None:
                break
            best = smaller
    except KeyboardInterrupt:
        pass
    return best


def shrink_difference(pairs: PairFactory, kind: str) -> History:
    """Shrink to a shortest history that ends in this permitted difference."""
    profile, first = pairs.seen.first[kind]

    def again(history: History) -> Finding | None:
        made: list[Pair] = []
        seen = Differences()

        def make() -> Pair:
            pair = PairFactory(pairs.a, pairs.b, seen)
            made.append(pair(profile.geometry, profile.limits, profile.cleanup))
            return made[-1]

        if replay(make, history) is not None:
            return None
        made[-1].settle()
        return Finding(seen.first[kind][1], kind, "") if kind in seen.first else None

    return shrink_with(again, Finding(first, kind, ""), seconds=DIFFERENCE_SECONDS).history


def _first_failing(again: TakeAgain, finding: Finding, deadline: float) -> Finding | None:
    """The first smaller history that violates the same clause; None if none is found in time."""
    for candidate in _smaller(finding.history):
        if time.monotonic() > deadline:
            return None
        found = again(candidate)
        if found is not None and found.clause == finding.clause:
            return found
    return None


def _smaller(history: History) -> Iterator[History]:
    """Leave out ever smaller runs of steps, change several steps, then make one step smaller."""
    size = len(history) // 2
    while size:
        for start in range(0, len(history) - size + 1, size):
            yield history[:start] + history[start + size :]
        size //= 2
    yield from smaller_together(history)
    for index, step in enumerate(history):
        for simpler in simpler_steps(step):
            yield (*history[:index], simpler, *history[index + 1 :])


def smaller_together(history: History) -> Iterator[History]:
    """Histories with several steps changed at once.

    None is longer or has larger numbers, so that shrinking ends.
    """
    yield from _without_a_slot(history)
    yield from _shortened(history)
    yield from _joined(history)


def _without_a_slot(history: History) -> Iterator[History]:
    """Without one reservation and with higher slots lowered by one; or with slots lowered only."""
    slots = {slot for step in history for slot in _named(step) if 0 <= slot < MOST_SLOTS}
    for gone in range(max(slots, default=0)):
        lower = tuple(_relabelled(step, partial(_moved_down, gone)) for step in history)
        for index, step in enumerate(history):
            if isinstance(step, act.Reserve):
                yield lower[:index] + lower[index + 1 :]
        if gone not in slots:
            yield lower


def _moved_down(gone: int, slot: int) -> int:
    return slot - 1 if gone < slot < MOST_SLOTS else slot


def _shortened(history: History) -> Iterator[History]:
    """A shorter prompt, and nothing allocated or written past it."""
    for index, step in enumerate(history):
        if isinstance(step, act.Assign):
            whole = len(step.prompt)
            for length in sorted({whole // 2, whole - 1} - {0}):
                cut = tuple(_cut(other, step.slot, length) for other in history)
                assigned = evolve(step, prompt=step.prompt[:length])
                yield (*cut[:index], assigned, *cut[index + 1 :])


def _joined(history: History) -> Iterator[History]:
    """Two batches of the same class joined into one, in the place of the later."""
    for late, step in enumerate(history):
        for early, other in enumerate(history[:late]):
            match other, step:
                case act.Allocate(first), act.Allocate(second):
                    whole: Step = act.Allocate(first + second)
                case act.Write(first), act.Write(second):
                    whole = act.Write(first + second)
                case _:
                    continue
            rest = (*history[early + 1 : late], whole, *history[late + 1 :])
            yield (*history[:early], *rest)


def _named(step: Step) -> set[int]:
    """The slots that a step names."""
    fields = {getattr(step, name, None) for name in _SLOTS}
    entries = {entry[0] for entry in getattr(step, "batch", ()) if entry is not None}
    return {slot for slot in fields | entries if type(slot) is int}


def _relabelled(step: Step, rename: Callable[[int], int]) -> Step:
    """The same step with its slots renamed."""
    changes: dict[str, Any] = {
        name: rename(slot) for name in _SLOTS if type(slot := getattr(step, name, None)) is int
    }
    if isinstance(step, act.Allocate | act.Write):
        changes["batch"] = tuple(entry and (rename(entry[0]), entry[1]) for entry in step.batch)
    changed: Step = evolve(step, **changes)
    return changed


def _cut(step: Step, slot: int, length: int) -> Step:
    """The same step; a batch loses the positions of a slot from this length on."""
    if isinstance(step, act.Allocate):
        return act.Allocate(_below(step.batch, slot, length))
    if isinstance(step, act.Write):
        return act.Write(_below(step.batch, slot, length))
    return step


def _below(
    batch: tuple[tuple[int, int] | None, ...], slot: int, length: int
) -> tuple[tuple[int, int] | None, ...]:
    return tuple(entry for entry in batch if entry is None or entry[0] != slot or entry[1] < length)
