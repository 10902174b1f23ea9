"""Rung flights: generators of steps in flight, and of what happens to their slots meanwhile."""

from collections.abc import Iterator, Mapping
from typing import Final

from attrs import evolve

from conformance.history import Step
from conformance.rungs.chunks import begin
from conformance.rungs.pages import at_edge
from conformance.rungs.record import (
    FOUR_STEPS,
    FREES,
    FULL_BESIDE,
    FULL_POOL,
    GIVES_BACK,
    KEEPS,
    LAZY,
    TWO_SLOTS,
    ActionKit,
    Move,
    RungKit,
    Session,
)
from conformance.rungs.scheduling import make_room
from conformance.rungs.shared_generators import (
    ALPHABET,
    Digits,
    deliver_all,
    free_slots,
    rarely,
    used_slots,
    when,
    wild_slot,
)
from conformance.rungs.shared_moves import fixed
from spec import index, ladder, pool
from spec.machines import actions as act
from spec.machines import naive
from spec.machines.actions import (
    Action,
    Assign,
    Deliver,
    Dispatch,
    Drop,
    Enqueue,
    Evict,
    Free,
    Merge,
    Preempt,
    Publish,
    Release,
    Reserve,
    Reset,
    Retire,
    TakeOutputs,
)
from spec.machines.flights import parts_of, reach
from spec.machines.lifecycle import detail_of
from spec.machines.pages import copying, used
from spec.machines.preemption import slots_of_request
from spec.machines.window import first_visible
from spec.state import State
from spec.vocabulary import LAG, Geometry, Limits, Params, Reason, Tokens

Chunk = tuple[int, int]
MACHINE: Final = ladder.whole()
MOST_STEPS: Final = 6
MOST_QUEUED: Final = 16


def dispatch(session: Session, drawn: int) -> Step:
    """A step of one slot or of all, often with the next token of each before the last is known.

    Sometimes the pool has exactly the pages that it takes, or one less; sometimes it is at fault.
    """
    digits = Digits(drawn)
    if digits.rarely(6):
        return _any_dispatch(session.state, digits)
    if not _ready(session.state) and digits.below(4):
        begin(session, digits)
    _make_room(session, digits)
    chunks = _chunks(session.state, digits)
    if not chunks:
        return _any_dispatch(session.state, digits)
    if digits.rarely(6):
        return at_edge(session, digits.below(64), Dispatch(chunks), short=digits.below(3) > 0)
    return Dispatch(chunks)


def retire(session: Session, drawn: int) -> Step:
    """The next step retires; mostly one is dispatched first if none is there to retire."""
    if all(flight.retired for flight in session.state.flights) and drawn % 4:
        session.take(dispatch(session, drawn // 4))
    return Retire()


def deliver(session: Session, drawn: int) -> Step:
    """The oldest step is delivered; mostly it retires first, and all others too sometimes."""
    if not session.state.flights and drawn % 8:
        session.take(dispatch(session, drawn // 8))
    for _ in range((0, 1, 1, 1, 1, 1, 2, 3)[drawn % 8]):
        if not all(flight.retired for flight in session.state.flights):
            session.take(Retire())
    return Deliver()


def drain(session: Session, drawn: int) -> Step:
    """Every step in flight is delivered, and another one begins."""
    deliver_all(session)
    return dispatch(session, drawn)


def ahead(session: Session, drawn: int) -> Step:
    """Some steps of a server that is one or two steps ahead of what it has heard."""
    digits = Digits(drawn)
    lag = digits.below(LAG + 1)
    for _ in range(1 + digits.below(MOST_STEPS)):
        if digits.rarely(3) or not _ready(session.state):
            begin(session, digits)
        if digits.rarely(4):
            session.take(TakeOutputs())
        while len(session.state.flights) > lag:
            session.take(deliver(session, 1))
            if digits.rarely(3):
                session.take(meanwhile(session, digits.below(2**32)))
        chunks = _chunks(session.state, digits, whole=True)
        if chunks:
            session.take(Dispatch(chunks))
        if digits.below(2):
            session.take(Retire())
    return meanwhile(session, digits.below(2**32))


def stops_meanwhile(session: Session, drawn: int) -> Step:
    """A sequence ends with its first or second token, of which the host hears when later steps
    have begun with it. Often that token is the first of a page.
    """
    digits = Digits(drawn)
    deliver_all(session)
    session.take(TakeOutputs())
    state = session.state
    stop, size = digits.below(2), state.geometry.page_size
    to_edge = size * (1 + digits.below(2)) - stop
    length = digits.one_of((1 + digits.below(3), to_edge)) or 1
    prompt = (digits.below(ALPHABET),) * min(length, state.limits.round_tokens)
    most = state.geometry.max_len - len(prompt)
    make_room(session, Reserve(), digits)
    if not session.state.unused_slots or most < 3:
        return dispatch(session, drawn)
    params = Params(max_new=most, temperature=1.0, seed=digits.below(ALPHABET))
    drawn_tokens, _ = naive.generate(prompt, params, window=state.geometry.window)
    params = evolve(params, stops=(drawn_tokens[stop : stop + 1],))
    slot = free_slots(session.state)[0]
    session.take(Reserve(slot))
    session.take(Assign(slot, prompt, params, session.next_id()))
    session.take(Dispatch(((slot, len(prompt)),)))
    for _ in range(1 + digits.below(LAG)):
        session.take(Dispatch(((slot, 1),)))
    for _ in range(1 + digits.below(LAG + 1)):
        session.take(Retire())
    if digits.below(2):
        session.take(Deliver())
    return Deliver()


def settled_meanwhile(session: Session, drawn: int) -> Step:
    """A long text is read; then, with a step in flight, its pages are released or published.

    Or they are merged with those of the same text in another slot.
    """
    digits = Digits(drawn)
    deliver_all(session)
    sizes, twice = session.state.geometry, digits.below(2)
    longest = max(1, sizes.max_len - 2)
    length = longest if digits.below(2) else min(longest, sizes.page_size)
    prompt = tuple((digits.below(ALPHABET) + at // 2) % ALPHABET for at in range(length))
    slots = [_read(session, prompt, digits) for _ in range(1 + twice)]
    last = slots[-1]
    if last is None or last not in _ready(session.state):
        return meanwhile(session, drawn // 64)
    session.take(Dispatch(((last, 1),)))
    if digits.below(2):
        session.take(Retire())
    committed = session.state.committed[last]
    if twice:
        return Merge(last, digits.below(max(1, committed // sizes.page_size)))
    if digits.below(2):
        return Release(last, first_visible(session.state, last))
    return Publish(last, committed)


def last_room(session: Session, drawn: int) -> Step:
    """Steps in flight have the last slot or page, or the last place in the queue or the outputs.

    Or there are as many as may be. Something else asks for it, or one that has it asks again.
    """
    digits = Digits(drawn)
    deliver_all(session)
    ways = _last_slot, _last_page, *[_last_queued] * 3, _last_output, _last_step
    return digits.one_of(ways)(session, digits) or dispatch(session, drawn // 64)


def _last_slot(session: Session, digits: Digits) -> Step | None:
    begun = _begun_together(session, digits, 2)
    for _ in range(min(MOST_STEPS, len(session.state.unused_slots))):
        session.take(Reserve())
    if len(begun) < 2:
        return None
    session.take(Dispatch(((begun[0], 1),)))
    session.take(Free(begun[0]))
    asked: tuple[Action, ...] = (Reserve(), act.Clone(begun[1], None, 1))
    return digits.one_of(asked)


def _last_page(session: Session, digits: Digits) -> Step | None:
    begun = _begun_together(session, digits, 2)
    if len(begun) < 2:
        return None
    session.take(Dispatch(((begun[0], 1),)))
    session.take(Free(begun[0]))
    asked: tuple[Action, ...] = (Dispatch(((begun[1], 1),)), act.Allocate(((begun[1], 0),)))
    return at_edge(session, digits.below(64), digits.one_of(asked), short=True)


def _last_queued(session: Session, digits: Digits) -> Step | None:
    """One queued token less than there is room for, which is promised to a step in flight."""
    begun = _begun_together(session, digits, 3, max_new=session.state.geometry.max_len - 1)
    if len(begun) < 2:
        return None
    draws, filler, other = (*begun, begun[-1])[:3]
    asked: tuple[Action, ...] = (
        Enqueue(other, digits.below(ALPHABET)),
        act.Propose(other, (digits.below(ALPHABET),)),
        act.Clone(other, None, 1),
        Dispatch(((other, 1),)),
    )
    last = digits.one_of(asked)
    if not isinstance(last, Dispatch):
        session.take(Enqueue(other, digits.below(ALPHABET)))
    beside = [slot for slot in used_slots(session.state) if slot not in begun]
    if isinstance(last, act.Clone) and not session.state.unused_slots and beside:
        session.take(Free(beside[0]))
    room = session.state.limits.queue - len(session.state.queue) - 1
    for _ in range(min(MOST_QUEUED, room)):
        more = Enqueue(filler, digits.below(ALPHABET))
        if session.is_done(more):
            session.take(more)
    session.take(Dispatch(((draws, 1),)))
    return last


def _last_output(session: Session, digits: Digits) -> Step | None:
    state = session.state
    for _ in range(min(MOST_STEPS, state.limits.outputs - 1 - len(state.outputs))):
        _end_one(session, digits)
    most = min(3, state.geometry.max_len - 1)
    slots = _begun_together(session, digits, 2, max_new=most)
    if not slots:
        return None
    session.take(Dispatch(((slots[0], 1),)))
    return Dispatch(((digits.one_of(slots), 1),))


def _last_step(session: Session, digits: Digits) -> Step | None:
    slot = _begun(session, digits, (0,), max_new=session.state.geometry.max_len - 1)
    if slot is None:
        return None
    for _ in range(LAG + 1):
        session.take(Dispatch(((slot, 1),)))
    return Dispatch(((slot, 1),))


def unsettled(session: Session, drawn: int) -> Step:
    """What a step has written, and is not delivered yet, is asked for as if it were settled."""
    digits, sizes = Digits(drawn), session.state.geometry
    deliver_all(session)
    longest = min(sizes.max_len - 2, session.state.limits.round_tokens)
    length = max(1, digits.one_of((longest, min(longest, sizes.page_size + 1))))
    prompt = (digits.below(ALPHABET),) * length
    if digits.below(2):
        _read(session, prompt, digits)
    begun = _begun_together(session, digits, 2, prompt=prompt)
    if len(begun) < 2:
        return meanwhile(session, drawn // 64)
    written, other = begun
    session.take(Dispatch(((written, length),)))
    session.take(Retire())
    whole = (length - 1) // sizes.page_size
    asked: tuple[Action, ...] = (
        act.Share(written, other, whole * sizes.page_size),
        Publish(written, length),
        Merge(written, max(0, whole - 1)),
        Release(written, max(0, length + 1 - (sizes.window or length + 1))),
    )
    return digits.one_of(asked)


def _end_one(session: Session, digits: Digits) -> None:
    """A sequence draws its only token and leaves its slot; its output is not taken."""
    slot = _begun(session, digits, (0,), max_new=1)
    if slot is not None:
        session.take(Dispatch(((slot, 1),)))
        deliver_all(session)
        if slot in used_slots(session.state):
            session.take(Free(slot))


def _begun_together(
    session: Session, digits: Digits, count: int, *, prompt: Tokens = (0,), max_new: int = 2
) -> list[int]:
    """Up to so many slots that have a prompt."""
    begun = [_begun(session, digits, prompt, max_new=max_new) for _ in range(count)]
    there = used_slots(session.state)
    return list(dict.fromkeys(slot for slot in begun if slot in there))


def _begun(session: Session, digits: Digits, prompt: Tokens, *, max_new: int) -> int | None:
    """A slot that has a prompt; None if there is no slot."""
    make_room(session, Reserve(), digits)
    if not session.state.unused_slots:
        return None
    slot = free_slots(session.state)[0]
    session.take(Reserve(slot))
    session.take(Assign(slot, prompt, Params(max_new=max_new), session.next_id()))
    return slot


def idle_meanwhile(session: Session, drawn: int) -> Step:
    """A page of the index that nothing but a step in flight names is evicted, or hit."""
    digits, state = Digits(drawn), session.state
    deliver_all(session)
    size = state.geometry.page_size
    length = max(1, min(size, state.geometry.max_len - 2))
    slot = _read(session, (digits.below(ALPHABET),) * length, digits)
    if slot is None or slot not in _ready(session.state):
        return meanwhile(session, drawn // 64)
    session.take(Dispatch(((slot, 1),)))
    session.take(Free(slot))
    state = session.state
    idle = [one for page, one in enumerate(state.indexed) if one and page in state.held]
    if not idle:
        return meanwhile(session, drawn // 64)
    other = _begun(session, digits, (*idle[0].chain, 0), max_new=1) if digits.below(2) else None
    return Evict(idle[0].chain, idle[0].context) if other is None else act.Hit(other, size)


def _read(session: Session, prompt: Tokens, digits: Digits) -> int | None:
    """Read a text in a slot, step after step, and publish it; None if there is no slot."""
    slot = _begun(session, digits, prompt, max_new=2)
    if slot is None:
        return None
    for start in range(0, len(prompt), session.state.limits.round_tokens):
        count = min(session.state.limits.round_tokens, len(prompt) - start)
        session.take(Dispatch(((slot, count),)))
        deliver_all(session)
    if slot in used_slots(session.state):
        session.take(Publish(slot, session.state.committed[slot]))
    return slot


def begin_meanwhile(session: Session, drawn: int) -> Step:
    """A sequence begins, and between its reservation and its prompt something else goes on."""
    digits = Digits(drawn)
    if digits.below(2):
        deliver_all(session)
    elif not session.state.flights:
        session.take(dispatch(session, drawn // 64))
    make_room(session, Reserve(), digits)
    if not session.state.unused_slots:
        return deliver(session, drawn // 64)
    slot = free_slots(session.state)[0]
    session.take(Reserve(slot))
    between = digits.below(4)
    if between:
        session.take(Retire())
    if between == 1:
        session.take(Deliver())
    if between == 0:
        session.take(session.rules["elsewhere"](session, digits.below(2**64)))
    prompt = (digits.below(ALPHABET),) * (1 + digits.below(3))
    return Assign(
        slot,
        prompt[: session.state.geometry.max_len - 1] or (0,),
        Params(max_new=1),
        session.next_id(),
    )


def meanwhile(session: Session, drawn: int) -> Step:
    """Something that happens to a slot in flight, or that needs the slots and pages of one."""
    digits, state = Digits(drawn), session.state
    slots = _in_flight(state)
    if not slots:
        return dispatch(session, drawn)
    slot = digits.one_of(slots)
    sequence, detail = used(state, slot), state.details[slot]
    size, committed = state.geometry.page_size, state.committed[slot]
    held = sorted({part.slot for flight in state.flights for part in flight.parts})
    entry = digits.below(max(1, committed // size))
    options: tuple[Step, ...] = (
        Free(slot),
        Preempt(detail.request if detail else 0),
        Publish(slot, max(0, committed - digits.rarely(4))),
        Release(slot, first_visible(state, slot)),
        Merge(slot, entry),
        Reset(),
        Drop(),
        Enqueue(slot, digits.below(ALPHABET)),
        act.Propose(slot, (digits.below(ALPHABET),)),
        act.Commit(slot, sequence.written),
        act.Truncate(slot, sequence.allocated),
        act.Replay(slot, (digits.below(ALPHABET),)),
        act.Clone(slot, None, 1 + digits.below(3)),
        act.Allocate(((slot, sequence.allocated),)),
        act.Write(((slot, sequence.written),)),
        Reserve(digits.one_of(held)),
        act.Publish(slot, sequence.written),
    )
    step = options[digits.below(len(options))]
    if isinstance(step, Free | Preempt) and digits.below(2):
        session.take(step)  # and another sequence begins at once
        begin(session, digits)
        chunks = _chunks(session.state, digits)
        return Dispatch(chunks) if chunks else Reserve()
    if isinstance(step, Drop) and not digits.rarely(4):
        _begin_in_flight(session, digits)
    return step


def _begin_in_flight(session: Session, digits: Digits) -> None:
    """Begin a sequence, and dispatch a step that has its first chunk, if there is room."""
    begin(session, digits)
    _make_room(session, digits)
    chunks = _chunks(session.state, digits)
    if chunks:
        session.take(Dispatch(chunks))


def _in_flight(state: State) -> list[int]:
    """The slots that are in a step in flight, and current."""
    return [slot for slot in used_slots(state) if parts_of(state, slot)]


def _any_open(state: State) -> object:
    return state.flights


def _ready(state: State) -> list[int]:
    """The slots of which a step can have the next position."""
    return [
        slot
        for slot in state.live
        if state.details[slot] is not None
        and _left(state, slot) > 0
        and (parts_of(state, slot) or (used(state, slot).settled and not state.proposed[slot]))
    ]


def _left(state: State, slot: int) -> int:
    """The positions that a step can have, but for the last of `max_new` tokens."""
    detail = detail_of(state, slot)
    end = min(reach(state, slot), detail.prompt_len + detail.params.max_new - 1)
    return end - used(state, slot).allocated


def _chunks(state: State, digits: Digits, *, whole: bool = False) -> tuple[Chunk, ...]:
    """The next positions of some slots, as far as a step has room for them.

    whole: of each slot all that is left.
    """
    room, chunks = state.limits.round_tokens, list[Chunk]()
    slots = _ready(state)
    fewer = 0 if whole else digits.below(3)
    while len(slots) > fewer and room > 0:
        slot = slots.pop(digits.below(len(slots)))
        left = min(_left(state, slot), room)
        count = left if whole else digits.one_of((left, 1, min(left, state.geometry.page_size)))
        chunks.append((slot, count))
        room -= count
    return tuple(chunks)


def _make_room(session: Session, digits: Digits) -> None:
    """Steps are delivered and outputs taken, where another step would mostly be refused."""
    if len(session.state.flights) > LAG and digits.below(6):
        session.take(deliver(session, 1))
    if session.state.outputs and digits.below(4):
        session.take(TakeOutputs())


def _any_dispatch(state: State, digits: Digits) -> Dispatch:
    """Any slot, with a token too many or two; none, the same twice, or a chunk of no token."""
    slot = wild_slot(state, digits, _ready(state) or used_slots(state))
    more = 1
    if slot in used_slots(state):
        more = max(1, reach(state, slot) - used(state, slot).allocated)
    wide = (slot, state.limits.round_tokens + 1)
    chunks: tuple[tuple[Chunk, ...], ...] = (
        ((slot, more),),
        ((slot, more + 1),),
        (),
        ((slot, 1), (slot, 1)),
        ((slot, 0),),
        (wide,),
        tuple((one, 1) for one in used_slots(state)),
    )
    return Dispatch(digits.one_of(chunks))


def _simpler(action: Dispatch) -> Iterator[Step]:
    for at, (slot, count) in enumerate(action.chunks):
        yield evolve(action, chunks=action.chunks[:at] + action.chunks[at + 1 :])
        if count > 1:
            fewer = (*action.chunks[:at], (slot, count - 1), *action.chunks[at + 1 :])
            yield evolve(action, chunks=fewer)


def _dispatch_corners(before: State, action: Dispatch, after: State) -> Iterator[str]:
    for slot, _ in action.chunks:
        parts = parts_of(before, slot)
        if parts and not parts[-1].draws:
            yield TWO_CHUNKS
        if parts and parts[-1].draws:
            known = len(before.proposed[slot]) == sum(part.draws for part in parts)
            yield DRAWN_BY_DEVICE if known else NOT_DRAWN_YET
    if len(before.flights) == LAG:
        yield MOST_OPEN
    parts_after = [part for flight in after.flights for part in flight.parts if part.current]
    if len(after.outputs) + sum(part.draws for part in parts_after) > after.limits.outputs:
        yield ROOM_ONCE
    if copying(before, sorted(slot for slot, _ in action.chunks)):
        yield LAZY_COPY


def _retire_corners(before: State, _action: Retire, _after: State) -> Iterator[str]:
    at = [flight.retired for flight in before.flights].index(False)
    if any(not part.current for part in before.flights[at].parts):
        yield STALE_RETIRES


def _deliver_corners(before: State, _action: Deliver, after: State) -> Iterator[str]:
    oldest, *later = before.flights
    for part in oldest.parts:
        if not part.current:
            yield STALE_DELIVERED
            continue
        following = [
            (other, flight.retired)
            for flight in later
            for other in flight.parts
            if other.current and other.slot == part.slot
        ]
        ended = not parts_of(after, part.slot)
        if part.draws and following and ended:
            yield STOP_BEFORE
            yield from [STOP_AFTER_DRAW] * any(done and one.draws for one, done in following)
            kept = after.sequences[part.slot]
            if kept and len(kept.row) < len(used(before, part.slot).row):
                yield STOP_GIVES_BACK
        elif part.draws and following:
            yield IN_FLIGHT_ALREADY
    for page in before.held - after.held:
        if pool.is_free(before.counts, page) and pool.is_free(after.counts, page):
            yield LET_GO
            break


def _always(before: State, action: Action, after: State) -> Iterator[str]:
    if before.flights:
        yield from _meanwhile_corners(before, action, after)
        yield from _held_corners(before, after)


def _meanwhile_corners(before: State, action: Action, after: State) -> Iterator[str]:
    """What happened to the slots and pages of a step in flight."""
    slots = {*_in_flight(before)}
    match action:
        case Free(slot) if slot in slots and not pool.free_count(before.in_use):
            yield FREED_FULL
        case Preempt(request) if slots.intersection(slots_of_request(before, request)):
            yield PREEMPTED
        case Publish(slot) if slot in slots and before.indexed != after.indexed:
            yield PUBLISHED
        case Release(slot) if slot in slots and before.first_page != after.first_page:
            yield RELEASED
        case Merge(slot, entry) if used(before, slot).row[entry] in before.held:
            yield MERGED
        case Evict(tokens, context) if index.find(before.indexed, context, tokens) in before.held:
            yield EVICT_HELD
        case Reset():
            yield RESET
        case Drop() if any(
            not before.stale[slot] and not used(before, slot).written for slot in slots
        ):
            yield DROPPED


def _refused(state: State, action: Action, reasons: frozenset[Reason]) -> Iterator[str]:
    """What would be done if nothing were in flight, or once what has retired is delivered."""
    kind = type(action)
    short = [reason for reason in reasons if kind in SHORT_BESIDE.get(reason, ((), ()))[0]]
    if state.flights and short and not MACHINE.refusals(state._replace(flights=()), action):
        yield from (short_beside(kind, reason) for reason in short)
    if any(flight.retired for flight in state.flights) and UNTIL.get(kind) in reasons:
        while state.flights and state.flights[0].retired:
            state = MACHINE.effect(state, Deliver())
        if not MACHINE.refusals(state, action):
            yield until_delivered(kind)


def short_beside(kind: type, reason: Reason) -> str:
    """The corner state in which an action lacks what steps in flight have."""
    return f"{kind.__name__}: {reason.name} for what is in flight alone"


def until_delivered(kind: type) -> str:
    """The corner state in which an action has to wait for the delivery of what is written."""
    return f"{kind.__name__}: {UNTIL[kind].name} until a step is delivered"


def _held_corners(before: State, after: State) -> Iterator[str]:
    """Which pages were taken beside those that a step in flight holds."""
    taken = [
        page
        for page, (old, new) in enumerate(zip(before.counts, after.counts, strict=True))
        if pool.is_free(before.counts, page) and new > old
    ]
    held = [page for page in before.held if pool.is_free(before.counts, page)]
    if any(page < max(taken, default=0) and page in after.held for page in held):
        yield PAST_HELD
    if any(index.has(before.indexed, page) and page in before.held for page in taken):
        yield HIT_HELD


def alphabet(geometry: Geometry, _limits: Limits) -> Iterator[Move]:
    """Steps of one token, or two, of a slot or of two; and what ends a sequence meanwhile.

    A choice in each slot. Two steps are in flight at most.
    """
    prompt = (1,) * min(2, geometry.max_len - 1)
    params = Params(max_new=max(1, geometry.max_len - len(prompt)))
    stop, _ = naive.generate(prompt, params, 0, window=geometry.window)
    stopped = evolve(params, stops=(stop[:1],))
    for slot in range(geometry.slots):
        yield fixed(Reserve(slot), f"reserve({slot})")
        yield fixed(Assign(slot, prompt, params, 1, slot), f"assign({slot})")
        yield fixed(Enqueue(slot, 1), f"enqueue({slot})")
    yield fixed(Assign(0, prompt, stopped, 2, 0), "assign(0, stopped)")
    for slot in range(geometry.slots + 1):
        for count in (1, 2):
            yield _dispatched(((slot, count),), f"dispatch({slot}: {count})")
        yield fixed(Free(slot), f"free({slot})")
    yield _dispatched(((0, 1), (1, 1)), "dispatch(0: 1, 1: 1)")
    yield fixed(Dispatch(((0, 1), (0, 1))), "dispatch(0: 1, 0: 1)")
    yield fixed(Dispatch(((0, 0),)), "dispatch(0: 0)")
    yield fixed(Dispatch(()), "dispatch()")
    yield fixed(Retire(), "retire")
    yield fixed(Deliver(), "deliver")
    yield fixed(act.Round(), "round")
    yield fixed(Reset(), "reset")
    yield fixed(TakeOutputs(), "take_outputs")


def _dispatched(chunks: tuple[Chunk, ...], name: str) -> Move:
    """A step, unless two are in flight already."""
    return Move(name, lambda state: Dispatch(chunks) if len(state.flights) < LAG else None)


_DONE: Final = "Dispatch: done"
_ENDS: Final = f"Free|Preempt|Reset|{FREES}"
TWO_CHUNKS: Final = "two chunks of a prompt in flight"
DRAWN_BY_DEVICE: Final = "dispatch of a token that the device has drawn"
NOT_DRAWN_YET: Final = "dispatch of a token that is not drawn yet"
MOST_OPEN: Final = "as many steps in flight as may be"
LAZY_COPY: Final = "dispatch that copies a shared page"
STALE_RETIRES: Final = "step that retires after a sequence of it has ended"
STALE_DELIVERED: Final = "step that is delivered after a sequence of it has ended"
STOP_BEFORE: Final = "stop before a later step in flight"
STOP_AFTER_DRAW: Final = "stop after a later step has drawn"
IN_FLIGHT_ALREADY: Final = "deliver a token that is in flight already"
LET_GO: Final = "page that is free from a delivery on"
FREED_FULL: Final = "free a slot in flight, with a full pool"
PREEMPTED: Final = "preempt a request in flight"
PUBLISHED: Final = "publish beside a step in flight"
RELEASED: Final = "release beside a step in flight"
MERGED: Final = "merge a page that a step in flight names"
EVICT_HELD: Final = "evict a page that a step in flight holds"
STOP_GIVES_BACK: Final = "stop that gives back a page of a later step in flight"
ROOM_ONCE: Final = "outputs with room for each slot that draws, and not for each token"
SHORT_BESIDE: Final[Mapping[Reason, tuple[tuple[type, ...], tuple[str, ...]]]] = {
    Reason.NO_FREE_SLOT: ((Reserve, act.Clone), (TWO_SLOTS, _ENDS)),
    Reason.OUT_OF_PAGES: ((act.Allocate, Dispatch), (TWO_SLOTS, _ENDS)),
    Reason.QUEUE_FULL: ((Enqueue, act.Propose, act.Clone, Dispatch), (FULL_BESIDE,)),
    Reason.OUTPUTS_FULL: ((Dispatch,), (TWO_SLOTS,)),
}
"""The actions that can lack what steps in flight have, by what they lack; what else that needs.

A clone can lack a page as well, which takes more slots than most sizes have, and so can a prompt
whose pages are reserved.
"""
UNTIL: Final[Mapping[type, Reason]] = {
    act.Share: Reason.NOT_COMMON,
    Publish: Reason.UNCOMMITTED,
    Merge: Reason.UNCOMMITTED,
    Release: Reason.WINDOW,
}
"""The actions that take settled cells alone, and why they are refused before."""
RESET: Final = "reset with a step in flight"
DROPPED: Final = "drop the index with the first step of a slot in flight"
PAST_HELD: Final = "page that is taken past one that a step in flight holds"
HIT_HELD: Final = "hit of a page that a step in flight holds"
KIT: Final = RungKit(
    rung="flights",
    actions={
        Dispatch: ActionKit(corners=_dispatch_corners, simpler=_simpler),
        Retire: ActionKit(corners=_retire_corners),
        Deliver: ActionKit(corners=_deliver_corners),
    },
    corners={
        TWO_CHUNKS: (_DONE, "Assign"),
        DRAWN_BY_DEVICE: ("Retire: done",),
        NOT_DRAWN_YET: (_DONE,),
        MOST_OPEN: (_DONE, FOUR_STEPS),
        LAZY_COPY: (_DONE, LAZY, "Clone"),
        STALE_RETIRES: ("Retire: done", _ENDS),
        STALE_DELIVERED: ("Deliver: done", _ENDS),
        STOP_BEFORE: ("Deliver: done",),
        STOP_AFTER_DRAW: ("Deliver: done",),
        STOP_GIVES_BACK: ("Deliver: done", KEEPS, GIVES_BACK),
        ROOM_ONCE: (_DONE,),
        **{
            short_beside(kind, reason): (_DONE, f"{kind.__name__}: {reason.name}", *needs)
            for reason, (kinds, needs) in SHORT_BESIDE.items()
            for kind in kinds
        },
        **{
            until_delivered(kind): ("Deliver: done", f"{kind.__name__}: {reason.name}", TWO_SLOTS)
            for kind, reason in UNTIL.items()
        },
        EVICT_HELD: (_DONE, "Evict: done", _ENDS),
        IN_FLIGHT_ALREADY: ("Deliver: done",),
        LET_GO: ("Deliver: done", _ENDS),
        FREED_FULL: (_DONE, "Free", FULL_POOL),
        PREEMPTED: (_DONE, "Preempt: done"),
        PUBLISHED: ("Deliver: done", "Publish"),
        RELEASED: ("Deliver: done", "Release"),
        MERGED: ("Deliver: done", "Merge: done"),
        RESET: (_DONE, "Reset"),
        DROPPED: (_DONE, "Drop"),
        PAST_HELD: (_DONE, _ENDS, "Allocate|Dispatch", TWO_SLOTS),
        HIT_HELD: (_DONE, "Hit: done", _ENDS),
    },
    always=_always,
    refused=_refused,
    rules={
        "flights": {
            "dispatch": dispatch,
            "dispatch_again": dispatch,
            "retire": retire,
            "deliver": deliver,
            "drain": drain,
            "ahead": ahead,
            "stops_meanwhile": stops_meanwhile,
            "begin_meanwhile": begin_meanwhile,
            "settled_meanwhile": settled_meanwhile,
            "last_room": last_room,
            "unsettled": unsettled,
            "idle_meanwhile": rarely(2, idle_meanwhile, "settled_meanwhile"),
            "meanwhile": meanwhile,
            "meanwhile_again": meanwhile,
        },
        "scheduling": {
            "drain": when(_any_open, drain, "go_on"),
        },
        "admission": {
            "drain": when(_any_open, drain, "serve"),
        },
        "lifecycle": {
            "drain": when(_any_open, drain, "advance"),
        },
    },
    needs=frozenset({Dispatch, Retire, Deliver}),
    warmup=(Dispatch(()), Retire(), Deliver()),
    alphabet=alphabet,
    driven=dict.fromkeys(("SNAP", "SETTLED", "FENCE", "HELD"), (Dispatch,)),
)
