"""Rung rollback: generators of proposals, commits and truncations, and the outcomes to reach."""

from collections.abc import Iterator
from itertools import permutations
from typing import Final

from attrs import evolve

from conformance.history import Step
from conformance.rungs.record import SEVERAL_CELLS, ActionKit, Move, RungKit, Session
from conformance.rungs.scheduling import make_room
from conformance.rungs.shared_generators import (
    ALPHABET,
    Digits,
    allocated,
    first_queued,
    has_used,
    one,
    token_of,
    used_slots,
    when,
    wild_slot,
)
from conformance.rungs.shared_moves import allocating, fixed, past_committed, writing
from spec import pool
from spec.machines.actions import (
    Action,
    Allocate,
    Assign,
    Clone,
    Commit,
    Enqueue,
    Free,
    FreeFinished,
    Pack,
    Prefill,
    Propose,
    Purge,
    Reserve,
    Reset,
    Round,
    TakeOutputs,
    Truncate,
    Write,
)
from spec.machines.pages import reserved_slot, used
from spec.state import State
from spec.vocabulary import Geometry, Limits, Params, Request

MOST_AT_ONCE: Final = 7
"""The most steps that the rule `verify` takes.

It takes several in a row because steps of other rules in between would often end the proposal.
"""


def propose(session: Session, drawn: int) -> Propose:
    """A few draft tokens for a slot whose allocated cells are all written; rarely for any other.

    Mostly no more than the row and the queue have room for.
    """
    digits = Digits(drawn)
    if not digits.rarely(4):
        _begin_one_with_room(session, digits)
    state = session.state
    live = [slot for slot in state.live if state.details[slot]]
    ready = [slot for slot in live if getattr(state.sequences[slot], "settled", False)]
    roomy = [slot for slot in ready if _room(state, slot) > 0]
    size = state.geometry.page_size
    count, too_many = digits.one_of((1, 2, size, size + 1, 3)), digits.rarely(8)
    tokens = tuple(token_of(digits) for _ in range(count))
    slot = wild_slot(state, digits, roomy or ready or live)
    if not too_many and slot in live:
        tokens = tokens[: max(1, _room(state, slot))]
    return Propose(slot, tokens)


def _begin_one_with_room(session: Session, digits: Digits) -> None:
    """Begin a short prompt, in the place of another one if need be, unless drafts have room."""
    state, sizes = session.state, session.state.geometry
    live = [slot for slot in state.live if state.details[slot]]
    if any(_room(state, slot) > 0 for slot in live):
        return
    prompt = (digits.below(ALPHABET),) * (1 + digits.below(min(sizes.page_size, sizes.max_len - 1)))
    params = Params(max_new=max(1, sizes.max_len - len(prompt)))
    begin = Prefill((Request(id=session.next_id(), prompt=prompt, params=params),))
    make_room(session, begin, digits)
    session.take(begin)


def _room(state: State, slot: int) -> int:
    """How many drafts of a live slot its row, its request and the queue have room for."""
    detail, sizes = state.details[slot], state.geometry
    most = sizes.max_len
    if detail is not None:
        most = min(most, detail.prompt_len + detail.params.max_new - 1)  # a last token is drawn
    known = len(used(state, slot).tokens) + len(state.proposed[slot])
    return min(most - known, state.limits.queue - len(state.queue))


def verify(session: Session, drawn: int) -> Step:
    """The next steps of one proposal, or of a new one: pack, allocate, write, then commit or
    truncate.
    """
    digits = Digits(drawn)
    proposing = [slot for slot in used_slots(session.state) if session.state.proposed[slot]]
    if not proposing:
        if Propose not in session.actions:  # nothing is ever proposed
            odd, drawn = drawn % 2, drawn // 2
            return commit(session.state, drawn) if odd else truncate(session.state, drawn)
        first = session.rules["propose"](session, drawn)
        if not isinstance(first, Propose) or digits.below(4) == 3:
            return first
        session.take(first)
        proposing = [slot for slot in used_slots(session.state) if session.state.proposed[slot]]
        if not proposing:  # it was refused
            return first
    slot = digits.one_of(proposing)
    for _ in range(digits.below(MOST_AT_ONCE)):
        if not session.state.proposed[slot]:
            break
        session.take(_next(session.state, slot, digits))
    return _next(session.state, slot, digits)


def fill_a_page(session: Session, digits: Digits) -> int | None:
    """Drafts of a slot, written up to the end of a page: the slot; None if none has room for them.

    Some steps may be refused, and the drafts are then shorter.
    """
    _begin_one_with_room(session, digits)
    state, size = session.state, session.state.geometry.page_size
    lacks = {
        slot: size - (len(used(state, slot).tokens) + len(state.proposed[slot])) % size
        for slot in state.live
        if state.details[slot] and used(state, slot).settled
    }
    roomy = [slot for slot, count in lacks.items() if count <= _room(state, slot)]
    if not roomy:
        return None
    slot = digits.one_of(roomy)
    session.take(Propose(slot, tuple(token_of(digits) for _ in range(lacks[slot]))))
    for _ in range(MOST_AT_ONCE):
        state, sequence = session.state, used(session.state, slot)
        known = len(sequence.tokens) + len(state.proposed[slot])
        if first_queued(state, slot, known) < known:
            session.take(Pack())
        elif sequence.allocated < known:
            session.take(Allocate(_positions(slot, sequence.allocated, known)))
        elif sequence.written < known:
            session.take(Write(_positions(slot, sequence.written, known)))
        else:
            break
    return slot


def _next(state: State, slot: int, digits: Digits) -> Action:
    sequence = state.sequences[slot]
    assert sequence is not None
    known = len(sequence.tokens) + len(state.proposed[slot])
    if digits.rarely(8):
        return Truncate(slot, state.committed[slot] + _cells_kept(state, slot, digits))
    queued = first_queued(state, slot, known)
    if queued < known and not digits.rarely(3):  # a round may be narrower than a proposal
        return Pack()
    if sequence.allocated < known and not digits.rarely(6):
        return Allocate(_positions(slot, sequence.allocated, known))
    ready = min(sequence.allocated, queued)
    if sequence.written < ready and not digits.rarely(6):
        return Write(_positions(slot, sequence.written, ready))
    if sequence.written > state.committed[slot] and not digits.rarely(4):
        span = sequence.written - state.committed[slot]
        return Commit(slot, state.committed[slot] + 1 + digits.below(span))
    return Truncate(slot, state.committed[slot] + _cells_kept(state, slot, digits))


def _positions(slot: int, start: int, stop: int) -> tuple[tuple[int, int], ...]:
    return tuple((slot, position) for position in range(start, stop))


def _cells_kept(state: State, slot: int, digits: Digits) -> int:
    """How many uncommitted cells to keep: none, some, all, or up to a page boundary."""
    cells, size = allocated(state, slot) - state.committed[slot], state.geometry.page_size
    boundary = min(cells, -state.committed[slot] % size)
    return digits.one_of((0, boundary, cells, digits.below(cells + 1)))


def commit(state: State, drawn: int) -> Commit:
    """Commit at the written length, one cell below it, or one past it."""
    digits = Digits(drawn)
    slot = wild_slot(state, digits, used_slots(state))
    sequence = state.sequences[slot] if 0 <= slot < len(state.sequences) else None
    return Commit(slot, max(0, (sequence.written if sequence else 1) + 1 - digits.below(3)))


def truncate(state: State, drawn: int) -> Truncate:
    """Truncate at the committed length, one cell below it, or one or two past it."""
    digits = Digits(drawn)
    slot = wild_slot(state, digits, used_slots(state))
    there = 0 <= slot < len(state.sequences) and state.sequences[slot] is not None
    return Truncate(slot, max(0, (state.committed[slot] if there else 1) - 1 + digits.below(4)))


def cut_again(session: Session, drawn: int) -> Step:
    """A truncation; often of a cell that a slot which shares pages is given just before."""
    digits, state = Digits(drawn), session.state
    sharing = [
        slot
        for slot in used_slots(state)
        if slot not in state.finished
        and allocated(state, slot) < state.geometry.max_len
        and any(pool.is_shared(state.counts, page) for page in used(state, slot).pages)
    ]
    if not sharing or Allocate not in session.actions or digits.below(2):
        return truncate(state, drawn // 2)
    slot = digits.one_of(sharing)
    session.take(Allocate(((slot, allocated(state, slot)),)))
    return Truncate(slot, state.committed[slot])


def _simpler_propose(action: Propose) -> Iterator[Step]:
    if len(action.tokens) > 1:
        yield evolve(action, tokens=action.tokens[:-1])


def _truncate_corners(before: State, action: Truncate, _after: State) -> Iterator[str]:
    sequence, size = before.sequences[action.slot], before.geometry.page_size
    if sequence is None:
        return
    if sequence.written > action.length:
        boundary = action.length % size == 0
        yield "truncate at a page boundary" if boundary else "truncate inside a page"
    shares = any(pool.is_shared(before.counts, page) for page in sequence.pages)
    if shares and action.length < sequence.allocated:
        yield "truncate a slot that shares pages"
    kept = max(action.length, len(sequence.tokens))
    if any(one.slot == action.slot and one.position >= kept for one in before.queue):
        yield "truncate with a proposed token in the queue"


def _commit_corners(before: State, action: Commit, _after: State) -> Iterator[str]:
    sequence = before.sequences[action.slot]
    if sequence is not None and action.length < sequence.written:
        yield "commit part of what is written"


def _always(before: State, action: Action, _after: State) -> Iterator[str]:
    if not isinstance(action, Free) or not any(before.proposed):
        return
    if before.proposed[reserved_slot(before, action.slot)]:
        yield "free a slot with proposed tokens"


def alphabet(geometry: Geometry, _limits: Limits) -> Iterator[Move]:
    """Two requests, drafts for either, and every length at which a draft may be cut or committed.

    Lengths count from the committed length, so that a few of them reach every page boundary.
    """
    for number, prompt in ((1, (1,)), (2, (2, 1))):
        params = Params(max_new=max(1, geometry.max_len - len(prompt)))
        request = Request(id=number, prompt=prompt, params=params)
        yield fixed(Prefill((request,)), f"prefill({number})")
    yield fixed(Round(), "round")
    yield fixed(Pack(), "pack")
    yield fixed(FreeFinished(), "free_finished")
    yield fixed(TakeOutputs(), "take_outputs")
    yield fixed(Reserve(geometry.slots - 1), f"reserve({geometry.slots - 1})")
    for slot in range(geometry.slots + 1):
        yield fixed(Propose(slot, (4,)), f"propose({slot}, 1)")
        yield fixed(Propose(slot, (4, 3)), f"propose({slot}, 2)")
        yield fixed(Purge(slot), f"purge({slot})")
        yield fixed(Free(slot), f"free({slot})")
        for more in range(-1, geometry.page_size + 2):
            yield past_committed(Commit, slot, more)
            yield past_committed(Truncate, slot, more)
    for slot in range(geometry.slots):
        yield fixed(Enqueue(slot, 1), f"enqueue({slot})")
        yield allocating(f"allocate({slot}, 1)", (slot, 0))
        yield writing(f"write({slot}, 1)", (slot, 0))
    for parent, child in permutations(range(geometry.slots), 2):
        yield fixed(Clone(parent, child, 1), f"clone({parent}, {child})")
    yield fixed(Reset(), "reset(logical)")


_BATCHES: Final = ("Propose", "Allocate", "Write")
KIT: Final = RungKit(
    rung="rollback",
    actions={
        Propose: ActionKit(
            simpler=_simpler_propose,
        ),
        Commit: ActionKit(corners=_commit_corners),
        Truncate: ActionKit(
            corners=_truncate_corners,
            state_clause="RB",
        ),
    },
    corners={
        "truncate at a page boundary": ("Truncate", *_BATCHES),
        "truncate inside a page": ("Truncate", *_BATCHES, SEVERAL_CELLS),
        "truncate a slot that shares pages": ("Truncate", "Clone", *_BATCHES),
        "truncate with a proposed token in the queue": ("Truncate", "Propose", "Enqueue"),
        "commit part of what is written": ("Commit", *_BATCHES),
        "free a slot with proposed tokens": ("Free", "Propose"),
    },
    always=_always,
    rules={
        "lifecycle": {
            "propose": when(has_used, propose, "advance"),
            "verify": when(has_used, verify, "advance"),
            "commit_alone": when(has_used, one(commit), "verify"),
            "truncate_alone": when(has_used, cut_again, "verify"),
        },
        "scheduling": {
            "propose": when(has_used, propose, "prefill"),
            "verify": when(has_used, verify, "prefill"),
            "commit": when(has_used, one(commit), "verify"),
            "truncate": when(has_used, cut_again, "verify"),
        },
    },
    replaced={"commit_alone": "scheduling", "truncate_alone": "scheduling"},
    warmup=(
        Reserve(),
        Assign(0, (1,), Params(max_new=3), 1),
        Propose(0, (1,)),
        Pack(),
        Allocate(((0, 0),)),
        Write(((0, 0),)),
        Commit(0, 1),
        Truncate(0, 1),
        Free(0),
    ),
    alphabet=alphabet,
    explored=("scheduling",),
    driven={"RB": (Truncate,)},
)
