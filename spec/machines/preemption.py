"""Rung preemption: a request gives its slots and pages back, and its tokens are known again later.

Preempt frees every slot of a request whose choice has not finished. Choices that have finished,
and their outputs, are left alone. The caller keeps the tokens. Later it reserves a slot for each
choice, assigns the prompt, and replays what was drawn: these tokens become known and are never
drawn again. Chunks read them, so that the last chunk alone draws. Choices with equal first pages
share them again by Share or by a hit: their tokens say where they were forked. Source:
docs/sources.md, "Preemption".
"""

from spec.machines.actions import Action, Append, Free, Preempt, Replay
from spec.machines.lifecycle import has_prompt, no_room_to_draw, unfinished
from spec.machines.pages import SLOT_IN_USE, used
from spec.rung import Edge, Faults, Machine, Meet, Pages, Part, Rule, Rung, Stage, check, in_order
from spec.state import State
from spec.vocabulary import Reason


def slots_of_request(state: State, request: int) -> tuple[int, ...]:
    """The slots of the choices of a request that have not finished, in order."""
    return tuple(
        slot
        for slot, detail in enumerate(state.details)
        if detail is not None and detail.request == request and not detail.finished
    )


@check(Reason.NOT_LIVE)
def _some_live(_machine: Machine, state: State, action: Preempt) -> Faults:
    """No slot holds a choice of `request` that has not finished."""
    if not slots_of_request(state, action.request):
        yield action.request, "a request with a choice that has not finished"


def _frees(_machine: Machine, state: State, action: Preempt) -> tuple[Part, ...]:
    return tuple((Free(slot), None) for slot in slots_of_request(state, action.request))


def _preempt(machine: Machine, state: State, action: Preempt, _pages: Pages | None) -> State:
    return machine.fold(state, _frees(machine, state, action))


@check(Reason.BATCH_QUEUED)
def _none_queued(_machine: Machine, state: State, action: Replay) -> Faults:
    """A token of the slot is in the queue; what is replayed comes before it."""
    queued = [one for one in state.queue if one.slot == action.slot]
    if queued:
        yield queued, "a slot without queued tokens"


@check(Reason.PROPOSED)
def _without_drafts(machine: Machine, state: State, action: Replay) -> Faults:
    """The slot has proposed tokens."""
    if machine.known(state, action.slot) != used(state, action.slot).tokens:
        yield action.slot, "a slot without proposed tokens"


@check(Reason.TOO_LONG)
def _leaves_room_to_draw(_machine: Machine, state: State, action: Replay) -> Faults:
    """With these tokens, `max_new` tokens or more would follow the prompt: none could be drawn."""
    known = len(used(state, action.slot).tokens) + len(action.tokens)
    yield from no_room_to_draw(state, action.slot, known - 1)


def _replay(machine: Machine, state: State, action: Replay, _pages: Pages | None) -> State:
    return machine.effect(state, Append(action.slot, action.tokens))


def _lower(machine: Machine, state: State, action: Action, pages: Pages | None) -> tuple[Part, ...]:
    """Sequences are freed; tokens that were drawn before are appended."""
    match action:
        case Preempt():
            return _frees(machine, state, action)
        case Replay(slot, tokens):
            return ((Append(slot, tokens), None),)
        case _:
            return ((action, pages),)


RUNG = Rung(
    name="preemption",
    requires=("chunks",),
    rules={
        Preempt: Rule(stages=in_order(_some_live), effect=_preempt, parts=_frees),
        Replay: Rule(
            stages=(
                *SLOT_IN_USE,
                Stage((has_prompt, unfinished)),
                *in_order(_none_queued, _without_drafts, _leaves_room_to_draw),
            ),
            effect=_replay,
            appends=lambda _machine, _state, action: {action.slot: action.tokens},
        ),
    },
    edges=(Edge(lower=_lower),),
    meets={
        "naive": Meet("ALONE", "last chunk of replayed tokens"),
        "cache": "independent",
        "pages": Meet("CONS", "preempt a request with a full pool"),
        "sharing": Meet("RC", "preempt choices that share pages"),
        "rollback": Meet("Q", "Replay: PROPOSED"),
        "window": "independent",
        "prefix": Meet("PC", "preempt a request with pages of the index"),
        "lifecycle": Meet("OUT", "preempt beside a finished choice"),
        "scheduling": Meet("Q", "preempt a request with queued tokens"),
        "chunks": Meet("ALONE", "preempt a request that is partly read"),
    },
)
