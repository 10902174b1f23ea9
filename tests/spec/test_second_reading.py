"""The specification beside a second reading of it: no code in common, the same states and reasons.

The engine follows the specification, so a mistake in what an action means is invisible between the
two. Here random histories, legal and not, go through the specification and `second_reading`.
"""

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from attrs import evolve, frozen
from second_reading import SecondReading
from spec_draws import mistaken, one_of, prompt_of, propose, releasable, request_of
from spec_tools import geometry, limits, sequence, span

from spec import fields, ladder, stats, view
from spec.machines import actions as act
from spec.machines import flights, naive, prefix, scheduling
from spec.machines.actions import Action
from spec.machines.window import first_visible
from spec.state import State
from spec.stats import Totals
from spec.vocabulary import (
    INVALID,
    Capacity,
    CleanupMode,
    Params,
    Reason,
    Request,
    ResetMode,
    Tokens,
)
from spec.vocabulary.capacity import COPIES, RESERVATIONS

FEW, HISTORIES, MOST, STEPS = 160, 1400, 5600, 60
CACHING = ladder.whole()
Outcome = tuple[type, frozenset[Reason]]
"""An action and the reasons for which it was refused; none if it was done."""


@frozen
class Odds:
    """What a history is made of. waiting: the sixths of the actions that submit and admit.

    index: the sixths of the others that are actions on the index, where one matters. any: whether a
    sixth are actions with any values. long: whether prompts of slots have room for many tokens.
    flying: the sixths that begin or end steps in flight.
    """

    waiting: int
    index: int
    any: bool
    long: bool
    flying: int


def begin(rng: Random) -> tuple[State, SecondReading, Odds]:
    """A small machine with limits that are often reached, and any policy.

    Every sixth history is one of the index alone: pages of one cell, many of which are idle.
    """
    alone = rng.randrange(6) == 0
    slots = 3 if alone else one_of(rng, 1, 2, 3, 4)
    sizes = geometry(
        pages=one_of(rng, 4, 5, 6) if alone else one_of(rng, 2, 4, 6, 9),
        page_size=1 if alone else one_of(rng, 1, 2, 3, 4),
        slots=slots,
        pages_per_seq=4 if alone else one_of(rng, 2, 3, 4, 6),
        window=2 if alone else rng.choice((None, None, 1, 2, 3, 5)),
    )
    given = limits(
        sizes,
        queue=slots + one_of(rng, 0, 0, 1),
        outputs=slots + one_of(rng, 0, 2, 6),
        round_tokens=one_of(rng, slots, 1, 2),
        rounds=one_of(rng, 1, 2, 5),
        prefill_seqs=one_of(rng, 1, 2, 3),
        prefill_tokens=one_of(rng, 3, sizes.max_len, 2 * sizes.max_len, 3 * sizes.max_len),
        stops=one_of(rng, 1, 2),
        stop_len=one_of(rng, 2, 3),
    )
    capacity = Capacity(
        copy=rng.choice(COPIES),
        lookahead=one_of(rng, 0, 0, 1, sizes.page_size, sizes.max_len),
        reserve=rng.choice(RESERVATIONS),
    )
    if one_of(rng, 0, 0, 1):
        past = -(-((sizes.window or sizes.max_len) - 1) // sizes.page_size)
        ring = min(sizes.pages_per_seq, past + 1 + one_of(rng, 0, 0, 1))
        capacity = evolve(capacity, lookahead=0, reserve="none", ring=ring)
    odds = Odds(
        waiting=0 if alone else one_of(rng, 0, 2),
        index=6 if alone else one_of(rng, 0, 2, 4),
        any=not alone and one_of(rng, 0, 1) > 0,
        long=one_of(rng, 0, 1) > 0,
        flying=one_of(rng, 0, 0, 3, 4, 4),
    )
    cleanup = rng.choice(list(CleanupMode))
    state = CACHING.initial(sizes, given, cleanup, capacity)
    return state, SecondReading(sizes, given, cleanup, capacity), odds


def drawn(state: State, rng: Random, number: int, odds: "Odds") -> Action:
    """An action that is likely to matter, or any action at all."""
    kind = rng.randrange(6)
    if kind < odds.waiting:
        submitted = _with_stops(request_of(state, rng, one_of(rng, number, number, 1)), rng)
        return act.Admit() if one_of(rng, 0, 1) else act.Submit(submitted)
    if kind == 5 and odds.any:
        return _any(state, rng, number)
    if rng.randrange(6) < odds.flying and (flown := _flown(state, rng)):
        return flown
    if None in state.sequences and len(state.queue) == state.limits.queue and one_of(rng, 0, 1):
        prefill = act.Prefill((request_of(state, rng, number),))
        return rng.choice((act.Clone(state.queue[0].slot, None, number), prefill))
    decoding = [slot for slot in state.live if state.details[slot]]
    if state.capacity.ring and decoding and one_of(rng, 0, 0, 1):
        return _in_ring(state, rng, rng.choice(decoding))
    drafting = [
        slot
        for slot, drafts in enumerate(state.proposed)
        if drafts and (mistaken(rng) or not flights.parts_of(state, slot))
    ]
    if drafting and one_of(rng, 0, 1):
        return _drafted(state, rng, rng.choice(drafting))
    if rng.randrange(6) < odds.index and (of_index := _of_index(state, rng, number)):
        rng.shuffle(of_index)
        legal = (action for action in of_index if not CACHING.refusals(state, action))
        used = [slot for slot, held in enumerate(state.sequences) if held is not None]
        instead = act.Free(rng.choice(used)) if used else of_index[0]
        return next(legal, instead) if one_of(rng, 0, 1, 2) else of_index[0]
    other = rng.randrange(24)
    if other > 3:
        return _proposed(state, rng, number, odds)
    return _mixed(state, rng) if other < 2 else _preempted(state, rng)


def _proposed(state: State, rng: Random, number: int, odds: "Odds") -> Action:
    """An action that is likely to matter; seldom a reset, and with another context, limit, slot."""
    action = propose(state, rng, number)
    if isinstance(action, act.Reset) and not mistaken(rng):
        return act.FreeFinished()
    if isinstance(action, act.Reserve):
        return evolve(action, context=one_of(rng, 0, 0, 1))
    if isinstance(action, act.Allocate | act.Write) and mistaken(rng):
        nowhere = (one_of(rng, -1, state.geometry.slots), 0)
        return evolve(action, batch=(nowhere, *action.batch[1:]))
    if isinstance(action, act.Assign) and mistaken(rng):
        request, choice = rng.choice(_names(state))
        return evolve(action, request=request, choice=choice)
    if odds.flying and isinstance(action, act.Assign) and one_of(rng, 0, 1):
        first, _ = naive.generate(action.prompt, Params(max_new=one_of(rng, 1, 2)))
        most = max(1, state.geometry.max_len - len(action.prompt))
        return evolve(action, params=Params(max_new=most, stops=(first[-1:],)))
    if odds.long and isinstance(action, act.Assign):
        most = max(1, state.geometry.max_len - len(action.prompt))
        return evolve(action, params=Params(max_new=most, seed=number))
    return action


def _mixed(state: State, rng: Random) -> act.MixedRound:
    """A round with chunks of some slots that have tokens without cells; now and then of any."""
    left = {
        slot: len(held.tokens) - held.allocated
        for slot, held in enumerate(state.sequences)
        if held is not None
    }
    slots = [slot for slot in left if left[slot] > 0 or mistaken(rng)]
    rng.shuffle(slots)
    room = state.limits.round_tokens - len(state.queue) * (not mistaken(rng))
    chunks = list[tuple[int, int]]()
    for slot in slots[: one_of(rng, 1, 1, 2)]:
        most = max(1, min(left[slot], room))
        count = one_of(rng, most, most, 1, max(1, most - 1)) + mistaken(rng) - mistaken(rng)
        chunks.append((slot, count))
        room -= count
    if mistaken(rng):
        slot = rng.randrange(-1, state.geometry.slots + 1)
        chunks.append((slot, one_of(rng, 0, 1, 2)))
    return act.MixedRound(tuple(chunk for chunk in chunks if chunk[1] >= 0))


def _flown(state: State, rng: Random) -> Action | None:
    """The oldest step goes on, or another one begins: mostly with what its slots can write.

    None if no slot has anything to write, but for a mistake.
    """
    retired = sum(flight.retired for flight in state.flights)
    if (one_of(rng, 0, 0, 1) and len(state.flights) > retired) or mistaken(rng):
        return act.Retire()
    if (one_of(rng, 0, 1) and retired) or mistaken(rng):
        return act.Deliver()
    left = {
        slot: flights.reach(state, slot) - held.allocated
        for slot, held in enumerate(state.sequences)
        if held is not None
    }
    slots = [slot for slot in left if (left[slot] > 0 and slot in state.live) or mistaken(rng)]
    rng.shuffle(slots)
    waiting = {queued.slot for queued in state.queue}
    if len(state.queue) == state.limits.queue:
        slots.sort(key=waiting.__contains__)
    chunks = [
        (slot, one_of(rng, left[slot], left[slot], 1) + mistaken(rng) - mistaken(rng))
        for slot in slots[: one_of(rng, 1, 2, 4)]
    ]
    if mistaken(rng):
        chunks.append((rng.randrange(-1, state.geometry.slots + 1), one_of(rng, 0, 1)))
    if not chunks and not mistaken(rng):
        return None
    return act.Dispatch(tuple(chunk for chunk in chunks if chunk[1] >= 0))


def _preempted(state: State, rng: Random) -> act.Preempt | act.Replay:
    """A request gives its slots back, or tokens are replayed in one of the slots in use."""
    used = [slot for slot, held in enumerate(state.sequences) if held is not None]
    if not used or one_of(rng, 0, 1, 2) == 0:
        return act.Preempt(rng.choice(_names(state))[0])
    slot = rng.randrange(-1, state.geometry.slots + 1) if mistaken(rng) else rng.choice(used)
    return act.Replay(slot, (one_of(rng, 0, 1),) * one_of(rng, 1, 1, 2, state.geometry.max_len))


def _of_index(state: State, rng: Random, number: int) -> list[Action]:
    """Actions that fill the index, use it or empty it, and some that nearly do."""
    keys, found = _keys(state), list[Action]()
    if keys and mistaken(rng):
        key = rng.choice(keys)
        found.append(act.Drop() if mistaken(rng) else act.Evict(key[1:], key[0]))
    if None in state.sequences:
        prefill = act.Prefill((request_of(state, rng, number),))
        found += [act.Reserve(None, one_of(rng, 0, 1)), prefill]
    for slot, held in enumerate(state.sequences):
        if held is None:
            continue
        text = (state.contexts[slot], *held.tokens)
        if held.allocated:
            found += _of_cells(state, rng, slot, text)
        elif state.details[slot]:
            found += _of_hits(state, rng, slot, text)
        else:
            texts = [prompt_of(state, rng), *(key[1:] for key in keys if key[0] == text[0])]
            tokens = (*rng.choice(texts), one_of(rng, 0, 1))
            prompt = tokens[: len(tokens) - one_of(rng, 0, 0, 1, 2)] or (0,)
            most = max(1, state.geometry.max_len - len(prompt))
            params = Params(max_new=min(most, one_of(rng, 1, 3, most)), seed=number)
            found += [act.Assign(slot, prompt, params, number)] * 2
    return found


def _keys(state: State) -> list[Tokens]:
    """The keys of the index, each a context and tokens."""
    return [key for key in fields.BY_NAME["indexed"].of(state) if key]


def _of_hits(state: State, rng: Random, slot: int, text: Tokens) -> Iterator[Action]:
    """A slot without cells hits what the index has, goes on to what it has, or gets cells."""
    most = len(text) - 1 + (mistaken(rng) or state.proposed[slot] != ())
    begun = [key for key in _keys(state) if len(key) <= most and key == text[: len(key)]]
    longer = [key for key in _keys(state) if text == key[: len(text)]]
    yield from _shares(state, rng, slot)
    if begun:
        more = one_of(rng, state.geometry.page_size, -1) * mistaken(rng)
        yield from [act.Hit(slot, len(rng.choice(begun)) - 1 + more)] * 9
    if longer:
        token = (*rng.choice(longer), 0)[len(text)]
        waits = any(queued.slot == slot for queued in state.queue)
        yield from [act.Enqueue(slot, token)] * (9 if waits else 2)
        yield act.Propose(slot, (token,))
    yield act.Allocate(span(slot, 0, len(text) - 1))


def _shares(state: State, rng: Random, slot: int) -> Iterator[Action]:
    """Shares of what a slot has in common with others, fewer cells, and sometimes a page more."""
    size = state.geometry.page_size
    for parent, other in enumerate(state.sequences):
        most = size * len(prefix.common(state, parent, slot)) if other else 0
        if most:
            length = one_of(rng, most, most, size) + one_of(rng, size, -1) * mistaken(rng)
            yield from [act.Share(parent, slot, length)] * 4


def _of_cells(state: State, rng: Random, slot: int, text: Tokens) -> Iterator[Action]:
    """Cells of a slot are written, enter the index, give way to others, or are released."""
    held, committed, size = sequence(state, slot), state.committed[slot], state.geometry.page_size
    indexed, row = fields.BY_NAME["indexed"].of(state), held.row
    ends = range(1 + size, 1 + committed + size * mistaken(rng) + 1, size)
    if held.written < min(held.allocated, len(held.tokens)):
        yield act.Write(span(slot, held.written, min(held.allocated, len(held.tokens))))
    elif any(fields.BY_NAME["idle_ranks"].of(state)):
        free = sum(not count and not key for count, key in zip(state.counts, indexed, strict=True))
        most = min(free * size + 1, state.limits.prefill_tokens)
        end = min(state.geometry.max_len, held.allocated + most)
        yield act.Allocate(span(slot, held.allocated, end))
    for entry, end in enumerate(ends):
        others = tuple(page for page, key in enumerate(indexed) if key == text[:end])
        if others and others != row[entry : entry + 1]:
            yield act.Merge(slot, entry)
    missing = [entry for entry, end in enumerate(ends) if text[:end] not in indexed]
    if ends and (mistaken(rng) or (missing and INVALID not in row[missing[0] : missing[0] + 1])):
        length = max(0, committed + one_of(rng, 0, 0, -size) + mistaken(rng))
        other = act.Merge(slot, rng.randrange(len(ends)))
        yield other if mistaken(rng) else act.Publish(slot, length)
    elif slot in releasable(state):
        yield act.Release(slot, first_visible(state, slot))
    elif ends and one_of(rng, 0, 1):
        yield act.Free(slot)
    if held.settled and one_of(rng, 0, 1):
        yield act.Clone(slot, None, rng.randrange(1, 4))


def _with_stops(request: Request, rng: Random) -> Request:
    """The request with other stop sequences: parts of what it generates, and others."""
    if one_of(rng, 0, 1, 2):
        return request
    most = evolve(request.params, stops=(), max_new=min(request.params.max_new, 6))
    text, _ = naive.generate(request.prompt, most)
    stops = list[Tokens]()
    for _ in range(one_of(rng, 1, 2, 3)):
        start = rng.randrange(len(text))
        stops.append(
            rng.choice((text[start : start + one_of(rng, 1, 2, 4)], (0,) * one_of(rng, 1, 3, 4)))
        )
    return evolve(request, params=evolve(request.params, stops=tuple(stops)))


def _any(state: State, rng: Random, number: int) -> Action:
    """An action with values near the sizes, whatever the state is."""
    sizes = state.geometry
    slot = rng.randrange(-1, sizes.slots + 1) if mistaken(rng) else rng.randrange(sizes.slots)
    length = rng.randrange(sizes.max_len + 2)
    other = rng.choice((None, rng.randrange(sizes.slots), slot))
    request = _with_stops(request_of(state, rng, one_of(rng, number, rng.randrange(9))), rng)
    tokens = tuple(rng.randrange(2) for _ in range(one_of(rng, 1, 1, 2, 4)))
    batch = tuple(
        rng.choice((None, (slot, at), (rng.randrange(sizes.slots), at)))
        for at in range(length, length + one_of(rng, 1, 2, 3))
    )
    used = [slot for slot, found in enumerate(state.sequences) if found is not None]
    if used and one_of(rng, 0, 1):
        return _of_one(state, rng, rng.choice(used))
    params = evolve(request.params, max_new=one_of(rng, 1, 3, sizes.max_len))
    return rng.choice(
        (
            act.Reserve(rng.choice((None, slot)), one_of(rng, 0, 1)),
            act.Append(slot, tokens),
            act.Enqueue(slot, tokens[0]),
            act.Propose(slot, tokens),
            act.Allocate(batch),
            act.Write(batch),
            act.Free(slot),
            act.Purge(slot),
            act.Clone(slot, other, rng.randrange(3)),
            act.Commit(slot, length),
            act.Truncate(slot, length),
            act.Release(slot, length),
            act.Hit(slot, length),
            act.Publish(slot, length),
            act.Merge(slot, rng.randrange(sizes.pages_per_seq + 1)),
            act.Share(rng.randrange(-1, sizes.slots + 1), slot, length),
            act.Evict(tokens, one_of(rng, 0, 1)),
            act.Drop(),
            act.Assign(slot, request.prompt, params, *rng.choice(_names(state))),
            act.Prefill(tuple(evolve(request, id=request.id + at) for at in range(length % 4))),
            act.Round(),
            act.Generate(),
            act.Pack(),
            act.FreeFinished(),
            act.TakeOutputs(),
            act.Submit(request),
            act.Admit(),
            act.Reset(rng.choice(list(ResetMode))),
        )
    )


def _names(state: State) -> list[tuple[int, int]]:
    """(request, choice): of slots and outputs, of requests that wait, and unused ones."""
    live = [(one.request, one.choice) for one in state.details if one is not None]
    left = [(one.request, one.choice) for one in state.outputs]
    return [*live, *left, *((one.id, 0) for one in state.waiting), (1, 0), (1, 1)]


def _of_one(state: State, rng: Random, slot: int) -> Action:
    """An action on one used slot: cells, one fewer or one more; a clone, a token, a share."""
    found = state.sequences[slot]
    assert found is not None
    known = len(found.tokens) + len(state.proposed[slot])
    allocated, written, ahead = found.allocated, found.written, one_of(rng, 0, 1, 2)
    return rng.choice(
        (
            act.Allocate(span(slot, allocated, max(known, allocated) + ahead)),
            act.Write(span(slot, written, min(known, allocated) + ahead)),
            act.Commit(slot, written + rng.randrange(-1, 2) if written else 1),
            act.Truncate(slot, max(0, state.committed[slot] + rng.randrange(-1, 3))),
            act.Enqueue(slot, one_of(rng, 0, 1)),
            act.Clone(slot, None, rng.randrange(1, 4)),
            act.Share(rng.randrange(state.geometry.slots), slot, state.geometry.page_size),
        )
    )


def _in_ring(state: State, rng: Random, slot: int) -> Action:
    """All that is left of a text at once, several queued tokens, or a round of them."""
    left = len(sequence(state, slot).tokens) - sequence(state, slot).allocated
    if left and all(queued.slot != slot for queued in state.queue):
        return act.MixedRound(((slot, left),))
    return rng.choice((act.Enqueue(slot, one_of(rng, 0, 1)), act.Round()))


def _drafted(state: State, rng: Random, slot: int) -> Action:
    """Drafts of a slot leave the queue, get cells, are written, committed or cut."""
    if any(queued.slot == slot for queued in state.queue):
        return rng.choice((act.Purge(slot), act.Pack()))
    if sequence(state, slot).written > state.committed[slot] and one_of(rng, 0, 1):
        return act.Commit(slot, sequence(state, slot).written - one_of(rng, 0, 0, 1))
    return _of_one(state, rng, slot)


def difference(state: State, totals: Totals, reading: SecondReading) -> str | None:
    """What the specification shows otherwise than the second reading; None if nothing."""
    seen = view.of(CACHING, state)
    for name, wanted in reading.shown().items():
        if getattr(seen, name) != wanted:
            return f"{name}: {getattr(seen, name)}, second reading {wanted}"
    for name, wanted in reading.statistics().items():
        shown = stats.NAMED[name].of(state, totals)
        if shown != wanted:
            return f"{name}: {shown}, second reading {wanted}"
    lengths = tuple(sum(page != INVALID for page in row) for row in seen.rows)
    if stats.of(state).pages_per_slot != lengths:
        return f"pages_per_slot: {stats.of(state).pages_per_slot}, second reading {lengths}"
    cells = {
        (page, offset): tag
        for page, tags in enumerate(state.cells)
        for offset, tag in enumerate(tags)
        if tag
    }
    return None if cells == reading.cells else f"cells: {cells}, second reading {reading.cells}"


def _other_rounds(before: State, action: Action, reading: SecondReading) -> str | None:
    """What Generate returns otherwise than in the second reading; None if nothing."""
    if not isinstance(action, act.Generate):
        return None
    _, done, refusals = scheduling.generate(CACHING, before)
    found = done, frozenset(refusal.reason for refusal in refusals)
    return None if found == reading.rounds else f"rounds {found}, second reading {reading.rounds}"


def run(seed: int, reached: Counter[Outcome]) -> str | None:
    """One history. Returns the first difference, with what led to it; None if there is none."""
    rng = Random(f"second reading {seed}")
    state, reading, odds = begin(rng)
    totals = Totals()
    history = [f"{state.geometry} {state.limits} {state.cleanup} {state.capacity}"]
    for number in range(10, 10 * STEPS, 10):
        action = drawn(state, rng, number, odds)
        history.append(str(action))
        found = frozenset(refusal.reason for refusal in CACHING.refusals(state, action))
        wanted = reading.reasons(action)
        reached[type(action), found] += 1
        if found != wanted:
            return "\n".join([*history, f"refused for {found}, second reading {wanted}"])
        if not found:
            before, state = state, CACHING.step(state, action)
            totals = totals.then(before, action, state)
            reading.take(action)
            wrong = difference(state, totals, reading) or _other_rounds(before, action, reading)
            if wrong is not None:
                return "\n".join([*history, wrong])
    return None


RULES = {kind for rung in CACHING.rungs for kind in rung.rules} - {act.Sample}


def test_two_readings_of_the_same_semantics() -> None:
    """Random histories have the same refusals and states, and every action is done in some."""
    reached = Counter[Outcome]()
    for seed in range(FEW):
        assert run(seed, reached) is None

    assert RULES == {kind for kind, found in reached if not found}


@pytest.mark.deep
def test_two_readings_of_each_reason_alone() -> None:
    """In many histories both readings agree, and each reason to refuse comes without another."""
    every = {(kind, reason) for kind in RULES for reason in CACHING.reasons(kind)}
    reached, alone = Counter[Outcome](), set[tuple[type, Reason]]()
    for seed in range(MOST):
        assert run(seed, reached) is None
        lone = ((kind, reasons) for kind, reasons in reached if len(reasons) == 1)
        alone = {(kind, reason) for kind, reasons in lone for reason in reasons}
        if seed + 1 >= HISTORIES and alone == every:
            break

    assert alone == every
