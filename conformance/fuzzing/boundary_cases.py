"""Moves that meet the edge of the pool: filled exactly, one page past full, or just fitting.

Chance rarely gets there. `generators` says how a drawn integer becomes an action.
"""

from conformance.fuzzing.generators import ALPHABET, Digits, prefill, used_slots
from conformance.protocol import Action
from spec.machines import admission, scheduling
from spec.machines.actions import Allocate, Clone, Prefill, Reserve, Submit
from spec.vocabulary import Params, Request


def fill(state: scheduling.State, drawn: int) -> Action | None:
    """A step towards a full pool, looking ahead in slots without a prompt; None if none is left.

    The last free slot is left free, so that a clone can be asked for when the pool is full.
    """
    size, details = state.geometry.page_size, state.lifecycle.details
    free = state.lifecycle.sharing.counts.count(0)
    bare = [slot for slot in used_slots(state) if details[slot] is None]
    room = [slot for slot in bare if _allocated(state, slot) < state.geometry.max_len]
    if not free or not (room or state.sequences.count(None) > 1):
        return None
    if not room:
        return Reserve()
    slot = Digits(drawn).one_of(room)
    start = _allocated(state, slot)
    most = min(state.limits.prefill_tokens, state.geometry.max_len - start)
    cells = min(most, free * size + (-start) % size)
    return Allocate(tuple((slot, start + step) for step in range(cells)))


def overfill(state: scheduling.State, drawn: int, serial: int) -> Action:
    """What needs one page more than a full pool has."""
    digits = Digits(drawn)
    size = state.geometry.page_size
    partial = [slot for slot in state.lifecycle.live if _clonable(state, slot)]
    grows = [
        slot
        for slot in used_slots(state)
        if slot not in state.lifecycle.finished
        and _allocated(state, slot) + size <= state.geometry.max_len
    ]
    wanted = digits.below(3)
    if wanted != 1 and partial:
        return Clone(digits.one_of(partial), None, 1 + digits.below(5))
    if wanted != 2 and grows:
        slot = digits.one_of(grows)
        start = _allocated(state, slot)
        return Allocate(tuple((slot, start + step) for step in range((-start) % size + 1)))
    return Prefill((Request(id=serial, prompt=(0,), params=Params(max_new=1)),))


def snug(state: scheduling.State, drawn: int, serial: int) -> Action:
    """A prefill that takes exactly the pages that are free, as far as its width goes.

    First, if no page is shared, one that shares: only then do pages and row entries differ.
    """
    digits, size = Digits(drawn), state.geometry.page_size
    counts = state.lifecycle.sharing.counts
    longest = min(state.geometry.max_len, state.limits.prefill_tokens) - 1
    if max(counts) < 2 and digits.below(4) != 3:
        prompt = (digits.below(ALPHABET),) * max(1, (longest - 1) // size * size)
        params = Params(max_new=state.geometry.max_len - len(prompt))
        choices = max(2, state.geometry.slots - 1)
        request = Request(id=serial, prompt=prompt, params=params, n_generations=choices)
        return Prefill((request,))
    free, left = counts.count(0), state.limits.prefill_tokens
    requests: list[Request] = []
    most = min(state.limits.prefill_seqs, state.sequences.count(None))
    while free and left and len(requests) < most:
        length = min(left, longest, (free - 1) * size + 1)
        request = Request(id=serial + len(requests), prompt=(0,) * length, params=Params(max_new=1))
        requests.append(request)
        left, free = left - length, free - state.geometry.pages_for(length)
    return Prefill(tuple(requests)) if requests else prefill(state, drawn, serial)


def has_partial(state: scheduling.State) -> bool:
    """Whether a clone of some slot would need a page of its own."""
    return any(_clonable(state, slot) for slot in state.lifecycle.live)


def _clonable(state: scheduling.State, slot: int) -> bool:
    """Whether a clone of this slot would need a page of its own."""
    sequence = state.sequences[slot]
    if sequence is None or not sequence.settled or state.lifecycle.details[slot] is None:
        return False
    return sequence.written % state.geometry.page_size != 0


def reserving(state: admission.State, drawn: int, serial: int) -> Submit:
    """A request whose worst case takes what admission has not promised yet, or one page more."""
    digits, geometry = Digits(drawn), state.scheduling.geometry
    known = (*state.waiting, *state.admitted)
    promised = sum(request.pages_needed(geometry) for request in known)
    left = max(0, geometry.pages - promised) + digits.below(2)
    whole = max(1, min(left, geometry.pages_per_seq)) * geometry.page_size
    length = max(1, min(1 + digits.below(whole), state.scheduling.limits.prefill_tokens, whole - 1))
    params = Params(max_new=max(1, whole - length))
    return Submit(Request(id=serial, prompt=(0,) * length, params=params))


def _allocated(state: scheduling.State, slot: int) -> int:
    sequence = state.sequences[slot]
    return 0 if sequence is None else sequence.allocated
