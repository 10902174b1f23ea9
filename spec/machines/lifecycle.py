"""Rung lifecycle: sequences belong to requests, finish, leave their output behind, and are freed.

The rung adds that freed cells are never read again, and that outputs survive cleanup. It is an
extension by construction, except where the capacity policy reserves the pages of a request when its
prompt is assigned: seen from sharing nothing is reserved, and each page is taken by the allocation
or the clone that needs it. Source: docs/sources.md, "Cleanup", "Reset invariants", "Cleanup modes"
and "Page budget".
"""

from collections.abc import Iterator
from typing import Any, Final

from attrs import evolve

from spec import index, pool
from spec.machines import naive
from spec.machines.actions import (
    Action,
    Allocate,
    Append,
    Assign,
    Clone,
    Dispatch,
    Drop,
    Evict,
    Free,
    FreeFinished,
    Hit,
    MixedRound,
    Propose,
    Replay,
    Reset,
    Sample,
    Share,
    TakeOutputs,
    Write,
)
from spec.machines.pages import (
    NO_SEQUENCE,
    SLOT_IN_USE,
    pages_to_reserve,
    release_row,
    reserved_slot,
    row_pages,
    slots_of,
    used,
    with_entry,
    with_reserved,
    with_sequence,
)
from spec.rung import (
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
from spec.state import Detail, Output, State
from spec.vocabulary import Geometry, Limits, Params, Reason, Tokens
from spec.vocabulary.errors import SLOT_REASONS

Key = tuple[int, int]
"""(request, choice)."""


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


def too_long(geometry: Geometry, prompt_len: int, params: Params) -> Faults:
    """A prompt and its `max_new` tokens must fit one row."""
    whole = prompt_len + params.max_new
    if whole > geometry.max_len:
        yield whole, f"at most {geometry.max_len} tokens"


def too_many_stops(limits: Limits, stops: tuple[Tokens, ...]) -> Faults:
    """Stop sequences must fit their static table."""
    longest = max((len(stop) for stop in stops), default=0)
    if len(stops) > limits.stops or longest > limits.stop_len:
        allowed = f"at most {limits.stops} of {limits.stop_len} tokens"
        yield f"{len(stops)}, the longest of {longest} tokens", allowed


def no_room_to_draw(state: State, slot: int, known: int) -> Faults:
    """With one more known token, a sequence must still be able to draw at least one."""
    detail = detail_of(state, slot)
    generated = known - detail.prompt_len
    if generated + 1 >= detail.params.max_new:
        yield generated, f"fewer than {detail.params.max_new - 1} generated tokens"


def _initial(state: State) -> State:
    return state._replace(details=(None,) * state.geometry.slots)


@check(Reason.STOPS)
def _stops_fit(_machine: Machine, state: State, action: Assign) -> Faults:
    """There are more than `limits.stops` stop sequences, or one is longer than
    `limits.stop_len`.
    """
    yield from too_many_stops(state.limits, action.params.stops)


@check(Reason.SLOT_ASSIGNED)
def _no_prompt_yet(_machine: Machine, state: State, action: Assign) -> Faults:
    """The slot already has a prompt."""
    if state.details[action.slot] is not None:
        yield action.slot, "a slot without a prompt"


@check(Reason.TOO_LONG)
def _request_fits(_machine: Machine, state: State, action: Assign) -> Faults:
    """The prompt and `max_new` tokens are more than `max_len`."""
    yield from too_long(state.geometry, len(action.prompt), action.params)


@check(Reason.CHOICE_TAKEN)
def _choice_unused(_machine: Machine, state: State, action: Assign) -> Faults:
    """The pair (`request`, `choice`) is live in a slot, or its output is not taken yet."""
    if (action.request, action.choice) in taken_keys(state):
        yield (action.request, action.choice), "an unused pair"


@check(Reason.OUT_OF_PAGES)
def _pages_free(machine: Machine, state: State, action: Assign) -> Faults:
    """More pages are reserved than are free: those that the row lacks for the prompt and `max_new`
    tokens. Without a reservation no page is taken.
    """
    wanted, free = machine.pages_wanted(state, action), pool.free_count(state.in_use)
    if wanted > free:
        yield wanted, f"at most {free} pages"


def _pages_wanted(_machine: Machine, state: State, action: Assign) -> int:
    return pages_to_reserve(state, action.slot, _reserved(state, action))


def _reserved(state: State, action: Assign) -> int:
    return state.capacity.reserved_cells(len(action.prompt), action.params.max_new)


def _assign(machine: Machine, state: State, action: Assign, pages: Pages | None) -> State:
    state = with_reserved(state, action.slot, _reserved(state, action), pages)
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
    return ended(after, reserved_slot(after, action.slot))


def ended(state: State, slot: int) -> State:
    """Mark a sequence finished and keep its output, if its last token ended it."""
    detail, tokens = detail_of(state, slot), used(state, slot).tokens
    prompt, generated = tokens[: detail.prompt_len], tokens[detail.prompt_len :]
    reason = naive.finish(generated, detail.params)
    if reason is None:
        return state
    output = Output(detail.request, detail.choice, prompt, generated, reason)
    state = state._replace(outputs=(*state.outputs, output))
    return _with_detail(state, slot, evolve(detail, finished=reason))


def _with_detail(state: State, slot: int, detail: Detail | None) -> State:
    return state._replace(details=with_entry(state.details, slot, detail))


@check(Reason.SLOT_EMPTY)
def has_prompt(
    _machine: Machine,
    state: State,
    action: Append | Sample | Write | Propose | Hit | Share | MixedRound | Replay | Dispatch,
) -> Faults:
    """A slot has no prompt."""
    for slot in slots_of(action):
        if isinstance(slot, int) and state.details[slot] is None:
            yield slot, "a slot with a prompt"


@check(Reason.SLOT_FINISHED)
def unfinished(
    _machine: Machine,
    state: State,
    action: (
        Append | Sample | Allocate | Write | Propose | Hit | Share | MixedRound | Replay | Dispatch
    ),
) -> Faults:
    """The sequence in a slot has finished."""
    finished = state.finished
    for slot in slots_of(action):
        if slot in finished:
            yield slot, "a sequence that has not finished"


@check(Reason.SLOT_EMPTY)
def _parent_has_prompt(_machine: Machine, state: State, action: Clone) -> Faults:
    """The parent has no prompt."""
    if state.details[action.parent] is None:
        yield action.parent, "a parent with a prompt"


@check(Reason.SLOT_FINISHED)
def _parent_unfinished(_machine: Machine, state: State, action: Clone) -> Faults:
    """The parent has finished."""
    if action.parent in state.finished:
        yield action.parent, "a parent that has not finished"


@check(Reason.CHOICE_TAKEN)
def _child_unused(_machine: Machine, state: State, action: Clone) -> Faults:
    """The pair (request of the parent, `choice`) is live in a slot, or its output is not taken
    yet.
    """
    key = (detail_of(state, action.parent).request, action.choice)
    if key in taken_keys(state):
        yield key, "an unused pair"


@check(Reason.TOO_LONG)
def _leaves_room_to_draw(machine: Machine, state: State, action: Propose) -> Faults:
    """With these tokens, `max_new` tokens or more, known and proposed, would follow the prompt."""
    known = len(machine.known(state, action.slot)) + len(action.tokens) - 1
    yield from no_room_to_draw(state, action.slot, known)


@check(Reason.BATCH_WIDTH)
def _width(_machine: Machine, state: State, action: Allocate | Write) -> Faults:
    """The batch has more than `limits.prefill_tokens` entries, padding included."""
    if len(action.batch) > state.limits.prefill_tokens:
        yield len(action.batch), f"at most {state.limits.prefill_tokens} entries"


_DECODES: Final[Stages[Any]] = (Stage((has_prompt, unfinished), unless=NO_SEQUENCE, first=True),)
"""The sequences of an action have prompts and go on; this is checked as soon as there are any."""
_WITHIN_WIDTH: Final[Stages[Any]] = (Stage((_width,), unless=frozenset(), first=True),)


def _frees(slots: tuple[int, ...]) -> tuple[Part, ...]:
    return tuple((Free(slot), None) for slot in slots)


def _nothing_reserved(state: State) -> State:
    """The state in which rows cover what is allocated and taken ahead, and nothing else."""
    if state.capacity.reserve == "none":
        return state
    for slot, sequence in enumerate(state.sequences):
        if sequence is not None:
            kept = row_pages(state, sequence.allocated, 0)
            shorter = evolve(sequence, row=sequence.row[:kept], reserved=0)
            state = release_row(with_sequence(state, slot, shorter), sequence.row[kept:])
    return state


def _taken(before: State, after: State) -> Pages:
    """The pages that an allocation or a clone takes where nothing is reserved, in order of taking.

    They are those that rows name after it, and that were free before it.
    """
    counts = _nothing_reserved(before).counts
    return tuple(
        page
        for sequence in _nothing_reserved(after).sequences
        if sequence is not None
        for page in sequence.pages
        if pool.is_free(counts, page)
    )


def _evictions(before: State, after: State, taken: Pages) -> Iterator[Part]:
    """The evictions of the idle pages that are reserved by an action, beside those it takes."""
    left = index.without(before.indexed, taken)
    for page in index.idle(before.indexed, before.counts):
        entry = left[page]
        if entry is not None and not index.has(after.indexed, page):
            yield Evict(entry.chain, entry.context), None
            left = index.without(left, (page,))


def _lower(machine: Machine, state: State, action: Action, pages: Pages | None) -> tuple[Part, ...]:
    """Assign lowers to an append; a cleanup or reset frees one sequence after another.

    What is reserved above is taken below by the action that needs it, in the same pages. Idle ones
    leave the index when they are reserved.
    """
    match action:
        case Allocate() | Clone() if state.capacity.reserve == "request":
            after = machine.effect(state, action, pages)
            taken = _taken(state, after)
            return ((action, taken), *_evictions(state, after, taken))
        case Hit(slot=slot, length=length) | Share(slot=slot, length=length) if (
            state.capacity.reserve == "request"
        ):
            after = _nothing_reserved(machine.effect(state, action, pages))
            return ((action, used(after, slot).row[length // state.geometry.page_size :]),)
        case Assign(slot, prompt):
            after = machine.effect(state, action, pages) if state.indexed else state
            return ((Append(slot, prompt), None), *_evictions(state, after, ()))
        case FreeFinished():
            return _frees(state.finished)
        case Reset():
            slots = tuple(slot for slot, found in enumerate(state.sequences) if found)
            return (*_frees(slots), *[(Drop(), None)] * (Drop in machine.rules))
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
        Assign: Rule(
            stages=(
                *SLOT_IN_USE,
                Stage((_no_prompt_yet, _request_fits, _choice_unused)),
                Stage((_stops_fit,), unless=frozenset()),
                *in_order(_pages_free),
            ),
            effect=_assign,
            pages_wanted=_pages_wanted,
        ),
        FreeFinished: Rule(effect=_free_finished),
        Reset: Rule(effect=_reset),
        TakeOutputs: Rule(effect=_take_outputs),
    },
    guards={
        Append: _DECODES,
        Sample: _DECODES,
        Allocate: (Stage((unfinished,), unless=NO_SEQUENCE, first=True), *_WITHIN_WIDTH),
        Write: (*_DECODES, *_WITHIN_WIDTH),
        Clone: (
            Stage((_parent_has_prompt, _parent_unfinished), unless=SLOT_REASONS),
            Stage((_child_unused,), unless=SLOT_REASONS),
        ),
        Propose: (*_DECODES, *in_order(_leaves_room_to_draw)),
        Hit: _DECODES,
        Share: _DECODES,
    },
    follows={Clone: _clone_detail, Free: _free_detail, Sample: _finish},
    clauses=("OUT", "RESET"),
    edges=(Edge(abstract=_nothing_reserved, lower=_lower),),
    meets={
        "naive": "independent",
        "cache": "independent",
        "pages": Meet("CONS", "free at a page boundary"),
        "sharing": Meet("UAF", "free a parent before its clone"),
        "rollback": Meet("RB", "free a slot with proposed tokens"),
        "window": Meet("CONS", "free after a release"),
        "prefix": Meet("CONS", "free a slot with pages of the index"),
    },
)
