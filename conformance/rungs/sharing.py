"""Rung sharing: generators of clones, and the outcomes that fuzzing must reach."""

from collections.abc import Collection, Iterator
from typing import Final

from attrs import evolve

from conformance.history import Step
from conformance.protocol import Action, Result
from conformance.rungs.pages import (
    SEVERAL_LAST,
    SEVERAL_SHORT,
    appended,
    appended_page,
    at_edge,
    lazy_owners,
    needs_page,
    place,
)
from conformance.rungs.record import (
    LAZY,
    SEVERAL_CELLS,
    SEVERAL_SLOTS,
    SHARED_FULL,
    THREE_OWNERS,
    ActionKit,
    RungKit,
    Session,
)
from conformance.rungs.shared_generators import (
    ALPHABET,
    LARGEST,
    Digits,
    allocated,
    colliding_choices,
    free_slots,
    has_settled,
    taken_name,
    used_slots,
    when,
    wild_slot,
)
from conformance.rungs.simpler import smaller
from spec.machines.actions import Allocate, Assign, Clone, Free, Reserve, Write
from spec.machines.pages import copying, reserved_slot
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import Params


def clone(state: State, drawn: int) -> Clone:
    """A clone of a slot, mostly of one that can be cloned, into any free slot or a given one.

    Often of a slot that shares a page lazily, so that the page has three owners.
    """
    digits = Digits(drawn)
    child = None if digits.below(2) == 0 else wild_slot(state, digits, free_slots(state))
    live = [slot for slot in state.live if state.details[slot]]
    settled = [slot for slot in live if getattr(state.sequences[slot], "settled", False)]
    owners = [slot for slot in lazy_owners(state) if slot in settled]
    parents = owners if owners and digits.below(2) else settled or live
    parent = wild_slot(state, digits, parents)
    detail = state.details[parent] if 0 <= parent < len(state.details) else None
    colliding = colliding_choices(state, digits, detail.request) if detail else ()
    if colliding and not digits.rarely(3):
        return Clone(parent, child, digits.one_of(colliding))
    taken = taken_name(state, digits, detail.request) if detail and digits.rarely(6) else None
    if taken:
        return Clone(parent, child, taken[1])
    choice = digits.one_of((0, LARGEST)) if digits.rarely(12) else 1 + digits.below(5)
    return Clone(parent, child, choice)


def clone_everywhere(session: Session, digits: Digits) -> Step:
    """Clones of one sequence into every free slot, from the highest or the lowest, and one more."""
    state = session.state
    parents = [slot for slot in state.live if getattr(state.sequences[slot], "settled", False)]
    if not parents:
        return clone(state, digits.below(64))
    parent, free, first = digits.one_of(parents), free_slots(state), 8 + digits.below(64)
    if digits.below(2):
        free.reverse()
    for choice, child in enumerate(free, start=first):
        session.take(Clone(parent, child, choice))
    return Clone(parent, None, first + len(free))


def clone_at_edge(session: Session, drawn: int) -> Step:
    """A clone; often where the pool has exactly the page that it takes, or none."""
    digits = Digits(drawn)
    if digits.rarely(8):
        return clone_everywhere(session, digits)
    partial = [slot for slot in session.state.live if needs_page(session.state, slot)]
    if not partial or digits.below(2):
        return clone(session.state, drawn // 16)
    last = Clone(digits.one_of(partial), None, 1 + digits.below(5))
    return at_edge(session, digits.below(64), last, short=digits.below(3) > 0)


def append_together(session: Session, drawn: int) -> Step:
    """With lazy copies often a batch of all owners of one page, at the edge of the pool.

    If no partial page is shared, a prompt is written and cloned first, once or twice. Otherwise a
    clone.
    """
    digits = Digits(drawn)
    lazily = session.state.capacity.copy == "lazy" and session.state.geometry.page_size > 1
    if not lazily or digits.below(2):
        return clone(session.state, drawn)
    for step in _shared_prompt(session, digits):
        session.take(step)
    owners = lazy_owners(session.state)
    if not owners:
        return clone(session.state, drawn)
    batch = tuple((slot, allocated(session.state, slot)) for slot in owners)
    return at_edge(session, digits.below(64), Allocate(batch), short=digits.below(3) > 0)


def _shared_prompt(session: Session, digits: Digits) -> Iterator[Step]:
    """Steps that write a prompt and clone it; none if a partial page is shared lazily.

    The prompt ends in the last page of its row, so that the pool can be filled beside few rows.
    """
    sizes, clones = session.state.geometry, 1 + (digits.below(3) > 0)
    if lazy_owners(session.state):
        return
    for slot in used_slots(session.state)[digits.below(2) :]:
        if len(session.state.unused_slots) <= clones:
            yield Free(slot)
    if len(session.state.unused_slots) <= clones:
        return
    parent, serial = free_slots(session.state)[0], session.next_id()
    length = sizes.max_len - 1 - digits.below(sizes.page_size - 1)
    cells = tuple((parent, position) for position in range(length))
    yield Reserve(parent)
    yield Assign(parent, (digits.below(ALPHABET),) * length, Params(max_new=1), serial)
    yield Allocate(cells)
    yield Write(cells)
    for choice in range(1, 1 + clones):
        yield Clone(parent, None, choice)


def _child(_machine: Machine, before: State, action: Clone, _after: State) -> tuple[Result, ...]:
    return (reserved_slot(before, action.child),)


def _named(state: State, action: Clone) -> Clone:
    if not state.unused_slots:
        return action
    return evolve(action, child=reserved_slot(state, action.child))


def _simpler(action: Clone) -> Iterator[Step]:
    if action.child is not None:
        yield evolve(action, child=None)
    for choice in smaller(action.choice):
        yield evolve(action, choice=choice)


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
    ends = appended(before, action)
    copies = copying(before, ends)
    if not copies:
        return
    yield LAZY_COPY
    if len(copies) > 1:
        yield LAZY_COPIES
    left = {appended_page(before, slot) for slot in copies}
    if any(appended_page(before, slot) in left for slot in ends if slot not in copies):
        yield LAZY_KEPT


def edge_corners(wanted: Collection[int], copies: int, free: int) -> list[str]:
    """The corner states of a batch that takes the last free pages, or is one page short.

    wanted: the pages that each slot takes, copies included. copies: how many slots copy a page.
    free: the free pages.
    """
    pages, several = sum(wanted), sum(map(bool, wanted)) > 1
    if pages == free:
        return [SEVERAL_LAST] * several + [LAZY_LAST] * (0 < copies == pages)
    if pages == free + 1:
        return [SEVERAL_SHORT] * several + [LAZY_SHORT] * (copies > 0)
    return []


SHARED: Final = "page shared"
LAZY_COPY: Final = "append in a lazily shared page"
LAZY_COPIES: Final = "several lazy copies in one batch"
LAZY_LAST: Final = "lazy copies take the last free pages"
LAZY_SHORT: Final = "one page short of a lazy copy"
LAZY_KEPT: Final = "the last owner keeps a lazily shared page"
_FILLS: Final = "Write|Prefill"
KIT: Final = RungKit(
    rung="sharing",
    actions={
        Clone: ActionKit(
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
        LAZY_COPIES: (
            "Clone|Prefill",
            _FILLS,
            "Allocate|Round",
            LAZY,
            f"{SEVERAL_SLOTS}|Round",
            THREE_OWNERS,
        ),
        LAZY_LAST: ("Clone", _FILLS, "Allocate", LAZY, SHARED_FULL),
        LAZY_SHORT: ("Clone", _FILLS, "Allocate: OUT_OF_PAGES", LAZY, SHARED_FULL),
    },
    always=_always,
    rules={
        "lifecycle": {
            "clone": when(has_settled, clone_at_edge, "advance"),
            "clone_again": when(has_settled, append_together, "advance"),
        },
        "scheduling": {"clone": when(has_settled, clone_at_edge, "prefill")},
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
