"""Rung flights: a step is dispatched before the outcome of earlier ones is known.

A step has three points. At its dispatch it gets cells, and takes a snapshot of its positions and
of the pages of its rows. When it retires, the device has written and drawn; what it drew is
proposed. At its delivery the host learns of it: cells are committed, tokens are known, sequences
finish. Steps retire and are delivered in the order of their dispatch. So `allocated`, `written` and
`committed` are what is dispatched, retired and delivered.

Meanwhile a sequence may end, or turn out to have ended at a delivery. Its slot is no longer current
in later steps: they do nothing for it, but hold the slot and the pages that they name until they
are delivered. No step is refused once it is dispatched: what its delivery may need of the queue and
of the outputs is reserved.

Seen from below, steps are done one after another, each at its delivery: what is dispatched, written
or drawn before that was never there. Source: docs/sources.md, "Steps in flight".
"""

from collections.abc import Iterator
from typing import Any, Final

from attrs import evolve

from spec import model
from spec.attention import visible
from spec.machines.actions import (
    Action,
    Allocate,
    Append,
    Clone,
    Commit,
    Deliver,
    Dispatch,
    Drop,
    Free,
    FreeFinished,
    Generate,
    MixedRound,
    Prefill,
    Propose,
    Replay,
    Reserve,
    Reset,
    Retire,
    Round,
    Sample,
    Truncate,
    Write,
)
from spec.machines.lifecycle import detail_of, ended, has_prompt, no_room_to_draw, unfinished
from spec.machines.pages import (
    before_room,
    next_to_allocate,
    reserved_slot,
    row_fits,
    row_pages,
    slots_in_range,
    slots_in_use,
    slots_of,
    used,
    with_entry,
    with_sequence,
)
from spec.machines.rollback import cut
from spec.machines.scheduling import last_queued, narrow, outputs_full, tidied, tidies
from spec.rung import (
    ChecksOf,
    Edge,
    Faults,
    Machine,
    Meet,
    Pages,
    Part,
    Rule,
    Rung,
    Stage,
    Stages,
    check,
    in_order,
)
from spec.state import Flight, InFlight, State
from spec.table import Entry, by_slot, read
from spec.vocabulary import LAG, Reason
from spec.vocabulary.errors import SLOT_REASONS


def parts_of(state: State, slot: int) -> tuple[InFlight, ...]:
    """What the steps in flight do with the sequence of a slot, oldest first."""
    return tuple(
        part
        for flight in state.flights
        for part in flight.parts
        if part.slot == slot and part.current
    )


def reach(state: State, slot: int) -> int:
    """The tokens of a slot that a step may have the positions of: known, or drawn in flight."""
    return len(used(state, slot).tokens) + sum(part.draws for part in parts_of(state, slot))


def batch_of(state: State, action: Dispatch) -> tuple[Entry, ...]:
    """The positions of a step, by slot, then position."""
    return tuple(
        (slot, used(state, slot).allocated + offset)
        for slot, count in sorted(action.chunks)
        for offset in range(count)
    )


def _draws(state: State, slot: int, count: int) -> bool:
    return used(state, slot).allocated + count == reach(state, slot)


def _drawing(state: State, action: Dispatch) -> frozenset[int]:
    return frozenset(slot for slot, count in action.chunks if _draws(state, slot, count))


@check(Reason.QUEUE_EMPTY)
def _some_slot(_machine: Machine, _state: State, action: Dispatch) -> Faults:
    """There is no chunk."""
    if not action.chunks:
        yield 0, "at least 1 chunk"


@check(Reason.BATCH_POSITIONS)
def _once_each(_machine: Machine, _state: State, action: Dispatch) -> Faults:
    """A slot has two chunks, or a chunk has no token."""
    slots = [slot for slot, _ in action.chunks]
    wrong = [chunk for chunk in action.chunks if slots.count(chunk[0]) > 1 or chunk[1] < 1]
    if wrong:
        yield wrong, "one chunk of a slot, of 1 token or more"


@check(Reason.BATCH_UNKNOWN)
def _within_reach(_machine: Machine, state: State, action: Dispatch) -> Faults:
    """A chunk has more tokens than its slot has ones without cells, known or drawn by a step in
    flight.
    """
    for slot, count in action.chunks:
        left = reach(state, slot) - used(state, slot).allocated
        if count > left:
            yield count, f"at most {left} tokens of slot {slot}"


@check(Reason.TOO_LONG)
def _another_to_draw(_machine: Machine, state: State, action: Dispatch) -> Faults:
    """A step in flight draws the last of the `max_new` tokens of a slot, which no step writes."""
    for slot in _drawing(state, action):
        yield from no_room_to_draw(state, slot, reach(state, slot) - 1)


@check(Reason.BATCH_WIDTH)
def _within_budget(_machine: Machine, state: State, action: Dispatch) -> Faults:
    """The chunks have more than `limits.round_tokens` tokens together."""
    tokens = sum(count for _, count in action.chunks)
    if tokens > state.limits.round_tokens:
        yield tokens, f"at most {state.limits.round_tokens} tokens"


@check(Reason.UNWRITTEN)
def _settled(_machine: Machine, state: State, action: Dispatch) -> Faults:
    """A slot that is in no step in flight has allocated cells that are not written."""
    for slot, _ in action.chunks:
        if not parts_of(state, slot) and not used(state, slot).settled:
            yield slot, "a slot whose allocated cells are written"


@check(Reason.PROPOSED)
def _without_drafts(_machine: Machine, state: State, action: Dispatch) -> Faults:
    """A slot that is in no step in flight has proposed tokens."""
    for slot, _ in action.chunks:
        if state.proposed[slot] and not parts_of(state, slot):
            yield slot, "a slot without proposed tokens"


@check(Reason.FLIGHTS_FULL)
def _few_open(_machine: Machine, state: State, _action: Dispatch) -> Faults:
    """More than `LAG` steps are in flight already."""
    if len(state.flights) > LAG:
        yield len(state.flights), f"at most {LAG} steps in flight"


@check(Reason.OUTPUTS_FULL)
def _outputs_fit(_machine: Machine, state: State, action: Dispatch) -> Faults:
    """The outputs have no room for one of each slot that draws in this step or one in flight."""
    yield from outputs_full(state, len(state.promised | _drawing(state, action)))


@check(Reason.QUEUE_FULL)
def _queue_fits(_machine: Machine, state: State, action: Dispatch) -> Faults:
    """The queue has no room, beside the tokens that stay in it, for one of each slot that draws in
    this step or one in flight.
    """
    promised = state.promised | _drawing(state, action)
    wanted = len(_left_queued(state, action)) + len(promised)
    if wanted > state.limits.queue:
        yield wanted, f"up to {state.limits.queue}"


def _left_queued(state: State, action: Dispatch) -> tuple[Any, ...]:
    leaving = {*batch_of(state, action)}
    return tuple(one for one in state.queue if (one.slot, one.position) not in leaving)


def _dispatch(machine: Machine, state: State, action: Dispatch, pages: Pages | None) -> State:
    drawing, queue = _drawing(state, action), _left_queued(state, action)
    after = machine.effect(state, Allocate(batch_of(state, action)), pages)
    parts = tuple(
        InFlight(
            slot,
            first=used(state, slot).allocated,
            count=count,
            draws=slot in drawing,
            pages=used(after, slot).pages,
        )
        for slot, count in sorted(action.chunks)
    )
    return after._replace(queue=queue, flights=(*after.flights, Flight(parts)))


@check(Reason.NO_FLIGHT)
def _some_to_retire(_machine: Machine, state: State, _action: Retire) -> Faults:
    """Every step in flight has retired, or there is none."""
    if all(flight.retired for flight in state.flights):
        yield len(state.flights), "a step in flight that has not retired"


def _retire(machine: Machine, state: State, _action: Retire, _pages: Pages | None) -> State:
    index = [flight.retired for flight in state.flights].index(False)
    done = state.flights[index]
    for part in done.parts:
        if part.current:
            state = _written(machine, state, part)
    return state._replace(flights=with_entry(state.flights, index, evolve(done, retired=True)))


def _written(machine: Machine, state: State, part: InFlight) -> State:
    """The state in which the cells of a slot are written, and its token is drawn and proposed.

    The tokens that were drawn before it are tokens of the device, though the host has not heard.
    """
    slot, below = part.slot, machine.below("rollback")
    heard = used(state, slot).tokens
    told = evolve(used(state, slot), tokens=machine.known(state, slot))
    state = with_sequence(state, slot, told)
    batch = tuple((slot, position) for position in range(part.first, part.end))
    state = below.effect(state, Write(batch))
    if part.draws:
        state = below.effect(state, _sample(state, slot, len(told.tokens)))
    told = used(state, slot)
    proposed = with_entry(state.proposed, slot, told.tokens[len(heard) :])
    return with_sequence(state._replace(proposed=proposed), slot, evolve(told, tokens=heard))


def _sample(state: State, slot: int, position: int) -> Sample:
    detail = detail_of(state, slot)
    return Sample(slot, model.draw(detail.params, choice=detail.choice, position=position))


@check(Reason.NO_FLIGHT)
def _oldest_retired(_machine: Machine, state: State, _action: Deliver) -> Faults:
    """The oldest step in flight has not retired, or there is none."""
    if not state.flights or not state.flights[0].retired:
        yield len(state.flights), "a step in flight that has retired"


def _deliver(machine: Machine, state: State, _action: Deliver, _pages: Pages | None) -> State:
    return tidied(machine, _delivered(state))


def _delivered(state: State) -> State:
    oldest, *rest = state.flights
    state = state._replace(flights=tuple(rest))
    for part in oldest.parts:
        if part.current:
            state = _heard(state, part)
    return state


def _heard(state: State, part: InFlight) -> State:
    """The state in which the host has heard what a step did with a slot."""
    slot = part.slot
    state = state._replace(committed=with_entry(state.committed, slot, part.end))
    if not part.draws:
        return state
    sequence, (token, *later) = used(state, slot), state.proposed[slot]
    state = with_sequence(state, slot, evolve(sequence, tokens=(*sequence.tokens, token)))
    state = state._replace(proposed=with_entry(state.proposed, slot, tuple(later)))
    state = ended(state, slot)
    if slot in state.finished:
        return _stopped(state, slot)
    return state if parts_of(state, slot) else last_queued(state, slot)


def _stopped(state: State, slot: int) -> State:
    """The state without what was dispatched past the end of a sequence that has ended."""
    state = cut(state, slot, state.committed[slot])
    state = state._replace(proposed=with_entry(state.proposed, slot, ()))
    return _abandoned(state, frozenset({slot}))


def _abandoned(state: State, slots: frozenset[int]) -> State:
    """The state in which steps in flight only hold these slots, and the pages that they name."""
    return state._replace(
        flights=tuple(
            evolve(
                flight,
                parts=tuple(
                    InFlight(part.slot, pages=part.pages, current=False)
                    if part.slot in slots
                    else part
                    for part in flight.parts
                ),
            )
            for flight in state.flights
        )
    )


# What steps in flight add to the actions of lower rungs.


@check(Reason.IN_FLIGHT)
def _not_in_flight(
    _machine: Machine,
    state: State,
    action: Allocate | Append | Commit | Propose | Replay | Truncate,
) -> Faults:
    """A slot is in a step in flight."""
    for slot in slots_of(action):
        if isinstance(slot, int) and parts_of(state, slot):
            yield slot, "a slot that no step in flight has"


@check(Reason.IN_FLIGHT)
def _parent_not_in_flight(_machine: Machine, state: State, action: Clone) -> Faults:
    """The parent is in a step in flight."""
    if parts_of(state, action.parent):
        yield action.parent, "a parent that no step in flight has"


@check(Reason.IN_FLIGHT)
def _none_in_flight(
    _machine: Machine, state: State, _action: Write | Prefill | Round | MixedRound
) -> Faults:
    """A step is in flight: steps are done in order."""
    if state.flights:
        yield len(state.flights), "0 steps in flight"


@check(Reason.IN_FLIGHT)
def _slot_not_held(_machine: Machine, state: State, action: Reserve) -> Faults:
    """A step in flight holds `slot`."""
    yield from _held(state, action.slot)


@check(Reason.IN_FLIGHT)
def _child_not_held(_machine: Machine, state: State, action: Clone) -> Faults:
    """A step in flight holds `child`."""
    yield from _held(state, action.child)


def _held(state: State, slot: object) -> Faults:
    unused = isinstance(slot, int) and state.sequences[slot] is None
    if unused and slot not in state.unused_slots:
        yield slot, "a slot that no step in flight holds"


def _free_abandons(_machine: Machine, before: State, action: Free, after: State) -> State:
    return _abandoned(after, frozenset({reserved_slot(before, action.slot)}))


def _reset_abandons(_machine: Machine, before: State, _action: Reset, after: State) -> State:
    slots = frozenset(range(before.geometry.slots))
    return _abandoned(after._replace(flights=before.flights), slots)


def _drop_reaches(_machine: Machine, before: State, _action: Drop, after: State) -> State:
    """What is in flight is computed with the weights from before it."""
    stale = tuple(known or bool(parts_of(before, slot)) for slot, known in enumerate(after.stale))
    return after._replace(stale=stale)


# The edge: the same steps, one after another.


def _one_after_another(state: State) -> State:
    """The state in which no step in flight was dispatched."""
    begun: dict[int, int] = {}
    for flight in state.flights:
        for part in flight.parts:
            if part.current:
                begun.setdefault(part.slot, part.first)
    state = state._replace(flights=())
    for slot, length in begun.items():
        state = cut(state, slot, length)
        state = state._replace(proposed=with_entry(state.proposed, slot, ()))
    return state


def _lower(
    _machine: Machine, state: State, action: Action, pages: Pages | None
) -> tuple[Part, ...]:
    """A step is done when it is delivered, and what it does past the end of a sequence never.

    Rounds wait for steps in flight, so Generate does none beside them.
    """
    match action:
        case Dispatch() | Retire():
            return ()
        case Generate() if state.flights:
            return ()
        case Deliver():
            return tuple(_whole_step(state))
        case Reserve(slot):
            return ((evolve(action, slot=reserved_slot(state, slot)), pages),)
        case Clone(child=child):
            return ((evolve(action, child=reserved_slot(state, child)), pages),)
        case _:
            return ((action, pages),)


def _whole_step(state: State) -> Iterator[Part]:
    """The oldest step in flight: its cells, in the pages that its rows have, and its draws."""
    parts = [part for part in state.flights[0].parts if part.current]
    batch = tuple((part.slot, at) for part in parts for at in range(part.first, part.end))
    whole = ((Allocate(batch), None), (Write(batch), None)) if batch else ()
    for action, _ in narrow(state.limits, whole):
        yield action, _pages_of(state, action) if isinstance(action, Allocate) else None
    for part in parts:
        if part.draws:
            yield _sample(state, part.slot, len(used(state, part.slot).tokens)), None
    if tidies(_delivered(state)):
        yield FreeFinished(), None


def _pages_of(state: State, action: Allocate) -> Pages:
    """The pages of rows that are there for these positions."""
    taken = list[int]()
    for slot, positions in by_slot(action.batch).items():
        sequence = used(state, slot)
        start = row_pages(state, positions[0], sequence.reserved)
        end = row_pages(state, positions[-1] + 1, sequence.reserved)
        taken += sequence.row[start:end]
    return tuple(taken)


def _compared(state: State) -> object:
    """What can be seen of each slot, by its contents: a step takes its pages when it is dispatched.

    Outputs and the ends of sequences beside it.
    """
    found = list[object]()
    for slot, sequence in enumerate(state.sequences):
        if sequence is None:
            found.append(None)
            continue
        query = state.committed[slot]
        first = visible(query, query + 1, state.geometry.window).start
        cells = read(state.cells, sequence, first)
        found.append((sequence.tokens, sequence.allocated, sequence.written, cells))
    return found, state.committed, state.proposed, state.details, state.outputs


NAME: Final = "flights"
_ALLOCATED: Final = ChecksOf[Dispatch](
    kind=Allocate,
    action=lambda _machine, state, action: Allocate(batch_of(state, action)),
    below="lifecycle",
    never={
        Reason.SLOT_RANGE: "the slots of chunks are in range",
        Reason.SLOT_UNUSED: "the slots of chunks are in use",
        next_to_allocate: "the positions are the next ones",
        row_fits: "a token of the step is known, or drawn in flight before the last one",
    },
)
_UNLESS: Final = SLOT_REASONS | {Reason.BATCH_WIDTH}
_SLOT_WAITS: Final[Stages[Any]] = (Stage((_not_in_flight,), unless=_UNLESS, first=True),)
"""Whether a slot is in flight is asked right after whether it can be acted on at all."""
_STEP_WAITS: Final[Stages[Any]] = before_room(_none_in_flight)
RUNG = Rung(
    name=NAME,
    requires=("rollback", "scheduling"),
    owns=("flights",),
    rules={
        Dispatch: Rule(
            stages=(
                *in_order(slots_in_range),
                Stage((slots_in_use, _once_each)),
                Stage((has_prompt, unfinished)),
                *in_order(_some_slot, _settled, _without_drafts, _within_reach, _another_to_draw),
                *in_order(_within_budget),
                Stage((_ALLOCATED, _few_open, _outputs_fit, _queue_fits)),
            ),
            effect=_dispatch,
            pages_wanted=lambda machine, state, action: machine.pages_wanted(
                state, Allocate(batch_of(state, action))
            ),
        ),
        Retire: Rule(stages=in_order(_some_to_retire), effect=_retire),
        Deliver: Rule(stages=in_order(_oldest_retired), effect=_deliver),
    },
    guards={
        Allocate: _SLOT_WAITS,
        Append: _SLOT_WAITS,
        Propose: _SLOT_WAITS,
        Commit: _SLOT_WAITS,
        Truncate: _SLOT_WAITS,
        Replay: _SLOT_WAITS,
        Write: _STEP_WAITS,
        Prefill: _STEP_WAITS,
        Round: _STEP_WAITS,
        MixedRound: _STEP_WAITS,
        Reserve: in_order(_slot_not_held),
        Clone: (Stage((_parent_not_in_flight, _child_not_held), unless=_UNLESS, first=True),),
    },
    follows={Free: _free_abandons, Reset: _reset_abandons, Drop: _drop_reaches},
    clauses=("SNAP", "SETTLED", "FENCE", "HELD"),
    edges=(Edge(abstract=_one_after_another, lower=_lower, compared=_compared),),
    meets={
        "naive": Meet("ALONE", "Deliver: done"),
        "cache": "independent",
        "pages": Meet("HELD", "free a slot in flight, with a full pool"),
        "sharing": Meet("SETTLED", "Clone: IN_FLIGHT"),
        "rollback": Meet("RB", "stop before a later step in flight"),
        "window": Meet("WIN", "release beside a step in flight"),
        "prefix": Meet("SETTLED", "publish beside a step in flight"),
        "lifecycle": Meet("OUT", "stop after a later step has drawn"),
        "scheduling": Meet("Q", "deliver a token that is in flight already"),
        "chunks": Meet("ALONE", "two chunks of a prompt in flight"),
        "preemption": Meet("FENCE", "preempt a request in flight"),
        "admission": Meet("PROG", "Admit: IN_FLIGHT"),
    },
)
