"""Rung preemption: generators of requests that give their slots back and go on later."""

from collections.abc import Iterator
from typing import Final

from attrs import evolve

from conformance.history import Step
from conformance.rungs.arrivals import serve_arrivals
from conformance.rungs.chunks import chunks_of, unread
from conformance.rungs.record import FULL_POOL, TWO_SLOTS, ActionKit, Move, RungKit, Session
from conformance.rungs.scheduling import make_room
from conformance.rungs.shared_generators import (
    ALPHABET,
    Digits,
    deliver_all,
    free_slots,
    name_of,
    used_slots,
    when,
    wild_slot,
)
from conformance.rungs.shared_moves import fixed
from spec import index, pool
from spec.machines import naive
from spec.machines.actions import (
    Action,
    Assign,
    Enqueue,
    FreeFinished,
    MixedRound,
    Preempt,
    Prefill,
    Purge,
    Replay,
    Reserve,
    Round,
    Share,
    TakeOutputs,
)
from spec.machines.lifecycle import detail_of
from spec.machines.pages import used
from spec.machines.preemption import slots_of_request
from spec.state import State
from spec.vocabulary import Geometry, Limits, Params, Request


def preempt(session: Session, drawn: int) -> Preempt:
    """A request with a choice that goes on, often beside a finished one that keeps its slot; rarely
    a request that has ended, or of which nothing is left, or the one with the smallest id.
    """
    digits, state = Digits(drawn), session.state
    if digits.rarely(8):
        return _first_of_all(session)
    live, kept = _live(state), {detail_of(state, slot).request for slot in state.finished}
    names = digits.one_of(([one for one in live if one in kept], live, sorted(kept)))
    if not (names or live) or digits.rarely(8):
        return Preempt(name_of(state, digits, session.next_id()))
    return Preempt(digits.one_of(names or live))


def _first_of_all(session: Session) -> Preempt:
    """The request 0, which begins before if there is a slot."""
    if session.state.unused_slots:
        slot = session.state.unused_slots[0]
        session.take(Reserve(slot))
        session.take(Assign(slot, (0,), Params(max_new=1), 0))
    return Preempt(0)


def replay(session: Session, drawn: int) -> Replay:
    """Tokens for a slot, mostly one that waits for chunks; sometimes as many as it may draw."""
    digits, state = Digits(drawn), session.state
    slot = wild_slot(state, digits, unread(state) or used_slots(state))
    held = state.details[slot] if 0 <= slot < state.geometry.slots else None
    most = held.params.max_new if held else state.geometry.max_len
    count = digits.one_of((1, 2, most - 1, most, state.geometry.max_len + 1))
    return Replay(slot, (digits.below(ALPHABET),) * max(1, count))


def preempt_and_go_on(session: Session, drawn: int) -> Step:
    """A request is preempted; its choices begin again in other slots and are read in chunks.

    The second of two choices with the same first page shares it, as before.
    """
    digits = Digits(drawn)
    deliver_all(session)
    if digits.rarely(4):
        _begin_two(session, digits)
    state, kept = session.state, {output.request for output in session.state.outputs}
    names = _live(state)
    if not names:
        return session.rules["read_in_parts"](session, drawn)
    request = digits.one_of([one for one in names if one in kept] or names)
    slots = slots_of_request(state, request)
    session.take(Preempt(request))
    if slots_of_request(session.state, request):  # the engine does not offer it
        return session.rules["read_in_parts"](session, drawn)
    begun = [_begin_again(session, state, slot) for slot in slots]
    for _ in range(1 + digits.below(3)):
        chosen = chunks_of(session.state, digits)
        if chosen:
            session.take(MixedRound(chosen))
    size = state.geometry.page_size
    if len(begun) > 1 and digits.below(2):
        session.take(Share(begun[0], begun[1], size))
    chosen = chunks_of(session.state, digits)
    return MixedRound(chosen) if chosen else replay(session, drawn)


def _begin_two(session: Session, digits: Digits) -> None:
    """A request of two choices, of which the second ends with its first token if the other goes on.

    A stop sequence is that token.
    """
    prompt, state = (digits.below(ALPHABET),), session.state
    most = state.geometry.max_len - len(prompt)
    warm = Params(max_new=max(1, min(4, most)), temperature=1.0, seed=1 + digits.below(ALPHABET))
    window = state.geometry.window
    first, _ = naive.generate(prompt, evolve(warm, max_new=1), 1, window=window)
    params = evolve(warm, stops=(first,))
    request = Request(id=session.next_id(), prompt=prompt, params=params, n_generations=2)
    begin = Prefill((request,))
    make_room(session, begin, digits)
    session.take(begin)


def _begin_again(session: Session, before: State, slot: int) -> int:
    """Give the sequence that a slot held a slot again, with the tokens that it had."""
    detail, tokens = detail_of(before, slot), used(before, slot).tokens
    context = before.contexts[slot] if before.contexts else 0
    again = free_slots(session.state)[0]
    prompt, drawn = tokens[: detail.prompt_len], tokens[detail.prompt_len :]
    session.take(Reserve(again, context))
    session.take(Assign(again, prompt, detail.params, detail.request, detail.choice))
    if drawn:
        session.take(Replay(again, drawn))
    return again


def _live(state: State) -> list[int]:
    """The requests with a choice that has not finished."""
    return sorted({detail.request for detail in state.details if detail and not detail.finished})


def _simpler(action: Replay) -> Iterator[Step]:
    if len(action.tokens) > 1:
        yield evolve(action, tokens=action.tokens[:-1])
    if any(action.tokens):
        yield evolve(action, tokens=(0,) * len(action.tokens))


def _preempt_corners(before: State, action: Preempt, _after: State) -> Iterator[str]:
    slots = slots_of_request(before, action.request)
    pages = [page for slot in slots for page in used(before, slot).pages]
    if pages and not pool.free_count(before.in_use):
        yield FROM_FULL
    if len(set(pages)) < len(pages):
        yield SHARED
    if any(index.has(before.indexed, page) for page in pages):
        yield OF_INDEX
    if any(one.request == action.request for one in before.outputs):
        yield BESIDE_FINISHED
    if any(queued.slot in slots for queued in before.queue):
        yield QUEUED
    if any(used(before, slot).allocated > 0 for slot in set(slots) & {*unread(before)}):
        yield PARTLY


def _always(before: State, action: Action, _after: State) -> Iterator[str]:
    match action:
        case Preempt(request) if request in {one.id for one in before.admitted}:
            yield ADMITTED
        case MixedRound(chunks):
            for slot, count in chunks:
                sequence, detail = used(before, slot), detail_of(before, slot)
                known = len(sequence.tokens)
                if known > detail.prompt_len and sequence.allocated + count == known:
                    yield REPLAYED


def alphabet(geometry: Geometry, _limits: Limits) -> Iterator[Move]:
    """A choice in each slot, of one request or two, read in chunks, preempted and replayed."""
    prompt = (1,) * min(2, geometry.max_len - 1)
    params = Params(max_new=max(1, geometry.max_len - len(prompt)))
    for slot in range(geometry.slots):
        yield fixed(Reserve(slot), f"reserve({slot})")
        yield fixed(Assign(slot, prompt, params, 1, slot), f"assign({slot})")
        for count in (1, 2):
            yield fixed(MixedRound(((slot, count),)), f"mixed_round({slot}: {count})")
        yield fixed(Enqueue(slot, 1), f"enqueue({slot})")
        yield fixed(Purge(slot), f"purge({slot})")
    for slot in range(geometry.slots + 1):
        for count in (1, 2):
            yield fixed(Replay(slot, (2,) * count), f"replay({slot}, {count})")
    last = geometry.slots - 1
    yield fixed(Assign(last, prompt, params, 2, 0), f"assign({last}, 2)")
    for request in (1, 2, 3):
        yield fixed(Preempt(request), f"preempt({request})")
    yield fixed(Round(), "round")
    yield fixed(FreeFinished(), "free_finished")
    yield fixed(TakeOutputs(), "take_outputs")


FROM_FULL: Final = "preempt a request with a full pool"
SHARED: Final = "preempt choices that share pages"
OF_INDEX: Final = "preempt a request with pages of the index"
BESIDE_FINISHED: Final = "preempt beside a finished choice"
QUEUED: Final = "preempt a request with queued tokens"
PARTLY: Final = "preempt a request that is partly read"
ADMITTED: Final = "preempt an admitted request"
REPLAYED: Final = "last chunk of replayed tokens"
_DONE: Final = "Preempt: done"
_FILLS: Final = "Write|Prefill|MixedRound"
KIT: Final = RungKit(
    rung="preemption",
    actions={
        Preempt: ActionKit(corners=_preempt_corners),
        Replay: ActionKit(simpler=_simpler),
    },
    corners={
        FROM_FULL: (_DONE, FULL_POOL),
        SHARED: (_DONE, "Clone|Prefill", _FILLS, TWO_SLOTS),
        OF_INDEX: (_DONE, "Publish", _FILLS),
        BESIDE_FINISHED: (_DONE, "Clone|Prefill|Assign", TWO_SLOTS),
        QUEUED: (_DONE, "Enqueue|Prefill|MixedRound"),
        PARTLY: (_DONE, "MixedRound: done", "Assign"),
        ADMITTED: (_DONE, "Admit: done"),
        REPLAYED: ("MixedRound: done", "Replay: done"),
    },
    always=_always,
    rules={
        "scheduling": {
            "preempt": preempt,
            "replay": when(unread, replay, "read_in_parts"),
            "preempt_and_go_on": preempt_and_go_on,
            "serve_arrivals": serve_arrivals,
        },
        "admission": {"preempt": preempt},
    },
    warmup=(Preempt(0), Replay(0, (0,))),
    alphabet=alphabet,
    driven={},
)
