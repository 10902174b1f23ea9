"""Rung sharing: generators of clones, and the outcomes that fuzzing must reach."""

from collections.abc import Iterator
from typing import Final

from attrs import evolve

from conformance.history import Step
from conformance.protocol import Action, Result
from conformance.rungs.pages import SLOT_REASONS, appended_page, place
from conformance.rungs.record import LAZY, SEVERAL_CELLS, SEVERAL_SLOTS, ActionKit, RungKit
from conformance.rungs.shared_generators import (
    Digits,
    free_slots,
    has_settled,
    one,
    when,
    wild_slot,
)
from spec.machines import scheduling
from spec.machines.actions import Allocate, Assign, Clone, Free, Reserve, Round, Write
from spec.machines.pages import copying, reserved_slot
from spec.rung import Machine
from spec.state import State
from spec.table import by_slot
from spec.vocabulary import Params, Reason


def clone(state: State, drawn: int) -> Clone:
    """A clone of a slot, mostly of one that can be cloned, into any free slot or a given one."""
    digits = Digits(drawn)
    child = None if digits.below(2) == 0 else wild_slot(state, digits, free_slots(state))
    live = [slot for slot in state.live if state.details[slot]]
    settled = [slot for slot in live if getattr(state.sequences[slot], "settled", False)]
    return Clone(wild_slot(state, digits, settled or live), child, 1 + digits.below(5))


def _child(_machine: Machine, before: State, action: Clone, _after: State) -> tuple[Result, ...]:
    return (reserved_slot(before, action.child),)


def _named(state: State, action: Clone) -> Clone:
    if None not in state.sequences:
        return action
    return evolve(action, child=reserved_slot(state, action.child))


def _simpler(action: Clone) -> Iterator[Step]:
    if action.child is not None:
        yield evolve(action, child=None)


def _corners(before: State, action: Clone, _after: State) -> Iterator[str]:
    sequence = before.sequences[action.parent]
    assert sequence is not None
    yield clone_corner(sequence.written, before.geometry.page_size)


def clone_corner(written: int, page_size: int) -> str:
    """The corner state of a clone of a sequence with so many written cells."""
    return "clone " + place(written, page_size)


def _always(before: State, action: Action, _after: State) -> Iterator[str]:
    """The lazy copies of an action that appends in the pages of several slots."""
    if before.capacity.copy == "eager":
        return
    slots: list[int] = []
    if isinstance(action, Allocate):
        slots = list(by_slot(action.batch))
    elif isinstance(action, Round):
        slots = sorted({queued.slot for queued in scheduling.packed(before)})
    copies = copying(before, slots)
    if copies:
        yield LAZY_COPY
    left = {appended_page(before, slot) for slot in copies}
    if any(appended_page(before, slot) in left for slot in slots if slot not in copies):
        yield LAZY_KEPT


SHARED: Final = "page shared"
LAZY_COPY: Final = "append in a lazily shared page"
LAZY_KEPT: Final = "the last owner keeps a lazily shared page"
_FILLS: Final = "Write|Prefill"
KIT: Final = RungKit(
    rung="sharing",
    actions={
        Clone: ActionKit(
            refusable=(
                *SLOT_REASONS,
                Reason.SLOT_USED,
                Reason.NO_FREE_SLOT,
                Reason.UNWRITTEN,
                Reason.CHOICE_TAKEN,
                Reason.OUT_OF_PAGES,
            ),
            corners=_corners,
            named=_named,
            simpler=_simpler,
            results=_child,
        )
    },
    corners={
        "clone at a page boundary": ("Clone", _FILLS),
        "clone inside a page": ("Clone", _FILLS, SEVERAL_CELLS),
        SHARED: ("Clone|Prefill", _FILLS),
        LAZY_COPY: ("Clone|Prefill", _FILLS, "Allocate|Round", LAZY, SEVERAL_CELLS),
        LAZY_KEPT: (
            "Clone|Prefill",
            _FILLS,
            "Allocate|Round",
            LAZY,
            SEVERAL_CELLS,
            f"{SEVERAL_SLOTS}|Round",
        ),
    },
    always=_always,
    rules={
        "lifecycle": {
            "clone": when(has_settled, one(clone), "advance"),
            "clone_again": when(has_settled, one(clone), "advance"),
        },
        "scheduling": {"clone": when(has_settled, one(clone), "prefill")},
    },
    warmup=(
        Reserve(),
        Assign(0, (1,), Params(max_new=1), 1),
        Allocate(((0, 0),)),
        Write(((0, 0),)),
        Clone(0, 0, 1),
        Free(0),
    ),
)
