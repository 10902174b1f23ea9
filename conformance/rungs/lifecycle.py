"""Rung lifecycle: generators of prompts, cleanups and resets, and the outcomes to reach."""

from collections.abc import Iterator
from itertools import permutations, product
from typing import Final

from attrs import evolve

from conformance.history import Attend, PoisonDead, Step
from conformance.protocol import Action, Poison, Result
from conformance.rungs import scheduling
from conformance.rungs.pages import (
    append,
    boundary,
    fitted,
    needs_page,
    reuse,
    together,
)
from conformance.rungs.record import ActionKit, DrawRule, Move, RungKit, Session
from conformance.rungs.scheduling import enqueue
from conformance.rungs.shared_generators import (
    LARGEST,
    Digits,
    allocated,
    cells_in,
    constant,
    first_queued,
    name_of,
    named,
    params_of,
    prompt_of,
    rarely,
    taken_name,
    used_slots,
    when,
    wild_slot,
)
from conformance.rungs.shared_moves import (
    assign_again,
    assign_another,
    batches,
    clone_to_any,
    fixed,
    never_legal,
    slots_of,
)
from conformance.rungs.simpler import simpler_params, smaller
from spec import pool
from spec.fields import output_entry
from spec.machines import actions as act
from spec.machines.actions import (
    Allocate,
    Assign,
    Clone,
    Free,
    FreeFinished,
    Pack,
    Prefill,
    Reserve,
    Reset,
    TakeOutputs,
    Write,
)
from spec.machines.window import most_cells
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import Geometry, Limits, Params, Request, ResetMode

RESET: Final = constant(Reset(), Reset(ResetMode.PHYSICAL))
TAKE_OUTPUTS: Final = constant(TakeOutputs())
CLEANUPS: Final = frozenset({FreeFinished, TakeOutputs})
"""The actions that do something only after a sequence has finished."""
CLEAN_UP: Final = constant(FreeFinished(), TakeOutputs())
_PARAMS: Final = Params(max_new=1)


def assign(state: State, drawn: int, serial: int) -> Assign:
    """A prompt for a slot, and a limit that often ends exactly at a page boundary.

    If its pages are reserved, often a limit that takes all free pages, or one page more.
    """
    digits = Digits(drawn)
    details = state.details
    name = (name_of(state, digits, serial), LARGEST if digits.rarely(16) else digits.below(2))
    if digits.rarely(8):
        name = taken_name(state, digits) or name
    bare = [slot for slot in used_slots(state) if details[slot] is None]
    slot = wild_slot(state, digits, bare or used_slots(state))
    prompt = prompt_of(state, digits)
    params = params_of(state, digits, prompt, choice=0)
    if state.capacity.reserve == "request" and digits.below(2):
        params = evolve(params, max_new=_filling(state, digits, slot, len(prompt)))
    return Assign(slot, prompt, params, *name)


def ended_name(session: Session, drawn: int) -> Assign | Clone:
    """A prompt or a clone under the name of a sequence that has ended, once its output is taken.

    A slot that still keeps the name refuses it; else it is free from this step on.
    """
    digits, serial = Digits(drawn), session.next_id()
    taken = {(one.request, one.choice) for one in session.state.outputs}
    session.take(TakeOutputs())
    held = {(one.request, one.choice): one for one in session.state.details if one is not None}
    kept = {name for name, one in held.items() if one.finished}
    causes = [sorted(names) for names in (kept, taken - held.keys()) if names]
    if not causes:
        return assign(session.state, drawn, serial)
    request, choice = digits.one_of(digits.one_of(causes))
    siblings = [slot for slot in session.state.live if _request(session.state, slot) == request]
    if siblings and digits.below(2):
        return Clone(digits.one_of(siblings), None, choice)
    if None not in (session.state.details[slot] for slot in used_slots(session.state)):
        session.take(Reserve())
    bare = [slot for slot in used_slots(session.state) if session.state.details[slot] is None]
    drawn_so = assign(session.state, drawn // 64, serial)
    slot = bare[0] if bare else drawn_so.slot
    return evolve(drawn_so, slot=slot, request=request, choice=choice)


def _request(state: State, slot: int) -> int | None:
    detail = state.details[slot]
    return None if detail is None else detail.request


def _filling(state: State, digits: Digits, slot: int, prompt_len: int) -> int:
    """A limit with which the reservation takes exactly the free pages, or one page more."""
    sequence = state.sequences[slot] if 0 <= slot < len(state.sequences) else None
    row = () if sequence is None else sequence.row
    pages = len(row) + pool.free_count(state.in_use) + digits.below(2)
    return max(1, pages * state.geometry.page_size - prompt_len)


def advance(session: Session, drawn: int) -> Step:
    """The next action that some sequence needs before it is written; else one more token."""
    state, serial, digits = session.state, session.next_id(), Digits(drawn)
    used = used_slots(state)
    start = digits.below(max(len(used), 1))
    for slot in used[start:] + used[:start]:
        sequence, detail = state.sequences[slot], state.details[slot]
        if sequence is None or (detail and detail.finished):
            continue
        if detail is None:
            return evolve(assign(state, drawn // 8, serial), slot=slot)
        ready = first_queued(state, slot, len(sequence.tokens))
        if sequence.written < min(ready, sequence.allocated):
            last = min(ready, sequence.allocated)
            return Write(tuple((slot, position) for position in range(sequence.written, last)))
        if sequence.allocated < len(sequence.tokens):
            end = max(sequence.allocated + 1, min(len(sequence.tokens), most_cells(state, slot)))
            more = range(sequence.allocated, end)
            return Allocate(tuple((slot, position) for position in more))
        if ready < len(sequence.tokens):
            return Pack()
    if state.unused_slots:
        return Reserve()
    return (append if "append" in session.rules else enqueue)(state, drawn)


def taking(session: Session, drawn: int) -> Action:
    """A clone, an allocation of one slot or of several, or a prefill; each takes pages."""
    digits, serial = Digits(drawn), session.next_id()
    wanted = digits.below(6)
    if wanted > 3 and (slots := _several(session, digits)):
        return Allocate(tuple(fitted(session.state, slots, len(slots))))
    state, size = session.state, session.state.geometry.page_size
    partial = [slot for slot in state.live if needs_page(state, slot)]
    grows = [
        slot
        for slot in used_slots(state)
        if slot not in state.finished and allocated(state, slot) + size <= state.geometry.max_len
    ]
    if wanted != 1 and partial:
        return Clone(digits.one_of(partial), None, 1 + digits.below(5))
    if wanted != 2 and grows:
        slot = digits.one_of(grows)
        start = allocated(state, slot)
        return Allocate(tuple((slot, start + step) for step in range(cells_in(state, 0, slot) + 1)))
    return Prefill((Request(id=serial, prompt=(0,), params=Params(max_new=1)),))


def _several(session: Session, digits: Digits) -> tuple[int, ...]:
    """Several slots for one batch, some of them reserved for it; none while the pool is full."""
    if not pool.free_count(session.state.in_use):
        return ()
    for _ in range(len(session.state.unused_slots) - 1):
        if not together(session.state, digits):
            session.take(Reserve())
    return together(session.state, digits)


def _simpler_assign(action: Assign) -> Iterator[Step]:
    if len(action.prompt) > 1:
        yield evolve(action, prompt=action.prompt[:-1])
    if action.choice:
        yield evolve(action, choice=0)
    for choice in smaller(action.choice):
        yield evolve(action, choice=choice)
    for params in simpler_params(action.params):
        yield evolve(action, params=params)
    for name in smaller(action.request):
        yield evolve(action, request=name)


def _outputs(
    _machine: Machine, before: State, _action: TakeOutputs, _after: State
) -> tuple[Result, ...]:
    return (tuple(map(output_entry, before.outputs)),)


def _has_outputs(state: State) -> object:
    return state.outputs


def _has_finished(state: State) -> object:
    return state.finished


def _has_ended(state: State) -> object:
    return state.finished or state.outputs


def _or_clean_up(rule: DrawRule) -> DrawRule:
    """This rule, or rarely a cleanup if the engine has no turns at the level that draws those."""

    def chosen(session: Session, drawn: int) -> Step:
        offered = session.actions
        if CLEANUPS.isdisjoint(offered) or scheduling.KIT.needs <= offered:
            return rule(session, drawn)
        return (CLEAN_UP if drawn % 4 == 3 else rule)(session, drawn // 4)

    return chosen


def alphabet(geometry: Geometry, _limits: Limits) -> Iterator[Move]:
    """Two prompts of the greatest length; the choice of a sequence is the number of its slot."""
    ids = range(geometry.slots + 1)
    for slot in ids:
        yield fixed(act.Reserve(slot), f"reserve({slot})")
    for slot, first in product(ids, (1, 2)):
        prompt = (first,) * max(1, geometry.max_len - 1)
        assign = act.Assign(slot, prompt, Params(max_new=1), 1, slot)
        yield fixed(assign, f"assign({slot}, {first})")
    for slot in range(geometry.slots):
        yield assign_another(slot, geometry.slots)
    for slot, other in permutations(range(geometry.slots), 2):
        yield assign_again(slot, other)
    yield from batches(range(geometry.slots), geometry.page_size)
    yield from slots_of(geometry, lambda child: child, lambda parent: parent)
    yield fixed(act.Reserve(), "reserve()")
    for slot in range(geometry.slots):
        yield clone_to_any(slot)
        long = act.Assign(slot, (1,) * geometry.max_len, Params(max_new=1), 1, slot)
        yield fixed(long, f"assign({slot}, too long)")
        stopped = evolve(long, prompt=(1,), params=Params(max_new=1, stops=((1,),) * 2))
        yield fixed(stopped, f"assign({slot}, two stops)")
    yield from never_legal(geometry)


KIT: Final = RungKit(
    rung="lifecycle",
    actions={
        Assign: ActionKit(
            simpler=_simpler_assign,
        ),
        FreeFinished: ActionKit(),
        Reset: ActionKit(state_clause="RESET"),
        TakeOutputs: ActionKit(results=_outputs, result_clause="OUT"),
    },
    rules={
        "lifecycle": {
            "assign": named(assign),
            "advance": advance,
            "advance_again": advance,
            "boundary": boundary("advance", taking),
            "boundary_again": boundary("advance", taking),
            "reset": _or_clean_up(rarely(8, RESET, "allocate")),
            "reuse": rarely(8, reuse, "advance"),
            "ended_name": when(_has_ended, ended_name, "advance"),
        },
        "scheduling": {
            "boundary": boundary("prefill", taking),
            "free_finished": when(_has_finished, constant(FreeFinished()), "go_on"),
            "take_outputs": when(_has_outputs, TAKE_OUTPUTS, "go_on"),
            "ended_name": when(_has_ended, ended_name, "go_on"),
            "reset": rarely(8, RESET, "prefill"),
        },
        "admission": {
            "take_outputs": _or_clean_up(when(_has_outputs, TAKE_OUTPUTS, "serve")),
            "reset": rarely(8, RESET, "serve"),
        },
    },
    needs=frozenset({Reserve}),
    warmup=(
        Reserve(),
        Assign(0, (1,), _PARAMS, 1),
        act.Append(0, (1,)),
        Allocate(((0, 0),)),
        Write(((0, 0),)),
        Attend(),
        PoisonDead(Poison.NAN),
        PoisonDead(Poison.LIVE),
        Free(0),
        FreeFinished(),
        TakeOutputs(),
        Reset(),
        Reset(ResetMode.PHYSICAL),
    ),
    alphabet=alphabet,
    driven={"RESET": (Reset,)},
)
