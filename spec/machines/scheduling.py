"""Rung scheduling: a queue of tokens, prefill, and decode rounds, each one action.

The edge to naive: each request gets the tokens that it would get alone. A prefill and a round are
folds of actions of lower rungs, listed by `_prefill_parts` and `_round_parts`. Source:
docs/sources.md, "Token queue", "Prefill and decode" and "Continuous batching".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attrs import evolve

from spec import model, pool
from spec.machines.actions import (
    Action,
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
    Propose,
    Purge,
    Reserve,
    Reset,
    Round,
    Sample,
    TakeOutputs,
    Truncate,
    Write,
)
from spec.machines.lifecycle import (
    Key,
    detail_of,
    request_refusals,
    room_to_draw,
    stop_refusals,
    taken_keys,
)
from spec.machines.pages import require_used, reserved_slot, used
from spec.rung import Edge, Machine, Meet, Pages, Part, Rule, Rung
from spec.state import Queued, State
from spec.table import Batch
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    Limits,
    Reason,
    Refusal,
    Request,
    Tokens,
)
from spec.vocabulary.errors import Family

Refusals = frozenset[Refusal]


def packed(state: State) -> tuple[Queued, ...]:
    """The tokens that leave the queue next, in plan order: by slot, then position."""
    leaving = state.queue[: state.limits.round_tokens]
    return tuple(sorted(leaving, key=lambda queued: (queued.slot, queued.position)))


def generate(machine: Machine, state: State) -> tuple[State, int, Refusals]:
    """Run rounds until one is refused or `limits.rounds` are done: state, rounds done, refusals."""
    for done in range(state.limits.rounds):
        found = machine.refusals(state, Round())
        if found:
            return state, done, found
        state = machine.effect(state, Round())
    return state, state.limits.rounds, frozenset()


def prefill_pages(geometry: Geometry, request: Request) -> int:
    """Pages that a prefill takes: for the prompt, and a partial page for each further choice."""
    partial = len(request.prompt) % geometry.page_size != 0
    return geometry.pages_for(len(request.prompt)) + partial * (request.n_generations - 1)


# The queue.


def _enqueue_refusals(machine: Machine, state: State, action: Enqueue) -> Iterator[Refusal]:
    """The token must continue a sequence and leave room to draw at least one more."""
    found = machine.refusals(state, Append(action.slot, (action.token,)))
    yield from found
    if _names_no_slot(found):
        return
    yield from room_to_draw(state, action.slot, len(used(state, action.slot).tokens))
    yield from _queue_room(state, 1)


def _enqueue(machine: Machine, state: State, action: Enqueue, _pages: Pages | None) -> State:
    position = len(used(state, action.slot).tokens)
    state = machine.effect(state, Append(action.slot, (action.token,)))
    return _with_queued(state, Queued(action.token, action.slot, position))


def _pack(_machine: Machine, state: State, _action: Pack, _pages: Pages | None) -> State:
    return state._replace(queue=state.queue[state.limits.round_tokens :])


def _purge_refusals(_machine: Machine, state: State, action: Purge) -> Iterator[Refusal]:
    return require_used(state, action.slot)


def _purge(_machine: Machine, state: State, action: Purge, _pages: Pages | None) -> State:
    return _without_slot(state, action.slot)


def _queue_room(state: State, more: int) -> Iterator[Refusal]:
    wanted = len(state.queue) + more
    if wanted > state.limits.queue:
        yield Refusal(Reason.QUEUE_FULL, wanted, f"up to {state.limits.queue}")


def _with_queued(state: State, *entries: Queued) -> State:
    return state._replace(queue=(*state.queue, *entries))


def _without_slot(state: State, slot: Name) -> State:
    return state._replace(queue=tuple(queued for queued in state.queue if queued.slot != slot))


def _pending(state: State, slot: int) -> tuple[Queued, ...]:
    return tuple(queued for queued in state.queue if queued.slot == slot)


# A prefill.


def _prefill_parts(_machine: Machine, state: State, action: Prefill) -> tuple[Part, ...]:
    """Prompts first, then the forks, then one draw per choice."""
    free = iter(slot for slot, sequence in enumerate(state.sequences) if sequence is None)
    begin: list[Action] = []
    fork: list[Action] = []
    samples: list[Action] = []
    batch: list[tuple[int, int]] = []
    for request in action.requests:
        slots = [next(free) for _ in range(request.n_generations)]
        begin += [Reserve(slots[0]), Assign(slots[0], request.prompt, request.params, request.id)]
        batch += [(slots[0], position) for position in range(len(request.prompt))]
        fork += [Clone(slots[0], slot, choice) for choice, slot in enumerate(slots) if choice]
        length = len(request.prompt)
        samples += [
            Sample(slot, model.draw(request.params, choice=choice, position=length))
            for choice, slot in enumerate(slots)
        ]
    whole = (*begin, Allocate(tuple(batch)), Write(tuple(batch)), *fork, *samples)
    return tuple((part, None) for part in whole)


def _prefill(machine: Machine, state: State, action: Prefill, pages: Pages | None) -> State:
    return _tidied(machine, _run(machine, state, action, pages))


def _prefill_refusals(_machine: Machine, state: State, action: Prefill) -> Iterator[Refusal]:
    """Refusals in stages: a later stage is checked only if the earlier ones found nothing."""
    requests = action.requests
    yield from (
        list(_width_refusals(state.limits, requests))
        or list(_request_refusals(state, requests))
        or list(_room_refusals(state, requests))
    )


def _width_refusals(limits: Limits, requests: tuple[Request, ...]) -> Iterator[Refusal]:
    tokens = sum(len(request.prompt) for request in requests)
    if not 0 < len(requests) <= limits.prefill_seqs or tokens > limits.prefill_tokens:
        allowed = f"1 to {limits.prefill_seqs} prompts, at most {limits.prefill_tokens} tokens"
        yield Refusal(Reason.PREFILL_WIDTH, f"{len(requests)} prompts, {tokens} tokens", allowed)


def _request_refusals(state: State, requests: tuple[Request, ...]) -> Iterator[Refusal]:
    taken = taken_keys(state)
    ids = [request.id for request in requests]
    for request in requests:
        yield from request_refusals(state.geometry, len(request.prompt), request.params)
        yield from stop_refusals(state.limits, request.params.stops)
        keys = {(request.id, choice) for choice in range(request.n_generations)}
        if keys & taken or ids.count(request.id) > 1:
            yield Refusal(Reason.CHOICE_TAKEN, request.id, "an unused request id")


def _room_refusals(state: State, requests: tuple[Request, ...]) -> Iterator[Refusal]:
    choices = sum(request.n_generations for request in requests)
    free_slots = state.sequences.count(None)
    if choices > free_slots:
        yield Refusal(Reason.NO_FREE_SLOT, choices, f"at most {free_slots} choices")
    wanted = sum(prefill_pages(state.geometry, request) for request in requests)
    free = pool.free_count(state.counts)
    if wanted > free:
        yield Refusal(Reason.OUT_OF_PAGES, wanted, f"at most {free} pages")
    yield from _queue_room(state, choices)
    yield from _output_refusals(state, choices)


def _output_refusals(state: State, samples: int) -> Iterator[Refusal]:
    """Each sequence that samples may finish, so there must be room for all of them."""
    outputs = len(state.outputs) + samples
    if outputs > state.limits.outputs:
        yield Refusal(Reason.OUTPUTS_FULL, outputs, f"up to {state.limits.outputs} outputs")


# A round.


def _round_parts(_machine: Machine, state: State, _action: Round) -> tuple[Part, ...]:
    """A slot samples if its last known token is in the batch."""
    batch: Batch = tuple((queued.slot, queued.position) for queued in packed(state))
    samples = tuple(
        _sample(state, slot, length)
        for slot, length in _lengths(state).items()
        if (slot, length - 1) in batch
    )
    parts: tuple[Action, ...] = (Allocate(batch), Write(batch), *samples)
    return tuple((part, None) for part in parts)


def _lengths(state: State) -> dict[int, int]:
    return {slot: len(sequence.tokens) for slot, sequence in enumerate(state.sequences) if sequence}


def _sample(state: State, slot: int, length: int) -> Sample:
    detail = detail_of(state, slot)
    return Sample(slot, model.draw(detail.params, choice=detail.choice, position=length))


def _round(machine: Machine, state: State, action: Round, pages: Pages | None) -> State:
    return _tidied(machine, _run(machine, state, action, pages))


def _round_refusals(machine: Machine, state: State, action: Round) -> Iterator[Refusal]:
    (allocate, _), _, *samples = machine.parts(state, action)
    assert isinstance(allocate, Allocate)
    if not allocate.batch:
        yield Refusal(Reason.QUEUE_EMPTY, 0, "at least 1 queued token")
        return
    slots = [slot for slot, _ in filter(None, allocate.batch)]
    unsettled = [slot for slot in slots if not used(state, slot).settled]
    if unsettled:
        yield Refusal(Reason.UNWRITTEN, unsettled, "slots whose allocated cells are written")
        return
    proposed = [slot for slot in slots if machine.known(state, slot) != used(state, slot).tokens]
    if proposed:
        yield Refusal(Reason.PROPOSED, proposed, "slots without proposed tokens")
        return
    yield from machine.below("lifecycle").refusals(state, allocate)
    yield from _output_refusals(state, len(samples))


def _generate(machine: Machine, state: State, _action: Generate, _pages: Pages | None) -> State:
    return generate(machine, state)[0]


def _run(machine: Machine, state: State, action: Prefill | Round, pages: Pages | None) -> State:
    """Fold the parts of an action. A round first takes its tokens from the queue."""
    parts, taken = machine.parts(state, action), pages or ()
    if isinstance(action, Round):
        state = machine.effect(state, Pack())
    for part, _ in parts:
        wanted = machine.pages_wanted(state, part) if taken else 0
        state = machine.effect(state, part, taken[:wanted] or None)
        taken = taken[wanted:]
    return state


def _tidied(machine: Machine, state: State) -> State:
    """The end of a prefill or round: release finished sequences, as the cleanup mode says."""
    return machine.effect(state, FreeFinished()) if _tidies(state) else state


def _tidies(state: State) -> bool:
    at_end = state.cleanup is CleanupMode.END and not state.live
    return state.cleanup is CleanupMode.INCREMENTAL or at_end


# What scheduling adds to the actions of lower rungs.


def _write_unqueued(_machine: Machine, state: State, action: Write, found: Refusals) -> Refusals:
    """A batch must not write queued tokens: rounds write those."""
    if found:
        return found
    waiting = {(queued.slot, queued.position) for queued in state.queue}
    queued = [entry for entry in action.batch if entry in waiting]
    if not queued:
        return found
    allowed = "tokens that have left the queue"
    return frozenset({Refusal(Reason.BATCH_QUEUED, queued, allowed)})


def _clone_fits(_machine: Machine, state: State, action: Clone, found: Refusals) -> Refusals:
    """The pending tokens of the parent are copied into the queue."""
    if _names_no_slot(found):
        return found
    return found | frozenset(_queue_room(state, len(_pending(state, action.parent))))


def _proposal_fits(_machine: Machine, state: State, action: Propose, found: Refusals) -> Refusals:
    if _names_no_slot(found):
        return found
    return found | frozenset(_queue_room(state, len(action.tokens)))


def _names_no_slot(found: Refusals) -> bool:
    """Whether the slot itself is refused, so that nothing more can be checked of it."""
    return any(refusal.reason.family is Family.SLOT for refusal in found)


def _clone_pending(_machine: Machine, before: State, action: Clone, after: State) -> State:
    child = reserved_slot(before, action.child)
    copies = (evolve(queued, slot=child) for queued in _pending(before, action.parent))
    return _with_queued(after, *copies)


def _free_queued(_machine: Machine, _before: State, action: Free, after: State) -> State:
    return _without_slot(after, action.slot)


def _queue_sampled(_machine: Machine, _before: State, action: Sample, after: State) -> State:
    """Queue the drawn token of a sequence that has not finished."""
    slot, tokens = reserved_slot(after, action.slot), used(after, action.slot).tokens
    if slot in after.finished:
        return after
    return _with_queued(after, Queued(tokens[-1], slot, len(tokens) - 1))


def _queue_proposed(machine: Machine, before: State, action: Propose, after: State) -> State:
    start = len(machine.known(before, action.slot))
    entries = (
        Queued(token, action.slot, start + index) for index, token in enumerate(action.tokens)
    )
    return _with_queued(after, *entries)


def _drop_cut(machine: Machine, _before: State, action: Truncate, after: State) -> State:
    """Tokens that were cut off are no longer queued."""
    known = len(machine.known(after, action.slot))
    kept = tuple(
        queued for queued in after.queue if queued.slot != action.slot or queued.position < known
    )
    return after._replace(queue=kept)


# The edges to lower machines.


def _to_lifecycle(
    machine: Machine, state: State, action: Action, pages: Pages | None
) -> tuple[Part, ...]:
    """The lower actions of which an action is a fold; none for Pack and Purge."""
    match action:
        case Prefill() | Round():
            return _whole_parts(machine, state, action)
        case Generate():
            return tuple(
                part
                for before in _rounds(machine, state)
                for part in _whole_parts(machine, before, Round())
            )
        case Enqueue(slot, token):
            return ((Append(slot, (token,)), None),)
        case Pack() | Purge():
            return ()
        case _:
            return ((action, pages),)


def _whole_parts(machine: Machine, state: State, action: Prefill | Round) -> tuple[Part, ...]:
    """The parts of an action, and the cleanup that ends it."""
    parts = tuple(_narrow(state.limits, machine.parts(state, action)))
    tidies = state.cleanup is CleanupMode.INCREMENTAL
    if state.cleanup is CleanupMode.END:
        tidies = _tidies(_run(machine, state, action, None))
    return (*parts, (FreeFinished(), None)) if tidies else parts


def _narrow(limits: Limits, parts: Iterable[Part]) -> Iterator[Part]:
    """The parts, with a round that is wider than `limits.prefill_tokens` in several batches."""
    width = limits.prefill_tokens
    for part, pages in parts:
        match part:
            case Allocate(batch) | Write(batch):
                for start in range(0, len(batch), width):
                    yield evolve(part, batch=batch[start : start + width]), pages
            case _:
                yield part, pages


def _rounds(machine: Machine, state: State) -> Iterator[State]:
    """The states in which the rounds of a Generate begin."""
    for _ in range(generate(machine, state)[1]):
        yield state
        state = machine.effect(state, Round())


def _texts(state: State) -> State:
    """The text of every choice of every request, live or finished and not yet taken."""
    texts: dict[Name, Tokens] = {
        (output.request, output.choice): output.prompt + output.tokens for output in state.outputs
    }
    for slot, detail in enumerate(state.details):
        if detail is not None and not detail.finished:
            texts[detail.request, detail.choice] = used(state, slot).tokens
    return state._replace(texts=frozenset(texts.items()))


def _to_naive(
    machine: Machine, state: State, action: Action, _pages: Pages | None
) -> tuple[Part, ...]:
    """Each request alone: begin, append, draw, end. Pages, slots and batches lower to nothing."""
    return tuple((part, None) for part in _text_parts(machine, state, action))


def _text_parts(machine: Machine, state: State, action: Action) -> Iterator[Action]:
    """An action without an entry in `_TEXTS` appends the tokens that become known by it."""
    found = _TEXTS.get(type(action))
    if found is not None:
        yield from found(machine, state, action)
        return
    for slot, tokens in machine.rule(action).appends(machine, state, action).items():
        yield Append(_name(state, slot), tokens)


def _reset_texts(_machine: Machine, state: State, _action: Reset) -> Iterator[Action]:
    return (Free(name) for name, _ in _texts(state).texts)


def _taken_texts(_machine: Machine, state: State, _action: TakeOutputs) -> Iterator[Action]:
    return (Free((output.request, output.choice)) for output in state.outputs)


def _freed_text(_machine: Machine, state: State, action: Free) -> Iterator[Action]:
    slot = reserved_slot(state, action.slot)
    if slot in state.live and state.details[slot] is not None:
        yield Free(_name(state, slot))


def _assigned_text(_machine: Machine, _state: State, action: Assign) -> Iterator[Action]:
    name = (action.request, action.choice)
    yield from (Reserve(name), Append(name, action.prompt))


def _cloned_text(_machine: Machine, state: State, action: Clone) -> Iterator[Action]:
    name = (detail_of(state, action.parent).request, action.choice)
    yield from (Reserve(name), Append(name, used(state, action.parent).tokens))


def _prefilled_texts(_machine: Machine, _state: State, action: Prefill) -> Iterator[Action]:
    for request in action.requests:
        yield from _request_texts(request)


def _generated_texts(machine: Machine, state: State, _action: Generate) -> Iterator[Action]:
    for before in _rounds(machine, state):
        yield from _round_texts(machine, before, Round())


def _request_texts(request: Request) -> Iterator[Action]:
    """The choices of a request, each with a draw of its own."""
    for choice in range(request.n_generations):
        name, length = (request.id, choice), len(request.prompt)
        yield Reserve(name)
        yield Append(name, request.prompt)
        yield Sample(name, model.draw(request.params, choice=choice, position=length))


def _round_texts(machine: Machine, state: State, action: Round) -> Iterator[Action]:
    """The samples of a round, with their draws."""
    for part, _ in machine.parts(state, action):
        if isinstance(part, Sample):
            yield Sample(_name(state, part.slot), part.draw)


def _name(state: State, slot: Name) -> Key:
    assert isinstance(slot, int)
    detail = detail_of(state, slot)
    return detail.request, detail.choice


_TEXTS: Mapping[type, Callable[[Machine, State, Any], Iterator[Action]]] = {
    Reset: _reset_texts,
    TakeOutputs: _taken_texts,
    Free: _freed_text,
    Assign: _assigned_text,
    Clone: _cloned_text,
    Prefill: _prefilled_texts,
    Round: _round_texts,
    Generate: _generated_texts,
}
"""For an action, the naive actions on the texts of its requests."""

NAME = "scheduling"
RUNG = Rung(
    name=NAME,
    requires=("lifecycle",),
    owns=("queue",),
    rules={
        Enqueue: Rule(
            refusals=_enqueue_refusals,
            effect=_enqueue,
            appends=lambda _machine, _state, action: {action.slot: (action.token,)},
        ),
        Pack: Rule(effect=_pack),
        Purge: Rule(refusals=_purge_refusals, effect=_purge),
        Prefill: Rule(refusals=_prefill_refusals, effect=_prefill, parts=_prefill_parts),
        Round: Rule(refusals=_round_refusals, effect=_round, parts=_round_parts),
        Generate: Rule(effect=_generate),
    },
    folds=frozenset({Append, Sample}),
    guards={
        Write: _write_unqueued,
        Clone: _clone_fits,
        Propose: _proposal_fits,
    },
    follows={
        Clone: _clone_pending,
        Free: _free_queued,
        Sample: _queue_sampled,
        Propose: _queue_proposed,
        Truncate: _drop_cut,
    },
    clauses=("Q", "KNOB", "ALONE"),
    edges=(Edge(lower=_to_lifecycle), Edge(to="naive", abstract=_texts, lower=_to_naive)),
    meets={
        "naive": Meet("ALONE", "Round: done"),
        "cache": "independent",
        "pages": Meet("ATOMIC", "one page short"),
        "sharing": Meet("Q", "clone with a queued token"),
        "rollback": Meet("Q", "truncate with a proposed token in the queue"),
        "window": Meet("ALONE", "round after a release"),
        "lifecycle": Meet("OUT", "finish at a page boundary"),
    },
)
