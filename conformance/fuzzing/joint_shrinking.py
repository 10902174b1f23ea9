"""Smaller histories in which several steps change at once: what no change of one step leads to."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from attrs import evolve

from conformance.lockstep.history import History, Step
from spec.machines import actions as act

_SLOTS = ("slot", "parent", "child")
"""Fields of actions that name a slot."""
MOST_SLOTS: Final = 64
"""Slots from here on are left as they are, those that are wrong on purpose among them."""


def smaller_together(history: History) -> Iterator[History]:
    """All of them: never longer, never with larger numbers, so that shrinking ends."""
    yield from _without_a_slot(history)
    yield from _shortened(history)
    yield from _joined(history)


def _without_a_slot(history: History) -> Iterator[History]:
    """Without one reservation, the later slots moved down by one; or moved down alone."""
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
    """Two batches of one kind as one, in the place of the later."""
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
    """The same step with other slots."""
    changes: dict[str, Any] = {
        name: rename(slot) for name in _SLOTS if type(slot := getattr(step, name, None)) is int
    }
    if isinstance(step, act.Allocate | act.Write):
        changes["batch"] = tuple(entry and (rename(entry[0]), entry[1]) for entry in step.batch)
    changed: Step = evolve(step, **changes)
    return changed


def _cut(step: Step, slot: int, length: int) -> Step:
    """The same batch without the positions of a slot from a length on."""
    if isinstance(step, act.Allocate):
        return act.Allocate(_below(step.batch, slot, length))
    if isinstance(step, act.Write):
        return act.Write(_below(step.batch, slot, length))
    return step


def _below(
    batch: tuple[tuple[int, int] | None, ...], slot: int, length: int
) -> tuple[tuple[int, int] | None, ...]:
    return tuple(entry for entry in batch if entry is None or entry[0] != slot or entry[1] < length)
