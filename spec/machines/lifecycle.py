"""Rung lifecycle: sequences belong to requests, finish, leave their output behind, and are freed.

The rung is an extension by construction. It adds that freed cells are never read again, and that
outputs survive cleanup. Source: docs/sources.md, "Cleanup", "Reset invariants" and "Cleanup modes".
"""

from collections.abc import Iterator

from attrs import evolve

from spec.machines import naive
from spec.machines.actions import (
    Action,
    Allocate,
    Append,
    Assign,
    Clone,
    Free,
    FreeFinished,
    Propose,
    Reset,
    Sample,
    TakeOutputs,
    Write,
)
from spec.machines.pages import (
    require_in_range,
    require_used,
    reserved_slot,
    used,
    with_entry,
)
from spec.rung import Edge, Machine, Meet, Pages, Part, Rule, Rung
from spec.state import Detail, Output, State
from spec.table import by_slot
from spec.vocabulary import Geometry, Limits, Params, Reason, Refusal, Tokens
from spec.vocabulary.errors import Family

Key = tuple[int, int]
"""(request, choice)."""
Refusals = frozenset[Refusal]


def detail_of(state: State, slot: int) -> Detail:
    """The detail of a slot that has a prompt."""
    detail = state.details[slot]
    if detail is None:
        raise KeyError(slot)
    return detail


def taken_keys(state: State) -> frozenset[Key]:
    """The (request, choice) pairs that are live, or whose output is not taken yet."""
    live = {(detail.request, detail.choice) for detail in state.details if detail}
    return frozenset(live | {(output.request, output.choice) for output in state.outputs})


def request_refusals(geometry: Geometry, prompt_len: int, params: Params) -> Iterator[Refusal]:
    """A prompt and its `max_new` tokens must fit one row."""
    whole = prompt_len + params.max_new
    if whole > geometry.max_len:
        yield Refusal(Reason.TOO_LONG, whole, f"at most {geometry.max_len} tokens")


def stop_refusals(limits: Limits, stops: tuple[Tokens, ...]) -> Iterator[Refusal]:
    """Stop sequences must fit their static table."""
    longest = max((len(stop) for stop in stops), default=0)
    if len(stops) > limits.stops or longest > limits.stop_len:
        allowed = f"at most {limits.stops} of {limits.stop_len} tokens"
        yield Refusal(Reason.STOPS, f"{len(stops)}, the longest of {longest} tokens", allowed)


def room_to_draw(state: State, slot: int, known: int) -> Iterator[Refusal]:
    """With one more known token, a sequence must still be able to draw at least one."""
    detail = detail_of(state, slot)
    generated = known - detail.prompt_len
    if generated + 1 >= detail.params.max_new:
        allowed = f"fewer than {detail.params.max_new - 1} generated tokens"
        yield Refusal(Reason.TOO_LONG, generated, allowed)


def _initial(state: State) -> State:
    return state._replace(details=(None,) * state.geometry.slots)


def _assign_refusals(_machine: Machine, state: State, action: Assign) -> Iterator[Refusal]:
    yield from stop_refusals(state.limits, action.params.stops)
    problems = tuple(require_used(state, action.slot))
    yield from problems
    if problems:
        return
    if state.details[action.slot] is not None:
        yield Refusal(Reason.SLOT_ASSIGNED, action.slot, "a slot without a prompt")
    yield from request_refusals(state.geometry, len(action.prompt), action.params)
    if (action.request, action.choice) in taken_keys(state):
        yield Refusal(Reason.CHOICE_TAKEN, (action.request, action.choice), "an unused pair")


def _assign(machine: Machine, state: State, action: Assign, _pages: Pages | None) -> State:
    state = machine.effect(state, Append(action.slot, action.prompt))
    detail = Detail(action.request, action.choice, len(action.prompt), action.params)
    return _with_detail(state, action.slot, detail)


def _free_finished(
    machine: Machine, state: State, _action: FreeFinished, _pages: Pages | None
) -> State:
    return machine.fold(state, _frees(state.finished))


def _reset(machine: Machine, state: State, _action: Reset, _pages: Pages | None) -> State:
    return machine.cleared(state)


def _take_outputs(
    _machine: Machine, state: State, _action: TakeOutputs, _pages: Pages | None
) -> State:
    return state._replace(outputs=())


def _clone_detail(_machine: Machine, before: State, action: Clone, after: State) -> State:
    child = reserved_slot(before, action.child)
    detail = evolve(detail_of(before, action.parent), choice=action.choice)
    return _with_detail(after, child, detail)


def _free_detail(_machine: Machine, before: State, action: Free, after: State) -> State:
    return _with_detail(after, reserved_slot(before, action.slot), None)


def _finish(_machine: Machine, _before: State, action: Sample, after: State) -> State:
    """Mark the sequence finished and keep its output, if its last token ended it."""
    slot = reserved_slot(after, action.slot)
    detail, tokens = detail_of(after, slot), used(after, slot).tokens
    prompt, generated = tokens[: detail.prompt_len], tokens[detail.prompt_len :]
    reason = naive.finish(generated, detail.params)
    if reason is None:
        return after
    output = Output(detail.request, detail.choice, prompt, generated, reason)
    after = after._replace(outputs=(*after.outputs, output))
    return _with_detail(after, slot, evolve(detail, finished=reason))


def _with_detail(state: State, slot: int, detail: Detail | None) -> State:
    return state._replace(details=with_entry(state.details, slot, detail))


def _parent_decodes(_machine: Machine, state: State, action: Clone, found: Refusals) -> Refusals:
    """A parent must have a prompt and not have finished; the child's choice must be unused."""
    if any(refusal.reason.family is Family.SLOT for refusal in found):
        return found
    detail = state.details[action.parent]
    if detail is None:
        return found | {Refusal(Reason.SLOT_EMPTY, action.parent, "a parent with a prompt")}
    if detail.finished:
        allowed = "a parent that has not finished"
        return found | {Refusal(Reason.SLOT_FINISHED, action.parent, allowed)}
    if (detail.request, action.choice) in taken_keys(state):
        key = (detail.request, action.choice)
        return found | {Refusal(Reason.CHOICE_TAKEN, key, "an unused pair")}
    return found


def _one_unfinished(
    _machine: Machine, state: State, action: Append | Sample, found: Refusals
) -> Refusals:
    return _unfinished(state, [action.slot], needs_prompt=True) or found


def _proposals_fit(machine: Machine, state: State, action: Propose, found: Refusals) -> Refusals:
    """Proposed tokens must leave room to draw, as enqueued ones must."""
    problems = _unfinished(state, [action.slot], needs_prompt=True) or found
    if problems:
        return problems
    known = len(machine.known(state, action.slot)) + len(action.tokens) - 1
    return frozenset(room_to_draw(state, action.slot, known))


def _allocate_fits(_machine: Machine, state: State, action: Allocate, found: Refusals) -> Refusals:
    unfinished = _unfinished(state, list(by_slot(action.batch)), needs_prompt=False)
    return _too_wide(state, action) or unfinished or found


def _write_fits(_machine: Machine, state: State, action: Write, found: Refusals) -> Refusals:
    unfinished = _unfinished(state, list(by_slot(action.batch)), needs_prompt=True)
    return _too_wide(state, action) or unfinished or found


def _too_wide(state: State, action: Allocate | Write) -> Refusals:
    """A batch must fit the limit."""
    width = state.limits.prefill_tokens
    if len(action.batch) <= width:
        return frozenset()
    return frozenset([Refusal(Reason.BATCH_WIDTH, len(action.batch), f"at most {width} entries")])


def _unfinished(state: State, slots: list[object], *, needs_prompt: bool) -> Refusals:
    """Slots in use must not have finished; other rules refuse a slot that is not in use."""
    problems = set[Refusal]()
    for slot in slots:
        if not isinstance(slot, int) or any(require_in_range(state, slot)):
            return frozenset()
        if state.sequences[slot] is None:
            return frozenset()
        detail = state.details[slot]
        if detail is None and needs_prompt:
            problems.add(Refusal(Reason.SLOT_EMPTY, slot, "a slot with a prompt"))
        elif detail and detail.finished:
            problems.add(Refusal(Reason.SLOT_FINISHED, slot, "a sequence that has not finished"))
    return frozenset(problems)


def _frees(slots: tuple[int, ...]) -> tuple[Part, ...]:
    return tuple((Free(slot), None) for slot in slots)


def _lower(
    _machine: Machine, state: State, action: Action, pages: Pages | None
) -> tuple[Part, ...]:
    """Assign lowers to an append; a cleanup or reset frees one sequence after another."""
    match action:
        case Assign(slot, prompt):
            return ((Append(slot, prompt), None),)
        case FreeFinished():
            return _frees(state.finished)
        case Reset():
            return _frees(tuple(slot for slot, found in enumerate(state.sequences) if found))
        case TakeOutputs():
            return ()
        case _:
            return ((action, pages),)


RUNG = Rung(
    name="lifecycle",
    requires=("sharing",),
    owns=("details", "outputs"),
    initial=_initial,
    rules={
        Assign: Rule(refusals=_assign_refusals, effect=_assign),
        FreeFinished: Rule(effect=_free_finished),
        Reset: Rule(effect=_reset),
        TakeOutputs: Rule(effect=_take_outputs),
    },
    guards={
        Append: _one_unfinished,
        Sample: _one_unfinished,
        Allocate: _allocate_fits,
        Write: _write_fits,
        Clone: _parent_decodes,
        Propose: _proposals_fit,
    },
    follows={Clone: _clone_detail, Free: _free_detail, Sample: _finish},
    clauses=("OUT", "RESET"),
    edges=(Edge(lower=_lower),),
    meets={
        "naive": "independent",
        "cache": "independent",
        "pages": Meet("CONS", "free at a page boundary"),
        "sharing": Meet("UAF", "free a parent before its clone"),
        "rollback": Meet("RB", "free a slot with proposed tokens"),
        "window": Meet("CONS", "free after a release"),
    },
)
