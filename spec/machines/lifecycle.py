"""Rung 4: sequences belong to requests, finish, leave their output behind, and are freed.

An extension of sharing, by construction: the state contains the one below and `abstract` is a
projection. What it adds: what is freed is never read again, and outputs survive cleanup. Source:
seed 000, section 7; seed 001, M2 and M4.
"""

from collections.abc import Iterator

from attrs import evolve, frozen

from spec.machines import naive, pages, sharing
from spec.machines.actions import (
    Allocate,
    Append,
    Assign,
    Clone,
    Free,
    FreeFinished,
    Reserve,
    Reset,
    Sample,
    TakeOutputs,
    Write,
)
from spec.machines.pages import Pages, range_refusals, unused_refusals
from spec.table import Sequences, by_slot
from spec.vocabulary import (
    FinishReason,
    Geometry,
    Params,
    Reason,
    Refusal,
    Tokens,
    refused,
)
from spec.vocabulary.errors import Family

Action = sharing.Action | Assign | FreeFinished | Reset | TakeOutputs
Key = tuple[int, int]
"""(request, choice)."""


@frozen
class Detail:
    """What a sequence is for. `finished`: why it has ended, if it has."""

    request: int
    choice: int
    prompt_len: int
    params: Params
    finished: FinishReason | None = None


@frozen
class Output:
    """One finished choice, kept until it is taken. `tokens`: generated, a stop token included."""

    request: int
    choice: int
    prompt: Tokens
    tokens: Tokens
    reason: FinishReason


@frozen
class State:
    """`details[slot]` is None while the slot has no prompt."""

    sharing: sharing.State
    details: tuple[Detail | None, ...]
    outputs: tuple[Output, ...] = ()

    @property
    def geometry(self) -> Geometry:
        """The sizes."""
        return self.sharing.geometry

    @property
    def sequences(self) -> Sequences:
        """`sequences[slot]`; None is an unused slot."""
        return self.sharing.sequences

    @property
    def finished(self) -> tuple[int, ...]:
        """Slots whose sequence has finished and is not yet freed."""
        return tuple(slot for slot, detail in enumerate(self.details) if detail and detail.finished)

    @property
    def live(self) -> tuple[int, ...]:
        """Slots in use whose sequence has not finished."""
        done = self.finished
        return tuple(
            slot for slot, sequence in enumerate(self.sequences) if sequence and slot not in done
        )


def initial(geometry: Geometry) -> State:
    """No sequence, every page free, no output."""
    return State(sharing.initial(geometry), (None,) * geometry.slots)


def refusals(state: State, action: Action) -> frozenset[Refusal]:
    """Why the action cannot be done; empty exactly if it can."""
    match action:
        case Assign():
            return frozenset(_assign_refusals(state, action))
        case FreeFinished() | Reset() | TakeOutputs():
            return frozenset()
        case Reserve() | Free():
            return sharing.refusals(state.sharing, action)
        case Clone():
            return frozenset(_clone_refusals(state, action))
        case _:
            return _unfinished_refusals(state, action) or sharing.refusals(state.sharing, action)


def step(state: State, action: Action, choice: Pages | None = None) -> State:
    """Apply an action, or raise Refused. `choice`: the pages to take, slots ascending."""
    found = refusals(state, action)
    if found:
        raise refused(found)
    return effect(state, action, choice)


def effect(state: State, action: Action, choice: Pages | None = None) -> State:
    """What an action does whose guards have passed: those of a rung include those below it."""
    match action:
        case Assign(slot, prompt):
            shared = sharing.effect(state.sharing, Append(slot, prompt))
            detail = Detail(action.request, action.choice, len(prompt), action.params)
            return _with_detail(evolve(state, sharing=shared), slot, detail)
        case Clone(parent):
            child = pages.reserved_slot(state.sharing.pages, action.child)
            shared = sharing.effect(state.sharing, action, choice)
            detail = evolve(detail_of(state, parent), choice=action.choice)
            return _with_detail(evolve(state, sharing=shared), child, detail)
        case Free(int(slot)):
            after = evolve(state, sharing=sharing.effect(state.sharing, action))
            return _with_detail(after, slot, None)
        case Sample(int(slot)):
            sampled = evolve(state, sharing=sharing.effect(state.sharing, action))
            return _finish(sampled, slot)
        case FreeFinished():
            for slot in state.finished:
                state = effect(state, Free(slot))
            return state
        case Reset():
            return initial(state.geometry)
        case TakeOutputs():
            return evolve(state, outputs=())
        case _:
            return evolve(state, sharing=sharing.effect(state.sharing, action, choice))


def abstract(state: State) -> sharing.State:
    """The state below is part of this one."""
    return state.sharing


def lower(state: State, action: Action) -> tuple[sharing.Action, ...]:
    """Assigning appends; a cleanup or reset frees one sequence after another."""
    match action:
        case Assign(slot, prompt):
            return (Append(slot, prompt),)
        case FreeFinished():
            return tuple(Free(slot) for slot in state.finished)
        case Reset():
            return tuple(Free(slot) for slot, used in enumerate(state.sequences) if used)
        case TakeOutputs():
            return ()
        case _:
            return (action,)


def detail_of(state: State, slot: int) -> Detail:
    """The detail of a slot that has a prompt."""
    detail = state.details[slot]
    if detail is None:
        raise KeyError(slot)
    return detail


def taken_keys(state: State) -> frozenset[Key]:
    """The (request, choice) pairs that are live or await being taken."""
    live = {(detail.request, detail.choice) for detail in state.details if detail}
    return frozenset(live | {(output.request, output.choice) for output in state.outputs})


def request_refusals(geometry: Geometry, prompt_len: int, params: Params) -> Iterator[Refusal]:
    """A prompt and its limit must fit one row."""
    whole = prompt_len + params.max_new
    if whole > geometry.max_len:
        yield Refusal(Reason.TOO_LONG, whole, f"at most {geometry.max_len} tokens")


def _with_detail(state: State, slot: int, detail: Detail | None) -> State:
    before, after = state.details[:slot], state.details[slot + 1 :]
    return evolve(state, details=(*before, detail, *after))


def _finish(state: State, slot: int) -> State:
    """Mark the sequence finished and keep its output, if its last token ended it."""
    detail = detail_of(state, slot)
    tokens = pages.used(state.sharing.pages, slot).tokens
    prompt, generated = tokens[: detail.prompt_len], tokens[detail.prompt_len :]
    reason = naive.finish(generated, detail.params)
    if reason is None:
        return state
    output = Output(detail.request, detail.choice, prompt, generated, reason)
    state = evolve(state, outputs=(*state.outputs, output))
    return _with_detail(state, slot, evolve(detail, finished=reason))


def _assign_refusals(state: State, action: Assign) -> Iterator[Refusal]:
    problems = tuple(unused_refusals(state.sharing.pages, action.slot))
    yield from problems
    if problems:
        return
    if state.details[action.slot] is not None:
        yield Refusal(Reason.SLOT_ASSIGNED, action.slot, "a slot without a prompt")
    yield from request_refusals(state.geometry, len(action.prompt), action.params)
    if (action.request, action.choice) in taken_keys(state):
        yield Refusal(Reason.CHOICE_TAKEN, (action.request, action.choice), "an unused pair")


def _clone_refusals(state: State, action: Clone) -> Iterator[Refusal]:
    below = sharing.refusals(state.sharing, action)
    yield from below
    if any(refusal.reason.family is Family.SLOT for refusal in below):
        return
    detail = state.details[action.parent]
    if detail is None:
        yield Refusal(Reason.SLOT_EMPTY, action.parent, "a parent with a prompt")
    elif detail.finished:
        yield Refusal(Reason.SLOT_FINISHED, action.parent, "a parent that has not finished")
    elif (detail.request, action.choice) in taken_keys(state):
        yield Refusal(Reason.CHOICE_TAKEN, (detail.request, action.choice), "an unused pair")


def _unfinished_refusals(
    state: State, action: Append | Allocate | Write | Sample
) -> frozenset[Refusal]:
    """Slots in use must have a prompt and must not have finished; other faults are told below."""
    slots = (action.slot,) if isinstance(action, Append | Sample) else by_slot(action.batch)
    problems = set()
    for slot in slots:
        if any(range_refusals(state.sharing.pages, slot)) or not isinstance(slot, int):
            return frozenset()
        detail = state.details[slot]
        if state.sequences[slot] is None:
            return frozenset()
        if detail is None and not isinstance(action, Allocate):
            problems.add(Refusal(Reason.SLOT_EMPTY, slot, "a slot with a prompt"))
        elif detail and detail.finished:
            problems.add(Refusal(Reason.SLOT_FINISHED, slot, "a sequence that has not finished"))
    return frozenset(problems)
