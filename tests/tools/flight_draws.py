"""Random histories of a small machine in which steps are in flight most of the time.

Every function depends on a state and a generator of random numbers alone.
"""

from collections.abc import Iterator
from random import Random

from attrs import evolve
from spec_draws import one_of
from spec_tools import geometry, limits

from spec import ladder
from spec.machines import actions as act
from spec.machines import flights, naive
from spec.machines.actions import Action
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import Capacity, CleanupMode, Params, Request
from spec.vocabulary.capacity import COPIES, RESERVATIONS

WHOLE = ladder.whole()


def begin(rng: Random) -> State:
    """A small machine of every rung, with any policy and limits that are often reached."""
    slots, size, longest = one_of(rng, 1, 2, 3, 3), one_of(rng, 1, 1, 2, 3), one_of(rng, 3, 4, 6)
    sizes = geometry(
        pages=one_of(rng, longest, slots * longest, slots * longest + 1),
        page_size=size,
        slots=slots,
        pages_per_seq=longest,
        window=rng.choice((None, None, 1, 2, 3)),
    )
    given = limits(
        sizes,
        round_tokens=one_of(rng, slots, 3, 5, 8),
        outputs=slots + one_of(rng, 0, 0, 1),
        queue=slots + one_of(rng, 0, 0, 1),
    )
    capacity = Capacity(
        copy=rng.choice(COPIES),
        lookahead=one_of(rng, 0, 0, 2),
        reserve=rng.choice(RESERVATIONS),
    )
    if sizes.window and one_of(rng, 0, 1):
        ring = min(longest, -(-(sizes.window - 1) // size) + 1 + one_of(rng, 0, 1))
        capacity = evolve(capacity, lookahead=0, reserve="none", ring=ring)
    return WHOLE.initial(sizes, given, rng.choice(list(CleanupMode)), capacity)


def drawn(machine: Machine, state: State, rng: Random, number: int) -> Action | None:
    """An action that is legal in a machine, and likely to matter; None if many draws find none.

    number: of a new request or choice.
    """
    draws = (propose(state, rng, number) for _ in range(20))
    return next((action for action in draws if not machine.refusals(state, action)), None)


def propose(state: State, rng: Random, number: int) -> Action:
    """An action that is likely to matter while steps are in flight, legal or not."""
    kind = rng.randrange(100)
    slots = [slot for slot, found in enumerate(state.sequences) if found is not None]
    if kind < 30 and slots:
        return _dispatch(state, rng, slots)
    if kind < 40:
        return act.Retire()
    if kind < 50:
        return act.Deliver()
    if kind < 62 or not slots:
        return _new(state, rng, number)
    slot = rng.choice(slots)
    if kind < 66:
        return _ending(state, rng, slot)
    cells = state.sequences[slot]
    if cells is not None and cells.allocated == 0 and kind < 94:
        return _beginning(state, rng, slot)
    return _of_cells(state, rng, slot) if kind < 94 else _seldom(state, rng, slot, number)


def _dispatch(state: State, rng: Random, slots: list[int]) -> Action:
    chosen = rng.sample(slots, one_of(rng, *range(1, len(slots) + 1)))
    left = {
        slot: flights.reach(state, slot) - found.allocated
        for slot, found in enumerate(state.sequences)
        if found is not None
    }
    chunks = ((slot, one_of(rng, 1, max(1, left[slot]))) for slot in chosen)
    return act.Dispatch(tuple(chunk for chunk in chunks if left[chunk[0]] > 0))


def _new(state: State, rng: Random, number: int) -> Action:
    """A slot is reserved, or gets a prompt; many begin alike, and half of them have stops."""
    bare = [slot for slot in state.live if state.details[slot] is None]
    if not bare:
        return act.Reserve(None, one_of(rng, 0, 0, 0, 1))
    prompt = (one_of(rng, 0, 0, 1), 1, 0, one_of(rng, 0, 1))[: one_of(rng, 1, 2, 3, 4, 4)]
    first, *_ = naive.generate(prompt, Params(max_new=2))
    stops = rng.choice(((), (first[-1:],)))
    return act.Assign(bare[0], prompt, Params(max_new=one_of(rng, 1, 3, 5), stops=stops), number)


def _ending(state: State, rng: Random, slot: int) -> Action:
    detail = state.details[slot]
    request = detail.request if detail else 0
    if state.finished:
        return act.FreeFinished()
    if state.outputs and one_of(rng, 0, 0, 1):
        return act.TakeOutputs()
    return rng.choice((act.Free(slot), act.Preempt(request)))


def _beginning(state: State, rng: Random, slot: int) -> Action:
    """A slot without cells begins with pages that are there, or gets another token."""
    size = state.geometry.page_size
    shares: Iterator[Action] = (
        act.Share(parent, slot, size) for parent in range(state.geometry.slots)
    )
    hits = act.Hit(slot, size), act.Hit(slot, 2 * size)
    more = act.Enqueue(slot, 1), act.Replay(slot, (0,))
    return rng.choice((*hits, *hits, *shares, *more, _dispatch(state, rng, [slot])))


def _of_cells(state: State, rng: Random, slot: int) -> Action:
    """What a slot does with its committed cells."""
    size, committed = state.geometry.page_size, state.committed[slot]
    publish = act.Publish(slot, committed)
    if committed < size:
        return _dispatch(state, rng, [slot])
    release = act.Release(slot, max(0, committed - (state.geometry.window or 0) + 1))
    return rng.choice(
        (publish, release, act.Merge(slot, 0), act.Merge(slot, committed // size - 1))
    )


def _seldom(state: State, rng: Random, slot: int, number: int) -> Action:
    request = Request(id=number, prompt=(1, 0), params=Params(max_new=2))
    return rng.choice(
        (
            act.Clone(slot, None, number),
            act.Enqueue(slot, 1),
            act.Truncate(slot, state.committed[slot]),
            act.Propose(slot, (1,)),
            act.Commit(slot, state.committed[slot] + 1),
            act.Allocate(((slot, state.committed[slot] + 1),)),
            act.Round(),
            act.MixedRound(((slot, 1),)),
            act.Pack(),
            act.Purge(slot),
            act.Publish(slot, state.committed[slot]),
            act.Publish(slot, state.committed[slot]),
            act.Submit(request),
            act.Generate(),
            act.Admit(),
            rng.choice((act.Drop(), act.Reset(), act.Prefill((request,)))),
        )
    )
