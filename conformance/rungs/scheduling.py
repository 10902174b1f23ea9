"""Rung scheduling: generators of requests and queued tokens, and the outcomes to reach."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Final

from attrs import evolve

from conformance.history import Step
from conformance.protocol import Action, Result, Rounds
from conformance.rungs.pages import SERVING, appended, at_edge, pages_of, reserve
from conformance.rungs.record import (
    EAGER_COPY,
    PART_ROUNDS,
    SEVERAL_CELLS,
    THREE_CHOICES,
    ActionKit,
    Move,
    RungKit,
    Session,
)
from conformance.rungs.shared_generators import (
    ALPHABET,
    Digits,
    begin_anew,
    cells_in,
    constant,
    deliver_all,
    first_queued,
    has_queued,
    has_used,
    named,
    one,
    rarely,
    request,
    token_of,
    used_slots,
    when,
    wild_slot,
)
from conformance.rungs.shared_moves import allocating, fixed, slots_of, writing
from conformance.rungs.simpler import simpler_requests
from spec import model, pool
from spec.machines import actions as act
from spec.machines import naive, scheduling
from spec.machines.actions import (
    Assign,
    Clone,
    Enqueue,
    Free,
    Generate,
    Pack,
    Prefill,
    Purge,
    Reserve,
    Round,
)
from spec.machines.pages import row_pages, used
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import Geometry, Limits, Params, Reason, Request, Tokens

DRAWS_FILL_OUTPUTS: Final = (
    "round that draws for as many as the outputs have room for, and packs more"
)
CHOICES_SHORT: Final = "one page short of the copies of several choices"
ROUND: Final = constant(Round(), Round(), Generate())


def enqueue(state: State, drawn: int) -> Enqueue:
    """Queue a forced token for a live slot."""
    digits = Digits(drawn)
    live = [slot for slot in state.live if state.details[slot]]
    return Enqueue(wild_slot(state, digits, live), token_of(digits))


def queue_up(session: Session, drawn: int) -> Step:
    """Queue a forced token; sometimes so many, for one slot or all, that the queue is full."""
    digits, state = Digits(drawn), session.state
    live = [slot for slot in state.live if state.details[slot]]
    if not live or not digits.rarely(5):
        return enqueue(state, drawn // 5)
    _queue_for_some(session, digits, live, state.limits.queue)
    return Enqueue(digits.one_of(live), 0)


def _queue_for_some(session: Session, digits: Digits, live: list[int], most: int) -> None:
    """Queue forced tokens for one of these slots, or for all, until so many tokens are queued."""
    chosen = [*live] if digits.below(2) else [digits.one_of(live)]
    while chosen and len(session.state.queue) < most:
        before, slot = session.state, chosen.pop(0)
        session.take(Enqueue(slot, digits.below(ALPHABET)))
        if session.state is not before:  # nothing is full
            chosen.append(slot)


def wide_round(session: Session, drawn: int) -> Step:
    """A round or the loop, with as many tokens queued as a round takes, or one less or more.

    Before it, mostly a request begins whose row has room for many. What would keep a round from
    being done is delivered or freed.
    """
    digits, sizes = Digits(drawn), session.state.geometry
    deliver_all(session)
    for slot in session.state.live:
        if not _goes_on(session.state, slot):
            session.take(Free(slot))
    if digits.below(3):
        params = Params(max_new=sizes.max_len - 1)
        begun = Prefill((Request(id=session.next_id(), prompt=(0,), params=params),))
        make_room(session, begun, digits)
        session.take(begun)
    live = [slot for slot in session.state.live if session.state.details[slot]]
    if live:
        wanted = session.state.limits.round_tokens + digits.one_of((0, 1, 1, -1))
        _queue_for_some(session, digits, live, min(wanted, session.state.limits.queue))
    make_room(session, Round(), digits)
    return ROUND(session, digits.below(3))


def _goes_on(state: State, slot: int) -> bool:
    """Whether a round could be done with the queued tokens of a slot."""
    sequence = used(state, slot)
    first = first_queued(state, slot, sequence.allocated)
    drafts = any(state.proposed[slot : slot + 1])  # there are none without the rung rollback
    return sequence.settled and not drafts and first == sequence.allocated


def purge(state: State, drawn: int) -> Purge:
    """Drop the queued tokens of a slot."""
    digits = Digits(drawn)
    queued = sorted({queued.slot for queued in state.queue})
    return Purge(wild_slot(state, digits, queued))


def prefill(state: State, drawn: int, serial: int) -> Prefill:
    """One to three requests, or as many as a prefill takes, or one more; often of several choices,
    often at the limit of the pool; sometimes such as fit together.
    """
    digits, most = Digits(drawn), state.limits.prefill_seqs
    if digits.rarely(3):
        return _fitting_together(state, digits, serial)
    count, width = 1 + digits.below(2) * digits.below(3), state.limits.prefill_tokens
    many, twice = digits.rarely(12), digits.rarely(8)  # before the requests take the other digits
    again, more = digits.below(count), digits.rarely(4)
    if many:
        count = most + more
    requests = [request(state, digits, serial + index) for index in range(count)]
    if many:
        requests = [evolve(one, prompt=one.prompt[: max(1, width // count)]) for one in requests]
    if twice:  # mostly nothing else is wrong
        requests.append(evolve(requests[again % count], prompt=(0,), n_generations=1))
    return Prefill(tuple(requests))


def _fitting_together(state: State, digits: Digits, serial: int) -> Prefill:
    """Two or three requests that share the width, and the slots for their choices.

    Drawn apart, hardly any two requests of several choices fit into the slots.
    """
    sizes, count = state.geometry, 2 + digits.rarely(3)
    slots, width = sizes.slots, state.limits.prefill_tokens
    size, requests = sizes.page_size, list[Request]()
    for left in reversed(range(count)):
        choices = 1 + digits.below(max(1, min(3, slots - left)))
        longest = max(1, min(width // (1 + left), sizes.max_len - 1))
        length = min(digits.one_of((size, size + 1, max(1, size - 1), 2 * size, 1)), longest)
        room = sizes.max_len - length
        params = Params(max_new=min(room, 1 + digits.below(2 * size)), temperature=digits.below(2))
        prompt = (digits.below(ALPHABET),) * length
        requests.append(
            Request(id=serial + left, prompt=prompt, params=params, n_generations=choices)
        )
        slots, width = slots - choices, width - length
    return Prefill(tuple(requests))


REMEDIES: Final[Mapping[Reason, Callable[[State], list[Action]]]] = {
    Reason.OUTPUTS_FULL: lambda state: [act.TakeOutputs()] if state.outputs else [],
    Reason.QUEUE_FULL: lambda state: [Purge(one.slot) for one in state.queue],
    Reason.NO_FREE_SLOT: lambda state: [Free(slot) for slot in used_slots(state)],
    Reason.OUT_OF_PAGES: lambda state: [Free(slot) for slot in used_slots(state)],
}
"""What a server can do that lacks something."""
MOST_FREED: Final = 8
"""The most steps by which one action gets what it lacks."""


def make_room(session: Session, action: Action, digits: Digits) -> None:
    """Free what an action lacks, one after another; nothing if something else is wrong, too."""
    for _ in range(MOST_FREED):
        before = session.state
        lacking = sorted({found.reason for found in SERVING.refusals(before, action)})
        if not lacking or not REMEDIES.keys() >= set(lacking):
            return
        remedies = REMEDIES[lacking[0]](before)
        if not remedies:
            return
        session.take(digits.one_of(remedies))
        if session.state == before:  # the engine does not offer it
            return


def prefill_with_room(session: Session, drawn: int) -> Prefill:
    """A prefill; mostly after all that it lacks was freed."""
    digits = Digits(drawn)
    wanted = digits.below(4)
    action = prefill(session.state, drawn // 4, session.next_id())
    if wanted:
        make_room(session, action, digits)
    return action


def stopped_past_given_tokens(session: Session, drawn: int) -> Step:
    """Rounds of a request whose stop sequence is of given tokens, equal ones, and one that follows.

    There are as many of them as the stop sequence has, or more: it then begins anew inside itself.
    """
    digits, before = Digits(drawn), session.state
    sizes, most = before.geometry, before.limits.stop_len
    token, kept = digits.below(ALPHABET), 1 + digits.below(most - 1)
    given = kept + digits.below(3)
    longest = min(sizes.max_len - given - 2, before.limits.prefill_tokens)
    if most < 2 or longest < 1 or Enqueue not in session.actions:
        return session.rules["prefill"](session, drawn)
    prompt = (digits.below(ALPHABET),) * (1 + digits.below(min(longest, sizes.page_size + 1)))
    free = Params(max_new=1, temperature=digits.below(2), seed=digits.below(3))
    text = (*naive.generate(prompt, free, window=sizes.window)[0], *(token,) * given)
    following = naive.generate((*prompt, *text), free, window=sizes.window)[0]
    stop = (*(token,) * kept, *following)
    params = evolve(free, max_new=given + 3, stops=(stop,))
    number = session.next_id()
    session.take(Prefill((Request(id=number, prompt=prompt, params=params),)))
    for slot, detail in enumerate(session.state.details):
        if detail is not None and detail.request == number:
            for _ in range(given):
                session.take(Enqueue(slot, token))
    return Generate()


def successor(session: Session, drawn: int) -> Step:
    """A request, and another one in its slot that differs in one value; each is served.

    What a slot keeps of a former occupant often changes nothing for a request that has all of it
    itself, or whose text is another.
    """
    digits = Digits(drawn)
    first = request(session.state, digits, session.next_id())
    others = tuple(one for one in _alike(first) if one != first)
    if not others or not session.state.unused_slots:
        return session.rules["go_on"](session, drawn)
    pair = [first, evolve(digits.one_of(others), id=session.next_id())]
    if digits.below(3) == 2:
        pair.reverse()
    for each in pair:
        session.take(Prefill((each,)))
        session.take(Generate())
        for slot, detail in enumerate(session.state.details):
            if detail is not None and detail.request == each.id:
                session.take(Free(slot))
    return Generate()


def _alike(first: Request) -> Iterator[Request]:
    """The request with one value less: no stop sequence, greedy, a shorter prompt or text."""
    params = first.params
    yield evolve(first, params=evolve(params, stops=()))
    yield evolve(first, params=evolve(params, temperature=0.0))
    yield evolve(first, params=evolve(params, seed=0))
    yield evolve(first, params=evolve(params, max_new=max(1, params.max_new - 1)))
    yield evolve(first, prompt=first.prompt[:-1] or first.prompt)
    yield evolve(first, n_generations=1)


def choices_at_edge(session: Session, drawn: int) -> Step:
    """A prefill of several choices that takes exactly the free pages, or one page more.

    Before it, all other requests make way for those that leave it so many pages. Often it has as
    many choices as such a prefill can have.
    """
    digits, sizes = Digits(drawn), session.state.geometry
    short, row = digits.below(2), sizes.pages_per_seq
    longest = min(sizes.max_len - 2, session.state.limits.prefill_tokens)  # it does not end at once
    most = sizes.pages_for(longest)
    options = [
        (choices, beside)
        for choices in range(2, sizes.slots + 1)
        for own in range(1, row + 1)
        if 0
        <= (beside := sizes.pages + short - own - choices + 1)
        <= (sizes.slots - choices) * most
    ]
    if not options or act.Reset not in session.actions:
        return session.rules["prefill"](session, drawn)
    if digits.below(2):
        options = [option for option in options if option[0] == options[-1][0]]
    choices, beside = digits.one_of(options)
    begin_anew(session)
    while beside > 0:
        before = session.state
        length = min(longest, beside * sizes.page_size)
        params = Params(max_new=sizes.max_len - length)
        session.take(Prefill((Request(id=session.next_id(), prompt=(0,) * length, params=params),)))
        if session.state == before:
            break
        beside -= sizes.pages_for(length)
    wanted = pool.free_count(session.state.in_use) + short
    fit = _forked_fit(session, choices, wanted)
    return session.rules["prefill"](session, drawn) if fit is None else fit


def _forked_fit(session: Session, choices: int, wanted: int) -> Prefill | None:
    """A request of so many choices that takes so many pages, if there is one.

    Its prompt has as many tokens as the choices leave room for.
    """
    state, name = session.state, session.next_id()
    longest = min(state.geometry.max_len - 1, state.limits.prefill_tokens)
    for length in range(longest, 0, -1):
        for new in (1, state.geometry.max_len - length):
            prompt, params = (0,) * length, Params(max_new=new)
            one = Prefill((Request(id=name, prompt=prompt, params=params, n_generations=choices),))
            if SERVING.pages_wanted(state, one) == wanted:
                return one
    return None


def exact_fit(state: State, drawn: int, serial: int) -> Prefill:
    """A prefill that takes exactly the free pages, or as many as its width allows.

    While no page is shared, mostly a prefill of several choices instead: without sharing, the count
    of pages in use and the count of row entries are equal, so a mix-up of the two goes unseen.
    """
    digits, size = Digits(drawn), state.geometry.page_size
    counts = state.counts
    longest = max(1, min(state.geometry.max_len, state.limits.prefill_tokens) - 1)
    if max(counts) < 2 and digits.below(4) != 3:
        prompt = (digits.below(ALPHABET),) * max(1, (longest - 1) // size * size)
        params = Params(max_new=max(1, state.geometry.max_len - len(prompt)))
        choices = max(2, state.geometry.slots - 1)
        request = Request(id=serial, prompt=prompt, params=params, n_generations=choices)
        return Prefill((request,))
    free, left = pool.free_count(state.in_use), state.limits.prefill_tokens
    requests: list[Request] = []
    most = min(state.limits.prefill_seqs, len(state.unused_slots))
    while free and left and len(requests) < most:
        length = min(left, longest, cells_in(state, free - 1) + 1)
        wanted = row_pages(state, length, state.capacity.reserved_cells(length, 1))
        if wanted > free:
            break
        request = Request(id=serial + len(requests), prompt=(0,) * length, params=Params(max_new=1))
        requests.append(request)
        left, free = left - length, free - wanted
    return Prefill(tuple(requests)) if requests else prefill(state, drawn, serial)


def _simpler_prefill(action: Prefill) -> Iterator[Step]:
    requests = action.requests
    for index in range(len(requests)):
        if len(requests) > 1:
            yield Prefill(requests[:index] + requests[index + 1 :])
        for smaller in simpler_requests(requests[index]):
            yield Prefill((*requests[:index], smaller, *requests[index + 1 :]))


def _simpler_generate(_action: Generate) -> Iterator[Step]:
    yield Round()


def _packed(_machine: Machine, before: State, _action: Pack, _after: State) -> tuple[Result, ...]:
    leaving = scheduling.packed(before)
    return (tuple((queued.token, queued.slot, queued.position) for queued in leaving),)


def _rounds(
    machine: Machine, before: State, _action: Generate, _after: State
) -> tuple[Result, ...]:
    """Any reason of the round that was refused; none after the last round."""
    _, done, found = scheduling.generate(machine, before)
    reasons = sorted(refusal.reason for refusal in found)
    return tuple(Rounds(done, reason) for reason in reasons or (None,))


def _finish_corners(before: State, _action: Round | Prefill, after: State) -> Iterator[str]:
    for output in after.outputs[len(before.outputs) :]:
        length = len(output.prompt) + len(output.tokens)
        boundary = length % before.geometry.page_size == 0
        yield "finish at a page boundary" if boundary else "finish inside a page"


def copies_of_choices(state: State, action: Action) -> bool:
    """Whether more than one choice of a prompt takes a copy of its partial page."""
    return isinstance(action, Prefill) and any(
        request.n_generations > 2 and len(request.prompt) % state.geometry.page_size
        for request in action.requests
    )


def _round_corners(before: State, action: Round, after: State) -> Iterator[str]:
    yield from _finish_corners(before, action, after)
    packed = {queued.slot for queued in scheduling.packed(before)}
    draws = len(scheduling.sampled(before))
    room = before.limits.outputs - len(before.outputs)
    if draws == room < len(packed):
        yield DRAWS_FILL_OUTPUTS


def _always(before: State, action: Action, _after: State) -> Iterator[str]:
    if isinstance(action, Clone) and any(one.slot == action.parent for one in before.queue):
        yield "clone with a queued token"


PROMPTS: Final = ((1,), (2, 1))


def _drawn(prompt: Tokens, count: int) -> Tokens:
    """The first tokens that the model draws after a prompt, at temperature 0."""
    text = prompt
    for _ in range(count):
        text = (*text, model.next_token(text, 0))
    return text[len(prompt) :]


def round_at_edge(session: Session, drawn: int) -> Step:
    """A round; sometimes where the pool has exactly the pages that it takes, or one less."""
    digits = Digits(drawn)
    if digits.below(4) or not _takes_pages(session):
        return Round()
    return at_edge(session, digits.below(64), Round(), short=digits.below(3) > 0)


def _takes_pages(session: Session) -> bool:
    """Whether the next round takes pages, after as many rounds as that needs."""
    for _ in range(session.state.geometry.page_size):
        ends = appended(session.state, Round())
        if not ends or any(pages_of(session.state, ends)):
            return bool(ends)
        session.take(Round())
    return False


def round_at_full_outputs(session: Session, drawn: int) -> Step:
    """A round while the outputs have room for none or one more; mostly of many tokens of a slot.

    So that a round which draws for fewer sequences than it packs is told from one that does not.
    """
    digits = Digits(drawn)
    left = digits.below(2)
    while (room := session.state.limits.outputs - len(session.state.outputs) - left) > 0:
        before = session.state
        most = min(room, before.limits.prefill_seqs, before.limits.prefill_tokens)
        count = min(most, len(before.unused_slots), pool.free_count(before.in_use))
        if count == 0 and act.FreeFinished in session.actions:
            session.take(act.FreeFinished())
        else:
            params = Params(max_new=1)
            requests = (
                Request(id=session.next_id(), prompt=(0,), params=params) for _ in range(count)
            )
            session.take(Prefill(tuple(requests)))
        if session.state == before:
            break
    live = [slot for slot in session.state.live if session.state.details[slot]]
    if live and digits.below(4):
        slot = digits.one_of(live)
        for _ in range(session.state.limits.queue - len(session.state.queue)):
            session.take(Enqueue(slot, digits.below(ALPHABET)))
    return Round()


def alphabet(geometry: Geometry, limits: Limits) -> Iterator[Move]:
    """Two requests, each of one choice or two. One ends by its limit, the other by a stop sequence.

    A clone is the second choice of its request. The two choices of `prefill(twins)` live for a
    round, so that one can end before the other: its output then waits while the request goes on.
    """
    for number, prompt, choices, new in product((1, 2), PROMPTS, (1, 2), (1, 3)):
        request = Request(
            id=number,
            prompt=prompt,
            params=Params(
                max_new=new,
                stops=(_drawn(prompt, 2)[-limits.stop_len :],) if number == 2 else (),
                temperature=float(len(prompt) - 1),
                seed=number,
            ),
            n_generations=choices,
        )
        yield fixed(act.Prefill((request,)), f"prefill({number}: {prompt} x {choices}, {new})")
    pair = tuple(
        Request(id=number, prompt=prompt, params=Params(max_new=2))
        for number, prompt in zip((1, 2), PROMPTS, strict=True)
    )
    yield fixed(act.Prefill(pair), "prefill(both)")
    twins = Request(id=1, prompt=(1,), params=Params(max_new=2), n_generations=2)
    yield fixed(act.Prefill((twins,)), "prefill(twins)")
    stopped = Request(id=1, prompt=(1,), params=Params(max_new=1, stops=((1,),) * 2))
    yield fixed(act.Prefill((stopped,)), "prefill(stops)")
    yield fixed(act.Prefill(()), "prefill(none)")
    yield fixed(act.Reserve(geometry.slots - 1), f"reserve({geometry.slots - 1})")
    yield fixed(act.Round(), "round")
    yield fixed(act.Generate(), "generate")
    yield fixed(act.FreeFinished(), "free_finished")
    yield fixed(act.TakeOutputs(), "take_outputs")
    yield fixed(act.Pack(), "pack")
    for slot in range(geometry.slots + 1):
        yield fixed(act.Enqueue(slot, 1), f"enqueue({slot})")
        yield fixed(act.Purge(slot), f"purge({slot})")
    for slot in range(geometry.slots):
        yield allocating(f"allocate({slot}, 1)", (slot, 0))
        yield writing(f"write({slot}, 1)", (slot, 0))
    yield from slots_of(geometry, lambda _child: 1, lambda _parent: 0)


KIT: Final = RungKit(
    rung="scheduling",
    actions={
        Enqueue: ActionKit(),
        Pack: ActionKit(results=_packed, result_clause="Q"),
        Purge: ActionKit(),
        Prefill: ActionKit(corners=_finish_corners, simpler=_simpler_prefill),
        Round: ActionKit(corners=_round_corners),
        Generate: ActionKit(simpler=_simpler_generate, results=_rounds, result_clause="PROG"),
    },
    corners={
        "finish at a page boundary": ("Round|Prefill",),
        "finish inside a page": ("Round|Prefill", SEVERAL_CELLS),
        "clone with a queued token": ("Clone", "Enqueue|Prefill"),
        DRAWS_FILL_OUTPUTS: ("Round: OUTPUTS_FULL", "Enqueue", PART_ROUNDS),
        CHOICES_SHORT: ("Prefill: OUT_OF_PAGES", EAGER_COPY, THREE_CHOICES),
    },
    always=_always,
    rules={
        "lifecycle": {
            "enqueue": when(has_used, queue_up, "advance"),
            "pack": when(has_queued, constant(Pack()), "enqueue"),
            "purge": when(has_queued, one(purge), "enqueue"),
        },
        "scheduling": {
            "prefill": prefill_with_room,
            "round": when(has_queued, round_at_edge, "prefill"),
            "wide_round": when(has_queued, wide_round, "prefill"),
            "full_outputs": when(has_queued, round_at_full_outputs, "prefill"),
            "go_on": when(has_queued, ROUND, "prefill"),
            "reserve": rarely(3, one(reserve), "go_on"),
            "exact_fit": named(exact_fit),
            "choices_at_edge": choices_at_edge,
            "stopped": stopped_past_given_tokens,
            "successor": rarely(3, successor, "go_on"),
            "enqueue": when(has_queued, queue_up, "prefill"),
        },
    },
    needs=frozenset({Prefill, Round}),
    warmup=(
        Reserve(),
        Assign(0, (1,), Params(max_new=1), 1),
        Enqueue(0, 1),
        Purge(0),
        Free(0),
        Pack(),
        Round(),
        Prefill((Request(id=2, prompt=(1,), params=Params(max_new=1)),)),
        Generate(),
    ),
    alphabet=alphabet,
    driven={"ALONE": (Prefill, Round, Generate)},
)
