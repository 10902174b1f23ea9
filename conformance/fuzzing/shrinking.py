"""Shrinking of failing histories.

Shrinking works on concrete actions: it leaves out steps, and makes steps smaller, as long as the
same clause is violated. Neither the draws nor Hypothesis are needed to reproduce the result.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Final

from attrs import evolve

from conformance.fuzzing import settings
from conformance.fuzzing.folding import named, relabelled, shorter_by_specification
from conformance.fuzzing.settings import Setting
from conformance.history import History, Step
from conformance.lockstep.called import not_new
from conformance.lockstep.differential import Differences, Pair, PairFactory
from conformance.lockstep.lockstep import SERVE
from conformance.lockstep.run import Finding, MakeEngine, TakeAgain, replay
from conformance.lockstep.watchdog import FIRST_SECONDS, Watchdog
from conformance.protocol import Factory, Profile
from conformance.rungs.registry import simpler_steps
from spec.machines import actions as act
from spec.vocabulary.errors import KvspecError

DIFFERENCE_SECONDS: Final = 5.0
"""How long the history of a permitted difference is shrunk."""
LONG: Final = 8
"""A longer history is tried with fewer pages: most of its steps may have to fill the pool."""
MOST_SLOTS: Final = 64
"""Slot numbers from here on are not changed: some of them are wrong on purpose."""


def shrink_at(
    factory: Factory,
    setting: Setting,
    finding: Finding,
    *,
    seconds: float,
    step_seconds: float = FIRST_SECONDS,
    watchdog: Watchdog | None = None,
) -> tuple[Setting, Finding]:
    """The smallest history, and the setting at which it fails: see `shrink`.

    The setting has fewer pages if the history would stay long with all of them.
    """
    deadline = time.monotonic() + seconds

    def least(setting: Setting, finding: Finding) -> Finding:
        make = partial(settings.make, factory, *setting)
        left = deadline - time.monotonic()
        return shrink(make, finding, seconds=left, step_seconds=step_seconds, watchdog=watchdog)

    def at(setting: Setting, best: Finding) -> Finding | None:
        """The smallest finding of a setting, if it is none of more steps."""
        make = partial(settings.make, factory, *setting)
        for history in (best.history, finding.history):  # the latter has smaller batches
            try:
                found = replay(make, history, seconds=step_seconds, watchdog=watchdog)
            except KvspecError:  # there is no such engine
                return None
            if found is not None and found.clause == best.clause:
                small = least(setting, found)
                return small if len(small.history) <= len(best.history) else None
        return None

    best = least(setting, finding)
    fewer = setting.geometry.pages // 2 if len(best.history) > LONG else 0
    try:
        while fewer and time.monotonic() < deadline:
            pages = setting.geometry.pages - fewer
            smaller = setting._replace(geometry=evolve(setting.geometry, pages=pages))
            found = at(smaller, best)
            if found is None:
                fewer //= 2
            else:
                setting, best, fewer = smaller, found, pages // 2
    except KeyboardInterrupt:
        pass
    return setting, best


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
    found, deadline, profile = replayed or finding, time.monotonic() + seconds, make().profile
    if not _is_served(found):  # to serve takes longer than most steps: only what is left is served
        quick = partial(again, serve=False)
        found = shrink_with(quick, found, seconds=seconds, profile=profile)
    return shrink_with(again, found, seconds=deadline - time.monotonic(), profile=profile)


def _is_served(finding: Finding) -> bool:
    """Whether the steps went well, and only what is served after them went wrong."""
    return finding.violation is not None and finding.violation.action is SERVE


def shrink_with(
    again: TakeAgain, finding: Finding, *, seconds: float, profile: Profile | None = None
) -> Finding:
    """The same, with `again` to replay a history. profile: of the engine, if it has one.

    Every change goes on where the last one was found, so that what has just failed comes last. A
    change leaves fewer steps, or as many and fewer slots that a step chooses, or as many of both
    and smaller values: so shrinking ends.
    """
    deadline = time.monotonic() + seconds
    best, at, tried = finding, 0, set[History]()
    try:
        while time.monotonic() < deadline:
            smaller = None
            for number, change in _from(best.history, profile, at):
                if time.monotonic() > deadline:
                    return best
                smaller = _failing(again, change(), best, tried)
                if smaller is not None:
                    best, at = smaller, number
                    break
            if smaller is None:
                break
    except KeyboardInterrupt:
        pass
    return best


def _from(
    history: History, profile: Profile | None, at: int
) -> Iterator[tuple[int, Callable[[], History | None]]]:
    """Every change of a history with its number, from this number on, and then the first ones."""
    changes = partial(_smaller, history, profile)
    yield from islice(enumerate(changes()), at, None)
    yield from islice(enumerate(changes()), at)


def _failing(
    again: TakeAgain, candidate: History | None, best: Finding, tried: set[History]
) -> Finding | None:
    """The finding of a history that was not tried before, if it violates the same clause."""
    if candidate is None or candidate == best.history or candidate in tried:
        return None
    tried.add(candidate)
    found = again(candidate)
    return found if found is not None and found.clause == best.clause else None


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


def _smaller(history: History, profile: Profile | None) -> Iterator[Callable[[], History | None]]:
    """Change it as the specification allows, leave out ever smaller runs of steps, change several
    steps, then make one step smaller.
    """
    if profile is not None:
        yield from shorter_by_specification(history, profile)
    for candidate in chain(
        _with_fewer_steps(history), smaller_together(history), _simpler(history)
    ):
        yield partial(_as_it_is, candidate)


def _as_it_is(history: History) -> History:
    return history


def _with_fewer_steps(history: History) -> Iterator[History]:
    size = len(history) // 2
    while size:
        for start in range(0, len(history) - size + 1, size):
            yield history[:start] + history[start + size :]
        size //= 2


def _simpler(history: History) -> Iterator[History]:
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
    slots = {slot for step in history for slot in named(step) if 0 <= slot < MOST_SLOTS}
    for gone in range(max(slots, default=0)):
        lower = tuple(relabelled(step, partial(_moved_down, gone)) for step in history)
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
