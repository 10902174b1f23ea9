"""Rung scheduling: a queue of tokens, prefill, and decode rounds, each one action.

The edge to naive: each request gets the tokens that it would get alone. A prefill and a round are
folds of actions of lower rungs, listed by `_prefill_parts` and `_round_parts`. Source:
docs/sources.md, "Token queue", "Prefill and decode" and "Continuous batching".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

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
    Hit,
    MixedRound,
    Name,
    Pack,
    Prefill,
    Propose,
    Purge,
    Reserve,
    Reset,
    Round,
    Sample,
    Share,
    TakeOutputs,
    Truncate,
    Write,
)
from spec.machines.lifecycle import (
    Key,
    detail_of,
    no_room_to_draw,
    taken_keys,
    too_long,
    too_many_stops,
)
from spec.machines.pages import SLOT_IN_USE, reserved_slot, row_fits, row_pages, used
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
    check,
    in_order,
)
from spec.state import Queued, State
from spec.table import Entry
from spec.vocabulary import (
    CleanupMode,
    Limits,
    Reason,
    Refusal,
    Request,
    Tokens,
)
from spec.vocabulary.errors import SLOT_REASONS


def packed(state: State) -> tuple[Queued, ...]:
    """The tokens that leave the queue next, in plan order: by slot, then position."""
    leaving = state.queue[: state.limits.round_tokens]
    return tuple(sorted(leaving, key=lambda queued: (queued.slot, queued.position)))


def generate(machine: Machine, state: State) -> tuple[State, int, frozenset[Refusal]]:
    """Run rounds until one is refused or `limits.rounds` are done: state, rounds done, refusals."""
    for done in range(state.limits.rounds):
        found = machine.refusals(state, Round())
        if found:
            return state, done, found
        state = machine.effect(state, Round())
    return state, state.limits.rounds, frozenset()


# The queue.


@check(Reason.TOO_LONG)
def _leaves_room_to_draw(_machine: Machine, state: State, action: Enqueue) -> Faults:
    """With this token, `max_new` tokens or more would follow the prompt: none could be drawn."""
    yield from no_room_to_draw(state, action.slot, len(used(state, action.slot).tokens))


@check(Reason.QUEUE_FULL)
def _one_queued(_machine: Machine, state: State, _action: Enqueue) -> Faults:
    """The queue has `limits.queue` entries."""
    yield from _queue_full(state, 1)


def _enqueue(machine: Machine, state: State, action: Enqueue, _pages: Pages | None) -> State:
    position = len(used(state, action.slot).tokens)
    state = machine.effect(state, Append(action.slot, (action.token,)))
    return _with_queued(state, Queued(action.token, action.slot, position))


def _pack(_machine: Machine, state: State, _action: Pack, _pages: Pages | None) -> State:
    return state._replace(queue=state.queue[state.limits.round_tokens :])


def _purge(_machine: Machine, state: State, action: Purge, _pages: Pages | None) -> State:
    return _without_slot(state, action.slot)


def _queue_full(state: State, more: int) -> Faults:
    """There is room beside the tokens that steps in flight have promised."""
    wanted = len(state.queue) + len(state.promised) + more
    if wanted > state.limits.queue:
        yield wanted, f"up to {state.limits.queue}"


def _with_queued(state: State, *entries: Queued) -> State:
    return state._replace(queue=(*state.queue, *entries))


def _without_slot(state: State, slot: Name) -> State:
    return state._replace(queue=tuple(queued for queued in state.queue if queued.slot != slot))


def _pending(state: State, slot: int) -> tuple[Queued, ...]:
    return tuple(queued for queued in state.queue if queued.slot == slot)


# A prefill.


def _prefill_parts(_machine: Machine, state: State, action: Prefill) -> tuple[Part, ...]:
    """Prompts first, then the forks, then one draw per choice."""
    free = iter(state.unused_slots)
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
    return tidied(machine, run(machine, state, action, pages))


def _prefill_pages(_machine: Machine, state: State, action: Prefill) -> int:
    """A row for each prompt, and what is not shared of the row of each further choice."""
    wanted = 0
    for request in action.requests:
        length = len(request.prompt)
        reserved = state.capacity.reserved_cells(length, request.params.max_new)
        row = row_pages(state, length, reserved)
        shared = state.capacity.shared_pages(state.geometry, length)
        wanted += row + (request.n_generations - 1) * (row - shared)
    return wanted


@check(Reason.PREFILL_WIDTH)
def _prefill_width(_machine: Machine, state: State, action: Prefill) -> Faults:
    """There is no request, there are more than `limits.prefill_seqs`, or their prompts have more
    than `limits.prefill_tokens` tokens together.
    """
    requests, limits = action.requests, state.limits
    tokens = sum(len(request.prompt) for request in requests)
    if not 0 < len(requests) <= limits.prefill_seqs or tokens > limits.prefill_tokens:
        allowed = f"1 to {limits.prefill_seqs} prompts, at most {limits.prefill_tokens} tokens"
        yield f"{len(requests)} prompts, {tokens} tokens", allowed


@check(Reason.TOO_LONG)
def _requests_fit(_machine: Machine, state: State, action: Prefill) -> Faults:
    """The prompt and `max_new` tokens of a request are more than `max_len`."""
    for request in action.requests:
        yield from too_long(state.geometry, len(request.prompt), request.params)


@check(Reason.STOPS)
def _stops_of_requests(_machine: Machine, state: State, action: Prefill) -> Faults:
    """A request has more than `limits.stops` stop sequences, or one longer than
    `limits.stop_len`.
    """
    for request in action.requests:
        yield from too_many_stops(state.limits, request.params.stops)


@check(Reason.CHOICE_TAKEN)
def _ids_unused(_machine: Machine, state: State, action: Prefill) -> Faults:
    """A choice of a request is live in a slot, its output is not taken yet, or two requests have
    one id.
    """
    taken = taken_keys(state)
    ids = [request.id for request in action.requests]
    for request in action.requests:
        met = any(name == request.id and at < request.n_generations for name, at in taken)
        if met or ids.count(request.id) > 1:
            yield request.id, "an unused request id"


@check(Reason.NO_FREE_SLOT)
def _slots_free(_machine: Machine, state: State, action: Prefill) -> Faults:
    """The requests have more choices together than there are free slots."""
    choices, free = _choices(action), len(state.unused_slots)
    if choices > free:
        yield choices, f"at most {free} choices"


@check(Reason.OUT_OF_PAGES)
def _pages_free(machine: Machine, state: State, action: Prefill) -> Faults:
    """More pages are needed than are free: a row for each prompt, and for each further choice what
    its row does not share with the prompt's.
    """
    wanted = machine.pages_wanted(state, action)
    free = pool.free_count(state.in_use)
    if wanted > free:
        yield wanted, f"at most {free} pages"


@check(Reason.QUEUE_FULL)
def _choices_queued(_machine: Machine, state: State, action: Prefill) -> Faults:
    """The queue has no room for one token of each choice."""
    yield from _queue_full(state, _choices(action))


@check(Reason.OUTPUTS_FULL)
def _choices_finish(_machine: Machine, state: State, action: Prefill) -> Faults:
    """The outputs have no room for one of each choice, since each may finish."""
    yield from outputs_full(state, _choices(action))


def _choices(action: Prefill) -> int:
    return sum(request.n_generations for request in action.requests)


def outputs_full(state: State, samples: int) -> Faults:
    """Each sequence that samples may finish, so there must be room for all of them."""
    outputs = len(state.outputs) + samples
    if outputs > state.limits.outputs:
        yield outputs, f"up to {state.limits.outputs} outputs"


# A round.


def _round_parts(_machine: Machine, state: State, _action: Round) -> tuple[Part, ...]:
    return batch_parts(state, _round_batch(state))


def batch_parts(state: State, batch: tuple[Entry, ...]) -> tuple[Part, ...]:
    """The parts of a round with this batch, once its tokens have left the queue."""
    samples = tuple(_sample(state, slot, length) for slot, length in sampled(state, batch))
    parts: tuple[Action, ...] = (Allocate(batch), Write(batch), *samples)
    return tuple((part, None) for part in parts)


def _round_batch(state: State) -> tuple[Entry, ...]:
    return tuple((queued.slot, queued.position) for queued in packed(state))


def sampled(state: State, batch: tuple[Entry, ...] | None = None) -> list[tuple[int, int]]:
    """The slots that a round samples, and their lengths: the last known token is in the batch.

    batch: of the round; None: the tokens that leave the queue.
    """
    batch = _round_batch(state) if batch is None else batch
    lengths = ((slot, length) for slot, length in _lengths(state).items())
    return [(slot, length) for slot, length in lengths if (slot, length - 1) in batch]


def _lengths(state: State) -> dict[int, int]:
    return {slot: len(sequence.tokens) for slot, sequence in enumerate(state.sequences) if sequence}


def _sample(state: State, slot: int, length: int) -> Sample:
    detail = detail_of(state, slot)
    return Sample(slot, model.draw(detail.params, choice=detail.choice, position=length))


def _round(machine: Machine, state: State, action: Round, pages: Pages | None) -> State:
    return tidied(machine, run(machine, state, action, pages))


@check(Reason.QUEUE_EMPTY)
def _some_queued(_machine: Machine, state: State, _action: Round) -> Faults:
    """The queue is empty."""
    if not state.queue:
        yield 0, "at least 1 queued token"


@check(Reason.UNWRITTEN)
def _round_settled(_machine: Machine, state: State, _action: Round) -> Faults:
    """A slot with a packed token has allocated cells that are not written."""
    slots = [slot for slot, _ in _round_batch(state) if not used(state, slot).settled]
    if slots:
        yield slots, "slots whose allocated cells are written"


@check(Reason.PROPOSED)
def _round_known(machine: Machine, state: State, _action: Round) -> Faults:
    """A slot with a packed token has proposed tokens."""
    batch = _round_batch(state)
    slots = [slot for slot, _ in batch if machine.known(state, slot) != used(state, slot).tokens]
    if slots:
        yield slots, "slots without proposed tokens"


@check(Reason.OUTPUTS_FULL)
def _round_outputs(_machine: Machine, state: State, _action: Round) -> Faults:
    """The outputs have no room for one of each slot that draws a token, since each may finish."""
    yield from outputs_full(state, len(sampled(state)))


def _generate(machine: Machine, state: State, _action: Generate, _pages: Pages | None) -> State:
    return generate(machine, state)[0]


def run(
    machine: Machine, state: State, action: Prefill | Round | MixedRound, pages: Pages | None
) -> State:
    """Fold the parts of an action. A round first takes its tokens from the queue."""
    parts, taken = machine.parts(state, action), pages or ()
    if not isinstance(action, Prefill):
        state = machine.effect(state, Pack())
    for part, _ in parts:
        wanted = machine.pages_wanted(state, part) if taken else 0
        state = machine.effect(state, part, taken[:wanted] or None)
        taken = taken[wanted:]
    return state


def tidied(machine: Machine, state: State) -> State:
    """The end of a prefill or round: release finished sequences, as the cleanup mode says."""
    return machine.effect(state, FreeFinished()) if tidies(state) else state


def tidies(state: State) -> bool:
    """Whether finished sequences are released now, as the cleanup mode says."""
    at_end = state.cleanup is CleanupMode.END and not state.live
    return state.cleanup is CleanupMode.INCREMENTAL or at_end


# What scheduling adds to the actions of lower rungs.


@check(Reason.BATCH_QUEUED)
def _not_queued(_machine: Machine, state: State, action: Write) -> Faults:
    """The token of a position is still in the queue; rounds write those."""
    waiting = {(queued.slot, queued.position) for queued in state.queue}
    queued = [entry for entry in action.batch if entry in waiting]
    if queued:
        yield queued, "tokens that have left the queue"


@check(Reason.BATCH_QUEUED)
def _hit_not_queued(_machine: Machine, state: State, action: Hit | Share) -> Faults:
    """A token below `length` is still in the queue; rounds write those."""
    queued = [one for one in _pending(state, action.slot) if one.position < action.length]
    if queued:
        yield queued, "tokens that have left the queue"


@check(Reason.QUEUE_FULL)
def _clone_queued(_machine: Machine, state: State, action: Clone) -> Faults:
    """The queue has no room for a copy of each token of the parent that is queued."""
    yield from _queue_full(state, len(_pending(state, action.parent)))


@check(Reason.QUEUE_FULL)
def _proposals_queued(_machine: Machine, state: State, action: Propose) -> Faults:
    """The queue has no room for the proposed tokens."""
    yield from _queue_full(state, len(action.tokens))


def _clone_pending(_machine: Machine, before: State, action: Clone, after: State) -> State:
    child = reserved_slot(before, action.child)
    copies = (evolve(queued, slot=child) for queued in _pending(before, action.parent))
    return _with_queued(after, *copies)


def _free_queued(_machine: Machine, _before: State, action: Free, after: State) -> State:
    return _without_slot(after, action.slot)


def _queue_sampled(_machine: Machine, _before: State, action: Sample, after: State) -> State:
    return last_queued(after, reserved_slot(after, action.slot))


def last_queued(state: State, slot: int) -> State:
    """Queue the last token of a sequence that has not finished."""
    tokens = used(state, slot).tokens
    if slot in state.finished:
        return state
    return _with_queued(state, Queued(tokens[-1], slot, len(tokens) - 1))


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
            return whole_parts(machine, state, action)
        case Generate():
            return tuple(
                part
                for before in _rounds(machine, state)
                for part in whole_parts(machine, before, Round())
            )
        case Enqueue(slot, token):
            return ((Append(slot, (token,)), None),)
        case Pack() | Purge():
            return ()
        case _:
            return ((action, pages),)


def whole_parts(
    machine: Machine, state: State, action: Prefill | Round | MixedRound
) -> tuple[Part, ...]:
    """The parts of an action, and the cleanup that ends it."""
    parts = tuple(narrow(state.limits, machine.parts(state, action)))
    frees = state.cleanup is CleanupMode.INCREMENTAL
    if state.cleanup is CleanupMode.END:
        frees = tidies(run(machine, state, action, None))
    return (*parts, (FreeFinished(), None)) if frees else parts


def narrow(limits: Limits, parts: Iterable[Part]) -> Iterator[Part]:
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


def _round_texts(machine: Machine, state: State, action: Round | MixedRound) -> Iterator[Action]:
    """The samples of a round, with their draws."""
    for part, _ in machine.parts(state, action):
        if isinstance(part, Sample):
            yield Sample(_name(state, part.slot), part.draw)


def _name(state: State, slot: Name) -> Key:
    assert isinstance(slot, int)
    detail = detail_of(state, slot)
    return detail.request, detail.choice


def _sampled_text(_machine: Machine, state: State, action: Sample) -> Iterator[Action]:
    yield Sample(_name(state, action.slot), action.draw)


_TEXTS: Mapping[type, Callable[[Machine, State, Any], Iterator[Action]]] = {
    Reset: _reset_texts,
    TakeOutputs: _taken_texts,
    Free: _freed_text,
    Sample: _sampled_text,
    Assign: _assigned_text,
    Clone: _cloned_text,
    Prefill: _prefilled_texts,
    Round: _round_texts,
    Generate: _generated_texts,
}
"""For an action, the naive actions on the texts of its requests."""

NAME = "scheduling"
_QUEUED: Final = "the queue names slots in use that have not finished"
_APPENDED: Final = ChecksOf[Enqueue](
    kind=Append,
    action=lambda _machine, _state, action: Append(action.slot, (action.token,)),
    never={Reason.TOO_LONG: "`max_new` leaves less room than `max_len`"},
)
_ROUND_ALLOCATED: Final = ChecksOf[Round](
    kind=Allocate,
    action=lambda _machine, state, _action: Allocate(_round_batch(state)),
    below="lifecycle",
    never={
        Reason.SLOT_RANGE: _QUEUED,
        Reason.SLOT_UNUSED: _QUEUED,
        row_fits: "a queued token is known, and known tokens fit",
    },
)
RUNG = Rung(
    name=NAME,
    requires=("lifecycle",),
    owns=("queue",),
    rules={
        Enqueue: Rule(
            stages=(
                Stage((_APPENDED,)),
                Stage((_leaves_room_to_draw, _one_queued), unless=SLOT_REASONS),
            ),
            effect=_enqueue,
            appends=lambda _machine, _state, action: {action.slot: (action.token,)},
        ),
        Pack: Rule(effect=_pack),
        Purge: Rule(stages=SLOT_IN_USE, effect=_purge),
        Prefill: Rule(
            stages=(
                Stage((_prefill_width,)),
                Stage((_requests_fit, _stops_of_requests, _ids_unused)),
                Stage((_slots_free, _pages_free, _choices_queued, _choices_finish)),
            ),
            effect=_prefill,
            pages_wanted=_prefill_pages,
            parts=_prefill_parts,
        ),
        Round: Rule(
            stages=(
                *in_order(_some_queued, _round_settled, _round_known),
                Stage((_ROUND_ALLOCATED, _round_outputs)),
            ),
            effect=_round,
            parts=_round_parts,
        ),
        Generate: Rule(effect=_generate),
    },
    folds=frozenset({Append, Sample}),
    guards={
        Write: in_order(_not_queued),
        Hit: in_order(_hit_not_queued),
        Share: in_order(_hit_not_queued),
        Clone: (Stage((_clone_queued,), unless=SLOT_REASONS),),
        Propose: (Stage((_proposals_queued,), unless=SLOT_REASONS),),
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
        "prefix": Meet("Q", "Hit: BATCH_QUEUED"),
        "lifecycle": Meet("OUT", "finish at a page boundary"),
    },
)
