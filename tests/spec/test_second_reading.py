"""The specification beside a second reading of it: no code in common, the same states and reasons.

The engine follows the specification, so a mistake in what an action means is invisible between the
two. Here random histories, legal and not, go through the specification and `second_reading`.
"""

from collections import Counter
from random import Random

from attrs import evolve, frozen
from second_reading import SecondReading
from spec_draws import mistaken, one_of, propose, request_of
from spec_tools import SERVING, geometry, limits, span

from spec import stats, view
from spec.machines import actions as act
from spec.machines import naive, scheduling
from spec.machines.actions import Action
from spec.state import State
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

HISTORIES, STEPS = 2000, 60
Outcome = tuple[type, frozenset[Reason]]
"""An action and the reasons for which it was refused; none if it was done."""


@frozen
class Odds:
    """What a history is made of. waiting: the sixths of the actions that submit and admit.

    any: whether a sixth are actions with any values. long: whether prompts of slots have room for
    many tokens.
    """

    waiting: int
    any: bool
    long: bool


def begin(rng: Random) -> tuple[State, SecondReading]:
    """A small machine with limits that are often reached, and any policy."""
    slots = one_of(rng, 1, 2, 3, 4)
    sizes = geometry(
        pages=one_of(rng, 2, 4, 6, 9),
        page_size=one_of(rng, 1, 2, 3, 4),
        slots=slots,
        pages_per_seq=one_of(rng, 2, 3, 4, 6),
        window=rng.choice((None, None, 1, 2, 3, 5)),
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
    cleanup = rng.choice(list(CleanupMode))
    state = SERVING.initial(sizes, given, cleanup, capacity)
    return state, SecondReading(sizes, given, cleanup, capacity)


def drawn(state: State, rng: Random, number: int, odds: "Odds") -> Action:
    """An action that is likely to matter, or any action at all."""
    kind = rng.randrange(6)
    if kind < odds.waiting:
        submitted = _with_stops(request_of(state, rng, one_of(rng, number, number, 1)), rng)
        return act.Admit() if one_of(rng, 0, 1) else act.Submit(submitted)
    if kind == 5 and odds.any:
        return _any(state, rng, number)
    drafting = [slot for slot, drafts in enumerate(state.proposed) if drafts]
    if drafting and one_of(rng, 0, 1):
        return _drafted(state, rng, rng.choice(drafting))
    action = propose(state, rng, number)
    if isinstance(action, act.Assign) and mistaken(rng):
        request, choice = rng.choice(_names(state))
        return evolve(action, request=request, choice=choice)
    if odds.long and isinstance(action, act.Assign):
        most = max(1, state.geometry.max_len - len(action.prompt))
        return evolve(action, params=Params(max_new=most, seed=number))
    return action


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
            act.Reserve(rng.choice((None, slot))),
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
    """An action on one used slot: its next cells, one fewer or one more; a clone, a token."""
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
        )
    )


def _drafted(state: State, rng: Random, slot: int) -> Action:
    """Drafts of a slot leave the queue, get cells, are written, committed or cut."""
    if any(queued.slot == slot for queued in state.queue):
        return rng.choice((act.Purge(slot), act.Pack()))
    return _of_one(state, rng, slot)


def difference(state: State, reading: SecondReading) -> str | None:
    """What the specification shows otherwise than the second reading; None if nothing."""
    seen = view.of(SERVING, state)
    for name, wanted in reading.shown().items():
        if getattr(seen, name) != wanted:
            return f"{name}: {getattr(seen, name)}, second reading {wanted}"
    for name, wanted in reading.statistics().items():
        if stats.NAMED[name].of(state) != wanted:
            return f"{name}: {stats.NAMED[name].of(state)}, second reading {wanted}"
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
    _, done, refusals = scheduling.generate(SERVING, before)
    found = done, frozenset(refusal.reason for refusal in refusals)
    return None if found == reading.rounds else f"rounds {found}, second reading {reading.rounds}"


def run(seed: int, reached: Counter[Outcome]) -> str | None:
    """One history. Returns the first difference, with what led to it; None if there is none."""
    rng = Random(f"second reading {seed}")
    state, reading = begin(rng)
    odds = Odds(waiting=one_of(rng, 0, 2), any=one_of(rng, 0, 1) > 0, long=one_of(rng, 0, 1) > 0)
    history = [f"{state.geometry} {state.limits} {state.cleanup} {state.capacity}"]
    for number in range(10, 10 * STEPS, 10):
        action = drawn(state, rng, number, odds)
        history.append(str(action))
        found = frozenset(refusal.reason for refusal in SERVING.refusals(state, action))
        wanted = reading.reasons(action)
        reached[type(action), found] += 1
        if found != wanted:
            return "\n".join([*history, f"refused for {found}, second reading {wanted}"])
        if not found:
            before, state = state, SERVING.step(state, action)
            reading.take(action)
            wrong = difference(state, reading) or _other_rounds(before, action, reading)
            if wrong is not None:
                return "\n".join([*history, wrong])
    return None


def test_two_readings_of_the_same_semantics() -> None:
    """Random histories have the same refusals and states, and each reason to refuse comes alone."""
    reached = Counter[Outcome]()
    for seed in range(HISTORIES):
        assert run(seed, reached) is None

    alone = {(kind, reason) for kind, found in reached if len(found) == 1 for reason in found}
    done = {kind for kind, found in reached if not found}
    rules = {kind for rung in SERVING.rungs for kind in rung.rules} - {act.Sample}
    assert done == rules
    assert alone == {(kind, reason) for kind in rules for reason in SERVING.reasons(kind)}
