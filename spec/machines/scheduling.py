"""Rung 5: a queue of tokens, prefill, and decode rounds, each one action.

Seen from naive, request by request: the tokens it would have got alone. Inside, a prefill and a
round are folds of lifecycle actions, listed by `prefill_parts` and `round_parts`. Source: seed 000,
sections 3.5 and 4; seed 004, section 9.
"""

from collections.abc import Iterator
from typing import TypeGuard

from attrs import evolve, frozen

from spec import model
from spec.machines import lifecycle, naive, sharing
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
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    Limits,
    Reason,
    Refusal,
    Request,
    Tokens,
    refused,
)
from spec.vocabulary.errors import Family

Primitive = (
    Reserve | Assign | Allocate | Write | Clone | Free | FreeFinished | Reset | TakeOutputs
)
Action = Primitive | Enqueue | Pack | Purge | Prefill | Round | Generate


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
    limits.check(geometry)
    return State(lifecycle.initial(geometry), limits, cleanup)


def refusals(state: State, action: Action) -> frozenset[Refusal]:
    """Why the action cannot be done; empty exactly if it can."""
    match action:
        case Enqueue():
            return frozenset(_enqueue_refusals(state, action))
        case Pack() | Generate():
            return frozenset()
        case Clone():
            return frozenset(_clone_refusals(state, action))
        case Purge(slot):
            return frozenset(unused_refusals(state.lifecycle.sharing.pages, slot))
        case Prefill(requests):
            return frozenset(_prefill_refusals(state, requests))
        case Round():
            return frozenset(_round_refusals(state))
        case Allocate(batch) | Write(batch) if len(batch) > state.limits.prefill_tokens:
            allowed = f"at most {state.limits.prefill_tokens} entries"
            return frozenset({Refusal(Reason.BATCH_WIDTH, len(batch), allowed)})
        case Write(batch):
            return lifecycle.refusals(state.lifecycle, action) or _queued_refusals(state, batch)
        case Assign():
            stops = frozenset(stop_refusals(state.limits, action.params.stops))
            return stops | lifecycle.refusals(state.lifecycle, action)
        case _:
            return lifecycle.refusals(state.lifecycle, action)


def step(state: State, action: Action, choice: Pages | None = None) -> State:
    """Apply an action, or raise Refused. `choice`: the pages to take, in the order of taking."""
    found = refusals(state, action)
    if found:
        raise refused(found)
    match action:
        case Enqueue(slot, token):
            position = len(used(state.lifecycle.sharing.pages, slot).tokens)
            below = lifecycle.step(state.lifecycle, Append(slot, (token,)))
            return evolve(
                state, lifecycle=below, queue=(*state.queue, Queued(token, slot, position))
            )
        case Pack():
            return evolve(state, queue=state.queue[state.limits.round_tokens :])
        case Purge(slot):
            return _purge(state, slot)
        case Free(int(slot)):
            return _purge(evolve(state, lifecycle=lifecycle.step(state.lifecycle, action)), slot)
        case Clone(parent):
            return _clone(state, action, choice)
        case Reset():
            return initial(state.geometry, state.limits, state.cleanup)
        case Prefill(requests):
            return _tidy(_fold(state, prefill_parts(state, requests), choice))
        case Round():
            queue = state.queue[state.limits.round_tokens :]
            return _tidy(_fold(evolve(state, queue=queue), round_parts(state), choice))
        case Generate():
            return generate(state)[0]
        case _:
            return evolve(state, lifecycle=lifecycle.step(state.lifecycle, action, choice))


def generate(state: State) -> tuple[State, int, frozenset[Refusal]]:
    """Run rounds until one is refused or `limits.rounds` are done: state, rounds done, why."""
    for done in range(state.limits.rounds):
        found = refusals(state, Round())
        if found:
            return state, done, found
        state = step(state, Round())
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


def stop_refusals(limits: Limits, stops: tuple[Tokens, ...]) -> Iterator[Refusal]:
    """Stop sequences must fit their static table."""
    longest = max((len(stop) for stop in stops), default=0)
    if len(stops) > limits.stops or longest > limits.stop_len:
        allowed = f"at most {limits.stops} of {limits.stop_len} tokens"
        yield Refusal(Reason.STOPS, f"{len(stops)}, the longest of {longest} tokens", allowed)


def prefill_pages(geometry: Geometry, request: Request) -> int:
    """Pages that prefilling one request takes: its prompt, and a partial page per further choice."""
    partial = len(request.prompt) % geometry.page_size != 0
    return geometry.pages_for(len(request.prompt)) + partial * (request.n_generations - 1)


def _fold(state: State, parts: tuple[lifecycle.Action, ...], choice: Pages | None) -> State:
    """Apply lifecycle actions; what is sampled and goes on is queued."""
    taken = choice or ()
    below, queue = state.lifecycle, list(state.queue)
    for part in parts:
        wanted = sharing.pages_wanted(below.sharing, part) if _takes(part) else 0
        below = lifecycle.step(below, part, taken[:wanted])
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
        below = lifecycle.step(below, FreeFinished())
    return evolve(state, lifecycle=below)


def _purge(state: State, slot: int) -> State:
    return evolve(state, queue=tuple(queued for queued in state.queue if queued.slot != slot))


def _clone(state: State, action: Clone, choice: Pages | None) -> State:
    child = reserved_slot(state.lifecycle.sharing.pages, action.child)
    below = lifecycle.step(state.lifecycle, action, choice)
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


def _enqueue_refusals(state: State, action: Enqueue) -> Iterator[Refusal]:
    below = lifecycle.refusals(state.lifecycle, Append(action.slot, (action.token,)))
    yield from below
    if any(refusal.reason.family is Family.SLOT for refusal in below):
        return
    detail = lifecycle.detail_of(state.lifecycle, action.slot)
    generated = len(used(state.lifecycle.sharing.pages, action.slot).tokens) - detail.prompt_len
    if generated + 1 >= detail.params.max_new:
        allowed = f"fewer than {detail.params.max_new - 1} generated tokens"
        yield Refusal(Reason.TOO_LONG, generated, allowed)
    if len(state.queue) == state.limits.queue:
        yield Refusal(Reason.QUEUE_FULL, len(state.queue), f"below {state.limits.queue}")


def _queued_refusals(state: State, batch: Batch) -> frozenset[Refusal]:
    waiting = {(queued.slot, queued.position) for queued in state.queue}
    queued = [entry for entry in batch if entry in waiting]
    if not queued:
        return frozenset()
    return frozenset({Refusal(Reason.BATCH_QUEUED, queued, "tokens that have left the queue")})


def _prefill_refusals(state: State, requests: tuple[Request, ...]) -> Iterator[Refusal]:
    """Guards in stages: a later stage is asked only if the earlier ones found nothing."""
    problems = (
        list(_width_refusals(state.limits, requests))
        or list(_request_refusals(state, requests))
        or list(_room_refusals(state, requests))
    )
    yield from problems


def _width_refusals(limits: Limits, requests: tuple[Request, ...]) -> Iterator[Refusal]:
    tokens = sum(len(request.prompt) for request in requests)
    if not 0 < len(requests) <= limits.prefill_seqs or tokens > limits.prefill_tokens:
        allowed = f"1 to {limits.prefill_seqs} prompts, at most {limits.prefill_tokens} tokens"
        yield Refusal(Reason.PREFILL_WIDTH, f"{len(requests)} prompts, {tokens} tokens", allowed)


def _request_refusals(state: State, requests: tuple[Request, ...]) -> Iterator[Refusal]:
    taken = lifecycle.taken_keys(state.lifecycle)
    ids = [request.id for request in requests]
    for request in requests:
        yield from lifecycle.request_refusals(state.geometry, len(request.prompt), request.params)
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
    free = state.lifecycle.sharing.counts.count(0)
    if wanted > free:
        yield Refusal(Reason.OUT_OF_PAGES, wanted, f"at most {free} pages")
    if len(state.queue) + choices > state.limits.queue:
        yield Refusal(Reason.QUEUE_FULL, len(state.queue) + choices, f"up to {state.limits.queue}")
    yield from _output_refusals(state, choices)


def _output_refusals(state: State, samples: int) -> Iterator[Refusal]:
    """Each sequence that samples may finish, so there must be room for all of them."""
    outputs = len(state.lifecycle.outputs) + samples
    if outputs > state.limits.outputs:
        yield Refusal(Reason.OUTPUTS_FULL, outputs, f"up to {state.limits.outputs} outputs")


def _round_refusals(state: State) -> Iterator[Refusal]:
    if not state.queue:
        yield Refusal(Reason.QUEUE_EMPTY, 0, "at least 1 queued token")
        return
    allocate, _, *samples = round_parts(state)
    assert isinstance(allocate, Allocate)
    table = state.lifecycle.sharing.pages
    unsettled = [slot for slot, _ in filter(None, allocate.batch) if not used(table, slot).settled]
    if unsettled:
        yield Refusal(Reason.UNWRITTEN, unsettled, "slots whose allocated cells are written")
        return
    yield from lifecycle.refusals(state.lifecycle, allocate)
    yield from _output_refusals(state, len(samples))


def _clone_refusals(state: State, action: Clone) -> Iterator[Refusal]:
    below = lifecycle.refusals(state.lifecycle, action)
    yield from below
    if any(refusal.reason.family is Family.SLOT for refusal in below):
        return
    queued = len(state.queue) + len(_pending(state, action.parent))
    if queued > state.limits.queue:
        yield Refusal(Reason.QUEUE_FULL, queued, f"up to {state.limits.queue}")
