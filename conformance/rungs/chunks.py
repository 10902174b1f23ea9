"""Rung chunks: generators of rounds that read prompts in parts, and the outcomes to reach."""

from collections.abc import Iterator
from typing import Final

from attrs import evolve

from conformance.history import Step
from conformance.rungs.pages import at_edge
from conformance.rungs.record import (
    SEVERAL_CELLS,
    TWO_SLOTS,
    WIDE_ROUNDS,
    ActionKit,
    Move,
    RungKit,
    Session,
)
from conformance.rungs.scheduling import make_room
from conformance.rungs.shared_generators import (
    ALPHABET,
    Digits,
    free_slots,
    used_slots,
    wild_slot,
)
from conformance.rungs.shared_moves import allocating, fixed
from spec import index, pool
from spec.machines import naive
from spec.machines.actions import (
    Allocate,
    Assign,
    Enqueue,
    Free,
    FreeFinished,
    Hit,
    MixedRound,
    Pack,
    Propose,
    Purge,
    Reserve,
    Round,
    TakeOutputs,
)
from spec.machines.chunks import batch_of
from spec.machines.pages import used
from spec.machines.prefix import found
from spec.machines.scheduling import packed
from spec.state import State
from spec.vocabulary import FinishReason, Geometry, Limits, Params

Chunk = tuple[int, int]


def mixed_round(session: Session, drawn: int) -> Step:
    """A round with chunks of one or two prompts, of which one is often begun before.

    Or with queued tokens alone.

    A chunk is all that is left, as much as the round has room for, up to the end of a page, or a
    token; rarely a token too many. Sometimes the pool has exactly the pages that the round takes,
    or one less.
    """
    digits = Digits(drawn)
    if digits.rarely(5):
        return _any_mixed(session.state, drawn // 5)
    begins = digits.below(3)
    if begins == 0 or (begins == 1 and not unread(session.state)):
        begin(session, digits)
    chosen = chunks_of(session.state, digits)
    if not chosen and not session.state.queue:
        return _any_mixed(session.state, drawn // 5)
    action = MixedRound(chosen)
    if digits.rarely(6):
        return at_edge(session, digits.below(64), action, short=digits.below(3) > 0)
    return action


def at_fault(session: Session, drawn: int) -> Step:
    """A round that is refused for a slot of a chunk alone, whose queued tokens do not leave.

    The slot has drafts that are not queued, cells that are not written, or a token far behind in
    the queue.
    """
    digits = Digits(drawn)
    begin(session, digits)
    slots, width = unread(session.state), session.state.limits.round_tokens
    if not slots:
        return mixed_round(session, drawn // 64)
    slot, kind = digits.one_of(slots), digits.below(3)
    if kind == 0:
        session.take(Propose(slot, (digits.below(ALPHABET),)))
        session.take(Purge(slot))
    elif kind == 1:
        session.take(Allocate(((slot, used(session.state, slot).allocated),)))
    else:
        others = [one for one in session.state.live if one != slot] or [slot]
        for _ in range(width - len(session.state.queue)):
            session.take(Enqueue(digits.one_of(others), digits.below(ALPHABET)))
        session.take(Enqueue(slot, digits.below(ALPHABET)))
    return MixedRound(((slot, 1),))


def read_in_parts(session: Session, drawn: int) -> Step:
    """Rounds that read a new prompt, and others that are begun, in up to five chunks."""
    digits = Digits(drawn)
    begin(session, digits)
    for _ in range(1 + digits.below(4)):
        chosen = chunks_of(session.state, digits)
        if chosen:
            session.take(MixedRound(chosen))
    chosen = chunks_of(session.state, digits)
    return MixedRound(chosen) if chosen else mixed_round(session, drawn // 64)


def mixed_after_hit(session: Session, drawn: int) -> Step:
    """A round with the first chunk behind a hit of a page.

    It is all that is left of the prompt or that the round has room for, or a token more, which is
    refused.
    """
    digits = Digits(drawn)
    option, longest = digits.below(4), session.state.geometry.max_len - 1
    entries = [entry for entry in session.state.indexed if entry is not None]
    if Hit not in session.actions or not entries:
        otherwise = session.rules.get("publish", mixed_round)
        return otherwise(session, drawn // 4)
    entry, size = digits.one_of(entries), session.state.geometry.page_size
    more = (digits.below(ALPHABET),) * (1 + digits.below(2 * session.state.limits.round_tokens))
    prompt = (*entry.chain, *more)[:longest]
    make_room(session, Reserve(), digits)
    if not session.state.unused_slots or len(prompt) <= size:
        return mixed_round(session, drawn // 4)
    slot, params = free_slots(session.state)[0], Params(max_new=1 + longest - len(prompt))
    session.take(Reserve(slot, entry.context))
    session.take(Assign(slot, prompt, params, session.next_id()))
    session.take(Hit(slot, size))
    if slot not in unread(session.state):
        return mixed_round(session, drawn // 4)
    sequence, state = used(session.state, slot), session.state
    left = len(sequence.tokens) - sequence.allocated
    room = state.limits.round_tokens - len(packed(state))
    count = (min(left, room), room + 1, left + 1, room + 1)[option]
    return MixedRound(((slot, max(1, count)),))


def unread(state: State) -> list[int]:
    """The slots with known tokens that have no cells and are not queued."""
    queued = {one.slot for one in state.queue}
    return [
        slot
        for slot in state.live
        if state.details[slot] is not None
        and slot not in queued
        and not state.proposed[slot]
        and used(state, slot).settled
        and used(state, slot).allocated < len(used(state, slot).tokens)
    ]


def chunks_of(state: State, digits: Digits) -> tuple[Chunk, ...]:
    """Chunks of one or two slots, as far as the round has room for them."""
    room, chunks = state.limits.round_tokens - len(packed(state)), list[Chunk]()
    slots = unread(state)
    while slots and room > 0 and len(chunks) < 1 + digits.below(2):
        slot = slots.pop(digits.below(len(slots)))
        count = _count(state, slot, room, digits)
        chunks.append((slot, count))
        room -= count
    return tuple(chunks)


def _count(state: State, slot: int, room: int, digits: Digits) -> int:
    sequence, size = used(state, slot), state.geometry.page_size
    left = len(sequence.tokens) - sequence.allocated
    page = size - sequence.allocated % size
    options = (min(left, room), min(page, left, room), min(page + 1, left, room), 1)
    return digits.one_of(options) + digits.rarely(12)


def begin(session: Session, digits: Digits) -> None:
    """A prompt, often of more tokens than a round has room for; with pages of the index, if it can.

    Most of them go on for a few tokens; some end with the first, also by a stop sequence.
    """
    longest = session.state.geometry.max_len - 1
    length = min(longest, 1 + digits.below(2 * session.state.limits.round_tokens + 1))
    prompt = (digits.below(ALPHABET),) * length
    params = Params(
        max_new=min(longest + 1 - length, digits.one_of((1, 3, 2))),
        temperature=digits.one_of((0.0, 1.0)),
        seed=1,
    )
    if digits.rarely(4):
        drawn = naive.generate(
            prompt, evolve(params, max_new=1), window=session.state.geometry.window
        )
        params = evolve(params, stops=(drawn[0],))
    make_room(session, Reserve(), digits)
    if not session.state.unused_slots:
        return
    slot = free_slots(session.state)[0]
    session.take(Reserve(slot))
    session.take(Assign(slot, prompt, params, session.next_id()))
    held = session.state.sequences[slot]
    if held is None or not held.tokens or Hit not in session.actions:
        return
    size = session.state.geometry.page_size
    whole = min(len(found(session.state, slot, length // size)), (length - 1) // size)
    if whole:
        session.take(Hit(slot, whole * size))


def _any_mixed(state: State, drawn: int) -> MixedRound:
    """Any slot, with a token or two; sometimes none, the same twice, or a chunk of no token."""
    digits = Digits(drawn)
    slot = wild_slot(state, digits, unread(state) or used_slots(state))
    chunk, wide = (slot, 1 + digits.below(2)), (slot, state.limits.round_tokens + 1)
    return MixedRound(digits.one_of(((chunk,), (), (chunk, chunk), ((slot, 0),), (wide,))))


def _simpler(action: MixedRound) -> Iterator[Step]:
    for at, (slot, count) in enumerate(action.chunks):
        yield evolve(action, chunks=action.chunks[:at] + action.chunks[at + 1 :])
        if count > 1:
            fewer = (*action.chunks[:at], (slot, count - 1), *action.chunks[at + 1 :])
            yield evolve(action, chunks=fewer)


def _corners(before: State, action: MixedRound, after: State) -> Iterator[str]:
    size, tokens = before.geometry.page_size, len(batch_of(before, action))
    for slot, count in action.chunks:
        sequence = used(before, slot)
        end = sequence.allocated + count
        if end == len(sequence.tokens):
            reason = _ended(before, slot, after)
            yield GOES_ON if reason is None else ENDS
            yield from [STOPS] * (reason is FinishReason.STOP)
        else:
            yield INSIDE if end % size else BOUNDARY
        if any(index.has(before.indexed, page) for page in sequence.pages):
            yield OF_INDEX
        if any(pool.is_shared(before.counts, page) for page in sequence.pages):
            yield OF_OTHERS
    if action.chunks and before.queue:
        yield BESIDE
    if len(action.chunks) > 1:
        yield SEVERAL
    if action.chunks and tokens == before.limits.round_tokens:
        yield FULL


def _ended(before: State, slot: int, after: State) -> FinishReason | None:
    """Why the sequence of a slot has ended; None if it has not."""
    detail = before.details[slot]
    assert detail is not None
    name = (detail.request, detail.choice)
    ended = (one.reason for one in after.outputs if (one.request, one.choice) == name)
    return next(ended, None)


def alphabet(geometry: Geometry, _limits: Limits) -> Iterator[Move]:
    """Chunks of one token, two or none of each slot, of two slots at once, and of no slot.

    A prompt of the longest length ends with the token that it draws; a short one goes on.
    """
    most = geometry.max_len - 1
    for slot in range(geometry.slots):
        yield fixed(Reserve(slot), f"reserve({slot})")
        for length, new, name in ((most, 1, slot), (1, 2, slot + geometry.slots)):
            prompt = Assign(slot, (1,) * length, Params(max_new=new), name)
            yield fixed(prompt, f"assign({slot}, {length})")
        yield allocating(f"allocate({slot}, 1)", (slot, 0))
        yield fixed(Enqueue(slot, 1), f"enqueue({slot})")
    for slot in range(geometry.slots + 1):
        for count in (1, 2):
            yield fixed(MixedRound(((slot, count),)), f"mixed_round({slot}: {count})")
        yield fixed(Free(slot), f"free({slot})")
    yield fixed(MixedRound(((0, 1), (1, 1))), "mixed_round(0: 1, 1: 1)")
    yield fixed(MixedRound(((0, 1), (0, 1))), "mixed_round(0: 1, 0: 1)")
    yield fixed(MixedRound(((0, 0),)), "mixed_round(0: 0)")
    yield fixed(MixedRound(()), "mixed_round()")
    yield fixed(Round(), "round")
    yield fixed(Pack(), "pack")
    yield fixed(FreeFinished(), "free_finished")
    yield fixed(TakeOutputs(), "take_outputs")


INSIDE: Final = "chunk that ends inside a page"
BOUNDARY: Final = "chunk that ends at a page boundary"
GOES_ON: Final = "last chunk of a prompt that goes on"
ENDS: Final = "chunk after which its sequence has finished"
STOPS: Final = "chunk whose token completes a stop sequence"
FULL: Final = "chunks that fill a round"
OF_INDEX: Final = "chunk behind a page of the index"
OF_OTHERS: Final = "chunk behind a page that others name"
BESIDE: Final = "chunk beside queued tokens"
SEVERAL: Final = "chunks of several prompts"
_DONE: Final = "MixedRound: done"
KIT: Final = RungKit(
    rung="chunks",
    actions={MixedRound: ActionKit(corners=_corners, simpler=_simpler)},
    corners={
        INSIDE: (_DONE, "Assign", SEVERAL_CELLS),
        BOUNDARY: (_DONE, "Assign"),
        GOES_ON: (_DONE, "Assign"),
        ENDS: (_DONE, "Assign"),
        STOPS: (_DONE, "Assign"),
        FULL: (_DONE, "Assign"),
        OF_INDEX: (_DONE, "Hit|Publish", "Assign"),
        OF_OTHERS: (_DONE, "Hit|Share|Clone", "Assign"),
        BESIDE: (_DONE, "Assign", "Enqueue|Prefill|MixedRound", TWO_SLOTS, WIDE_ROUNDS),
        SEVERAL: (_DONE, "Assign", TWO_SLOTS, WIDE_ROUNDS),
    },
    rules={
        "scheduling": {
            "mixed": mixed_round,
            "read_in_parts": read_in_parts,
            "mixed_after_hit": mixed_after_hit,
            "at_fault": at_fault,
        }
    },
    warmup=(MixedRound(()),),
    alphabet=alphabet,
    driven={},
)
