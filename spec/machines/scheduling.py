"""Rung 5: a queue of tokens, prefill, and decode rounds, each one action.

Seen from naive, request by request: the tokens it would have got alone. Inside, a prefill and a
round are folds of lifecycle actions, listed by `prefill_parts` and `round_parts`; what refuses an
action stands in `guards`. Source: seed 000, sections 3.5 and 4; seed 004, section 9.
"""

from collections.abc import Iterator
from typing import TypeGuard

from attrs import evolve, frozen

from spec import model
from spec.machines import guards, lifecycle, naive, sharing
from spec.machines.actions import (
    Allocate,
    Append,
    Assign,
    Clone,
    Enqueue,
    Free,
    FreeFinished,
    Generate,
    Name,
    Pack,
    Prefill,
    Purge,
    Reserve,
    Reset,
    Round,
    Sample,
    TakeOutputs,
    Write,
)
from spec.machines.pages import Pages, reserved_slot, unused_refusals, used
from spec.table import Batch, Sequences
from spec.vocabulary import CleanupMode, Geometry, Limits, Refusal, Request, Tokens, refused
from spec.vocabulary.rules import a

Primitive = Reserve | Assign | Allocate | Write | Clone | Free | FreeFinished | Reset | TakeOutputs
Action = Primitive | Enqueue | Pack | Purge | Prefill | Round | Generate

prefill_pages = guards.prefill_pages
stop_refusals = guards.stop_refusals


@frozen
class Queued:
    """A known token that waits to be decoded."""

    token: int
    slot: int
    position: int


@frozen
class State:
    """`queue` is in order of arrival."""

    lifecycle: lifecycle.State
    limits: Limits
    cleanup: CleanupMode
    queue: tuple[Queued, ...] = ()

    @property
    def geometry(self) -> Geometry:
        """The sizes."""
        return self.lifecycle.geometry

    @property
    def sequences(self) -> Sequences:
        """`sequences[slot]`; None is an unused slot."""
        return self.lifecycle.sequences


def initial(
    geometry: Geometry, limits: Limits, cleanup: CleanupMode = CleanupMode.INCREMENTAL
) -> State:
    """Nothing known, nothing queued."""
    a(Limits).require("limits", limits)
    a(CleanupMode).require("cleanup", cleanup)
    limits.check(geometry)
    return State(lifecycle.initial(geometry), limits, cleanup)


def refusals(state: State, action: Action) -> frozenset[Refusal]:
    """Why the action cannot be done; empty exactly if it can."""
    below, limits = state.lifecycle, state.limits
    match action:
        case Pack() | Generate():
            return frozenset()
        case Purge(slot):
            return frozenset(unused_refusals(below.sharing.pages, slot))
        case Enqueue():
            return frozenset(guards.enqueue(below, limits, action, queued=len(state.queue)))
        case Clone(parent):
            queued = len(state.queue) + len(_pending(state, parent))
            return frozenset(guards.clone(below, limits, action, queued=queued))
        case Prefill(requests):
            return frozenset(guards.prefill(below, limits, requests, queued=len(state.queue)))
        case Round():
            return frozenset(guards.decode_round(below, limits, round_parts(state)))
        case Allocate() | Write():
            waiting = {(queued.slot, queued.position) for queued in state.queue}
            return frozenset(guards.batch(below, limits, action, waiting=waiting))
        case Assign():
            return frozenset(guards.assign(below, limits, action))
        case _:
            return lifecycle.refusals(below, action)


def step(state: State, action: Action, choice: Pages | None = None) -> State:
    """Apply an action, or raise Refused. `choice`: the pages to take, in the order of taking."""
    found = refusals(state, action)
    if found:
        raise refused(found)
    return effect(state, action, choice)


def effect(state: State, action: Action, choice: Pages | None = None) -> State:
    """What an action does whose guards have passed: those of a rung include those below it."""
    match action:
        case Enqueue():
            return _enqueue(state, action)
        case Pack():
            return evolve(state, queue=state.queue[state.limits.round_tokens :])
        case Purge(slot):
            return _purge(state, slot)
        case Free(int(slot)):
            return _purge(evolve(state, lifecycle=lifecycle.effect(state.lifecycle, action)), slot)
        case Clone():
            return _clone(state, action, choice)
        case Reset():
            return initial(state.geometry, state.limits, state.cleanup)
        case Prefill() | Round():
            return _tidy(_run(state, action, choice))
        case Generate():
            return generate(state)[0]
        case _:
            return evolve(state, lifecycle=lifecycle.effect(state.lifecycle, action, choice))


def generate(state: State) -> tuple[State, int, frozenset[Refusal]]:
    """Run rounds until one is refused or `limits.rounds` are done: state, rounds done, why."""
    for done in range(state.limits.rounds):
        found = refusals(state, Round())
        if found:
            return state, done, found
        state = effect(state, Round())
    return state, state.limits.rounds, frozenset()


def packed(state: State) -> tuple[Queued, ...]:
    """What leaves the queue next, in plan order: by slot, then position."""
    leaving = state.queue[: state.limits.round_tokens]
    return tuple(sorted(leaving, key=lambda queued: (queued.slot, queued.position)))


def round_parts(state: State) -> tuple[lifecycle.Action, ...]:
    """A round as lifecycle actions; a slot samples if its last known token is in the batch."""
    batch: Batch = tuple((queued.slot, queued.position) for queued in packed(state))
    samples = tuple(
        _sample(state, slot, length)
        for slot, length in _lengths(state).items()
        if (slot, length - 1) in batch
    )
    return (Allocate(batch), Write(batch), *samples)


def prefill_parts(state: State, requests: tuple[Request, ...]) -> tuple[lifecycle.Action, ...]:
    """A prefill as lifecycle actions: prompts first, then the forks, then one draw per choice."""
    free = iter(slot for slot, sequence in enumerate(state.sequences) if sequence is None)
    begin: list[lifecycle.Action] = []
    fork: list[lifecycle.Action] = []
    samples: list[lifecycle.Action] = []
    batch: list[tuple[int, int]] = []
    for request in requests:
        slots = [next(free) for _ in range(request.n_generations)]
        begin += [Reserve(slots[0]), Assign(slots[0], request.prompt, request.params, request.id)]
        batch += [(slots[0], position) for position in range(len(request.prompt))]
        fork += [Clone(slots[0], slot, choice) for choice, slot in enumerate(slots) if choice]
        length = len(request.prompt)
        samples += [
            Sample(slot, model.draw(request.params, choice=choice, position=length))
            for choice, slot in enumerate(slots)
        ]
    return (*begin, Allocate(tuple(batch)), Write(tuple(batch)), *fork, *samples)


def abstract(state: State) -> naive.State:
    """The text of every choice of every request, live or finished and not yet taken."""
    texts: dict[Name, Tokens] = {
        (output.request, output.choice): output.prompt + output.tokens
        for output in state.lifecycle.outputs
    }
    for slot, detail in enumerate(state.lifecycle.details):
        if detail is not None and not detail.finished:
            texts[detail.request, detail.choice] = used(state.lifecycle.sharing.pages, slot).tokens
    return naive.State(frozenset(texts.items()))


def lower(state: State, action: Action) -> tuple[naive.Action, ...]:
    """Each request by itself: begin, append, draw, end. Pages, slots and batches are invisible."""
    match action:
        case Assign(_, prompt):
            name = (action.request, action.choice)
            return (Reserve(name), Append(name, prompt))
        case Clone(parent):
            child = (lifecycle.detail_of(state.lifecycle, parent).request, action.choice)
            tokens = used(state.lifecycle.sharing.pages, parent).tokens
            return (Reserve(child), Append(child, tokens))
        case Enqueue(slot, token):
            return (Append(_name(state, slot), (token,)),)
        case Prefill(requests):
            return tuple(part for request in requests for part in _lower_request(request))
        case Round():
            samples = [part for part in round_parts(state) if isinstance(part, Sample)]
            return tuple(Sample(_name(state, part.slot), part.draw) for part in samples)
        case Generate():
            return _lower_rounds(state)
        case Free(slot):
            live = slot in state.lifecycle.live and state.lifecycle.details[slot] is not None
            return (Free(_name(state, slot)),) if live else ()
        case TakeOutputs():
            outputs = state.lifecycle.outputs
            return tuple(Free((output.request, output.choice)) for output in outputs)
        case Reset():
            return tuple(Free(name) for name, _ in abstract(state).texts)
        case _:
            return ()


def _enqueue(state: State, action: Enqueue) -> State:
    position = len(used(state.lifecycle.sharing.pages, action.slot).tokens)
    below = lifecycle.step(state.lifecycle, Append(action.slot, (action.token,)))
    queued = Queued(action.token, action.slot, position)
    return evolve(state, lifecycle=below, queue=(*state.queue, queued))


def _run(state: State, action: Prefill | Round, choice: Pages | None) -> State:
    if isinstance(action, Prefill):
        return _fold(state, prefill_parts(state, action.requests), choice)
    left = evolve(state, queue=state.queue[state.limits.round_tokens :])
    return _fold(left, round_parts(state), choice)


def _fold(state: State, parts: tuple[lifecycle.Action, ...], choice: Pages | None) -> State:
    """Apply lifecycle actions; what is sampled and goes on is queued."""
    taken = choice or ()
    below, queue = state.lifecycle, list(state.queue)
    for part in parts:
        wanted = sharing.pages_wanted(below.sharing, part) if _takes(part) else 0
        below = lifecycle.effect(below, part, taken[:wanted])
        taken = taken[wanted:]
        if isinstance(part, Sample) and isinstance(part.slot, int):
            tokens = used(below.sharing.pages, part.slot).tokens
            if part.slot not in below.finished:
                queue.append(Queued(tokens[-1], part.slot, len(tokens) - 1))
    return evolve(state, lifecycle=below, queue=tuple(queue))


def _tidy(state: State) -> State:
    """The end of a round: release what has finished, as the cleanup mode says."""
    below = state.lifecycle
    at_end = state.cleanup is CleanupMode.END and not below.live
    if state.cleanup is CleanupMode.INCREMENTAL or at_end:
        below = lifecycle.effect(below, FreeFinished())
    return evolve(state, lifecycle=below)


def _purge(state: State, slot: int) -> State:
    return evolve(state, queue=tuple(queued for queued in state.queue if queued.slot != slot))


def _clone(state: State, action: Clone, choice: Pages | None) -> State:
    child = reserved_slot(state.lifecycle.sharing.pages, action.child)
    below = lifecycle.effect(state.lifecycle, action, choice)
    copies = (evolve(queued, slot=child) for queued in _pending(state, action.parent))
    return evolve(state, lifecycle=below, queue=(*state.queue, *copies))


def _pending(state: State, slot: int) -> tuple[Queued, ...]:
    return tuple(queued for queued in state.queue if queued.slot == slot)


def _lengths(state: State) -> dict[int, int]:
    return {slot: len(sequence.tokens) for slot, sequence in enumerate(state.sequences) if sequence}


def _sample(state: State, slot: int, length: int) -> Sample:
    detail = lifecycle.detail_of(state.lifecycle, slot)
    return Sample(slot, model.draw(detail.params, choice=detail.choice, position=length))


def _name(state: State, slot: Name) -> lifecycle.Key:
    assert isinstance(slot, int)
    detail = lifecycle.detail_of(state.lifecycle, slot)
    return detail.request, detail.choice


def _takes(part: lifecycle.Action) -> TypeGuard[Allocate | Clone]:
    return isinstance(part, Allocate | Clone)


def _lower_request(request: Request) -> Iterator[naive.Action]:
    for choice in range(request.n_generations):
        name, length = (request.id, choice), len(request.prompt)
        yield Reserve(name)
        yield Append(name, request.prompt)
        yield Sample(name, model.draw(request.params, choice=choice, position=length))


def _lower_rounds(state: State) -> tuple[naive.Action, ...]:
    parts: list[naive.Action] = []
    for _ in range(generate(state)[1]):
        parts += lower(state, Round())
        state = step(state, Round())
    return tuple(parts)
