"""Random actions near boundary cases: lengths on and around page boundaries, pools just full.

Most actions are legal in their state; one draw in ODDS is a deliberate mistake. Every function
depends on a state and a generator of random numbers alone.
"""

from collections.abc import Callable
from random import Random

from attrs import evolve
from spec_tools import MACHINE, counts, sequence, span

from spec.machines import naive
from spec.machines.actions import (
    Action,
    Allocate,
    Assign,
    Clone,
    Commit,
    Enqueue,
    Free,
    FreeFinished,
    Generate,
    Pack,
    Prefill,
    Propose,
    Purge,
    Release,
    Reserve,
    Reset,
    Round,
    TakeOutputs,
    Truncate,
    Write,
)
from spec.machines.window import first_visible
from spec.state import State
from spec.table import Batch, Entry
from spec.vocabulary import Params, Request, ResetMode, Tokens

ODDS = 12
Proposer = Callable[[State, Random, int], Action]
"""A function from a state, random numbers and a new request id to an action."""


def propose(state: State, rng: Random, number: int) -> Action:
    """An action that is likely to matter in this state, and sometimes any action."""
    weights = {proposer: weight for proposer, weight in _weights(state).items() if weight}
    if mistaken(rng):
        weights = dict.fromkeys(_weights(state), 1)
    (proposer,) = rng.choices(list(weights), list(weights.values()))
    return proposer(state, rng, number)


def _weights(state: State) -> dict[Proposer, int]:
    queued, free, used = len(state.queue), len(free_slots(state)), len(used_slots(state))
    ready = any(_writable(state, slot) for slot in used_slots(state))
    return {
        _decode: 8 * bool(queued),
        _prefill: 4 * bool(free),
        _reserve: 2 * bool(free and not bare(state)),
        _assign: 4 * bool(bare(state)),
        _allocate: 3 * bool(not_waiting(state)) + 6 * bool(proposing(state)),
        _append_shared: 16 * bool(sharing_lazily(state)),
        _write: 5 * ready,
        _enqueue: 3 * bool(complete(state)),
        _clone: 4 * bool(free and settled(state)),
        _propose: 3 * bool(settled(state)),
        _pack: 4 * bool(queued and proposing(state)),
        _commit: 9 * bool(uncommitted(state)),
        _truncate: bool(proposing(state)) + 3 * bool(uncommitted(state)),
        _release: 3 * bool(releasable(state)),
        _free: bool(used),
        _tidy: 2 * bool(state.outputs or state.finished),
        _interrupt: 1,
    }


def one_of(rng: Random, *options: int) -> int:
    """One of these numbers; one that is listed twice is twice as likely."""
    return rng.choice(options)


def mistaken(rng: Random) -> bool:
    """Whether to make a deliberate mistake, with probability 1 / ODDS."""
    return rng.randrange(ODDS) == 0


def free_slots(state: State) -> list[int]:
    """Slots that are not in use."""
    return [slot for slot, found in enumerate(state.sequences) if found is None]


def used_slots(state: State) -> list[int]:
    """Slots in use."""
    return [slot for slot, found in enumerate(state.sequences) if found is not None]


def bare(state: State) -> list[int]:
    """Slots in use without a prompt."""
    return [slot for slot in used_slots(state) if state.details[slot] is None]


def decoding(state: State) -> list[int]:
    """Slots with a prompt that have not finished."""
    return [slot for slot in state.live if state.details[slot]]


def settled(state: State) -> list[int]:
    """Decoding slots that may be cloned."""
    return [slot for slot in decoding(state) if sequence(state, slot).settled]


def complete(state: State) -> list[int]:
    """Decoding slots whose known tokens are all written."""
    sequences = {slot: sequence(state, slot) for slot in decoding(state)}
    return [slot for slot, found in sequences.items() if len(found.tokens) == found.written]


def proposing(state: State) -> list[int]:
    """Slots with proposed tokens."""
    return [slot for slot in used_slots(state) if state.proposed[slot]]


def uncommitted(state: State) -> list[int]:
    """Slots with written cells that are not committed."""
    return [
        slot for slot in used_slots(state) if sequence(state, slot).written > state.committed[slot]
    ]


def releasable(state: State) -> list[int]:
    """Slots with a whole page that no query to come can see."""
    size = state.geometry.page_size
    return [
        slot
        for slot in used_slots(state)
        if first_visible(state, slot) // size > state.first_page[slot]
    ]


def not_waiting(state: State) -> list[int]:
    """Slots in use without an entry in the queue; their cells are allocated action by action."""
    waiting = {queued.slot for queued in state.queue}
    return [slot for slot in used_slots(state) if slot not in waiting]


def sharing_lazily(state: State) -> list[int]:
    """Slots that append in a page with a count above 1."""
    size, found = state.geometry.page_size, list[int]()
    for slot in used_slots(state):
        index, offset = divmod(sequence(state, slot).allocated, size)
        if offset and counts(state)[sequence(state, slot).row[index]] > 1:
            found.append(slot)
    return found


def prompt_of(state: State, rng: Random) -> Tokens:
    """A prompt that ends at, before or past a page boundary, or that fills the pool."""
    size, fill = state.geometry.page_size, counts(state).count(0) * state.geometry.page_size
    length = one_of(rng, 1, size, size + 1, 2 * size - 1, 2 * size, fill, fill + 1)
    most = state.geometry.max_len - (0 if mistaken(rng) else size)
    first = one_of(rng, 0, 1)
    return tuple((first + index // 2) % 3 for index in range(max(1, min(length, most))))


def params_of(state: State, rng: Random, prompt: Tokens) -> Params:
    """A limit that often ends exactly at a page boundary, and sometimes a stop that is met."""
    size, left = state.geometry.page_size, state.geometry.max_len - len(prompt)
    boundary = -(len(prompt) - 1) % size
    most = max(1, left + mistaken(rng))
    options = (boundary + size, boundary + size, 3, 4, boundary or size, most, 2, 1)
    max_new = max(1, min(one_of(rng, *options), most))
    params = Params(max_new=max_new, temperature=one_of(rng, 0, 1), seed=one_of(rng, 0, 5))
    if one_of(rng, 0, 1, 2):
        return params
    text, _ = naive.generate(prompt, evolve(params, max_new=min(max_new, 6)))
    return evolve(params, stops=(text[-2:],))


def request_of(state: State, rng: Random, number: int) -> Request:
    """A request of one to three choices; by mistake, with one more than there are free slots."""
    prompt, free = prompt_of(state, rng), len(free_slots(state))
    choices = free + 1 if mistaken(rng) else min(one_of(rng, 1, 1, 2, 3), free) or 1
    params = params_of(state, rng, prompt)
    return Request(id=number, prompt=prompt, params=params, n_generations=choices)


def _prefill(state: State, rng: Random, number: int) -> Prefill:
    first = request_of(state, rng, number)
    second = request_of(state, rng, number + (not mistaken(rng)))
    return Prefill((first,) if one_of(rng, 0, 1) else (first, second))


def _decode(_: State, rng: Random, __: int) -> Action:
    return Generate() if mistaken(rng) else Round()


def _pack(_: State, __: Random, ___: int) -> Pack:
    return Pack()


def _reserve(state: State, rng: Random, _: int) -> Reserve:
    return Reserve(_slot(state, rng, free_slots(state)) if one_of(rng, 0, 1) else None)


def _assign(state: State, rng: Random, number: int) -> Assign:
    prompt = prompt_of(state, rng)
    params = params_of(state, rng, prompt)
    return Assign(_slot(state, rng, bare(state)), prompt, params, number)


def _allocate(state: State, rng: Random, _: int) -> Allocate:
    """Cells up to a boundary, one past it, or up to the end of the pool and one past it."""
    size, fill = state.geometry.page_size, counts(state).count(0)
    entries: list[Entry] = []
    for slot in used_slots(state) if mistaken(rng) else not_waiting(state):
        start, known = sequence(state, slot).allocated, len(MACHINE.known(state, slot))
        rest = -start % size
        options = (rest or size, rest + 1, fill * size + rest, fill * size + rest + 1)
        more = one_of(rng, *options) if mistaken(rng) else one_of(rng, max(0, known - start), rest)
        entries += span(slot, start, start + more)
    return Allocate(_arranged(rng, entries))


def _append_shared(state: State, rng: Random, _: int) -> Allocate:
    """The next cell of some sequences that append in a page which they share."""
    slots = sharing_lazily(state)
    some = slots if one_of(rng, 0, 1) else slots[:1]
    return Allocate(_arranged(rng, [(slot, sequence(state, slot).allocated) for slot in some]))


def _write(state: State, rng: Random, _: int) -> Write:
    """Writes of all tokens that are known, allocated and not queued, and sometimes one fewer."""
    entries: list[Entry] = []
    for slot in used_slots(state):
        start = sequence(state, slot).written
        entries += span(slot, start, start + _writable(state, slot) - one_of(rng, 0, 0, 1))
    return Write(_arranged(rng, entries))


def _enqueue(state: State, rng: Random, _: int) -> Enqueue:
    good = decoding(state) if mistaken(rng) else complete(state)
    return Enqueue(_slot(state, rng, good), one_of(rng, 0, 1))


def _clone(state: State, rng: Random, _: int) -> Clone:
    child = _slot(state, rng, free_slots(state)) if one_of(rng, 0, 1) else None
    return Clone(_slot(state, rng, settled(state)), child, one_of(rng, 1, 2, 3, 4))


def _propose(state: State, rng: Random, _: int) -> Propose:
    return Propose(_slot(state, rng, settled(state)), (one_of(rng, 0, 1),) * one_of(rng, 1, 2, 3))


def _commit(state: State, rng: Random, _: int) -> Commit:
    slot = _slot(state, rng, uncommitted(state))
    if slot not in used_slots(state):
        return Commit(slot, 1)
    written = sequence(state, slot).written
    return Commit(slot, written + mistaken(rng) - one_of(rng, 0, 0, 1) * bool(written))


def _truncate(state: State, rng: Random, _: int) -> Truncate:
    slot = _slot(state, rng, proposing(state))
    if slot not in used_slots(state):
        return Truncate(slot, 1)
    low, high = state.committed[slot], sequence(state, slot).allocated
    return Truncate(slot, max(0, one_of(rng, low, high, (low + high) // 2) - mistaken(rng)))


def _release(state: State, rng: Random, _: int) -> Release:
    slot = _slot(state, rng, releasable(state))
    if slot not in used_slots(state):
        return Release(slot, 1)
    most, size = first_visible(state, slot), state.geometry.page_size
    return Release(slot, one_of(rng, most, most // size * size, size) + mistaken(rng))


def _free(state: State, rng: Random, _: int) -> Free:
    return Free(_slot(state, rng, used_slots(state)))


def _tidy(_: State, rng: Random, __: int) -> Action:
    return rng.choice((FreeFinished(), TakeOutputs()))


def _interrupt(state: State, rng: Random, _: int) -> Action:
    purge = Purge(_slot(state, rng, [queued.slot for queued in state.queue]))
    reset = Reset(rng.choice(list(ResetMode)))
    return rng.choice((Pack(), purge, purge, reset))


def _slot(state: State, rng: Random, good: list[int]) -> int:
    """One of the good slots; by mistake, or if there is none, any number near the slots."""
    if good and not mistaken(rng):
        return rng.choice(good)
    return one_of(rng, state.geometry.slots, -1, *range(state.geometry.slots))


def _writable(state: State, slot: int) -> int:
    found = sequence(state, slot)
    waiting = [queued.position for queued in state.queue if queued.slot == slot]
    known = len(MACHINE.known(state, slot))
    return max(0, min(found.allocated, known, *waiting) - found.written)


def _arranged(rng: Random, entries: list[Entry]) -> Batch:
    """The entries in any order with padding; by mistake one of them repeated or moved."""
    if entries and mistaken(rng):
        slot, position = entries[0]
        entries = [*entries, (slot, position + one_of(rng, 0, len(entries) + 1))]
    padded = [*entries, *[None] * one_of(rng, 0, 1, 2)]
    return tuple(rng.sample(padded, len(padded)))
