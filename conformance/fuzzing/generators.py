"""From a few small integers to an action that is likely to matter, given where the spec stands.

Uniform draws miss the states where bugs live, so lengths sit on and around page boundaries, slots
are chosen among those an action can use, pools are filled exactly or one page past full, and now
and then an id or a position is wrong on purpose. Small integers give small actions, so that a
failing history shrinks. Source: `research/bugs.md`, section 3, "generator conditions".
"""

from collections.abc import Sequence
from typing import TypeVar

from attrs import evolve

from conformance.protocol import Action
from spec.machines import lifecycle, naive
from spec.machines.actions import (
    Admit,
    Allocate,
    Assign,
    Clone,
    Enqueue,
    Free,
    Pack,
    Prefill,
    Purge,
    Reserve,
    Submit,
    Write,
)
from spec.state import State
from spec.table import Batch
from spec.vocabulary import INVALID, Params, Request, Tokens

T = TypeVar("T")

_ARRANGEMENTS = 8 * 3 * 3 * 16 * 8
"""Enough for `_arranged` to choose everything it chooses."""

ALPHABET = 5
"""Prompts use few tokens, so that different sequences often have the same prefix."""


class Digits:
    """The digits of one drawn integer, taken one after another; 0 when it is used up."""

    def __init__(self, drawn: int) -> None:
        self._left = drawn

    def below(self, bound: int) -> int:
        """A number from 0 to bound - 1."""
        self._left, digit = divmod(self._left, max(bound, 1))
        return digit

    def one_of(self, options: Sequence[T]) -> T:
        """One of the options; the first for 0."""
        return options[self.below(len(options))]

    def rarely(self, odds: int) -> bool:
        """True once in `odds`, never for 0."""
        return self.below(odds) == odds - 1


def reserve(state: State, drawn: int) -> Reserve:
    """Any free slot, a given one, rarely one out of range."""
    digits = Digits(drawn)
    if digits.below(2) == 0:
        return Reserve()
    return Reserve(_wild_slot(state, digits, _free_slots(state)))


def assign(state: State, drawn: int, serial: int) -> Assign:
    """A prompt, and a limit that often ends exactly at a page boundary."""
    digits = Digits(drawn)
    details = state.details
    taken = sorted(lifecycle.taken_keys(state))
    name = digits.one_of(taken) if taken and digits.rarely(10) else (serial, digits.below(2))
    bare = [slot for slot in used_slots(state) if details[slot] is None]
    slot = _wild_slot(state, digits, bare or used_slots(state))
    prompt = _prompt(state, digits)
    params = _params(state, digits, prompt, choice=0)
    return Assign(slot, prompt, params, *name)


def advance(state: State, drawn: int, serial: int) -> Action:
    """The next thing some sequence needs on its way to being written; else a new sequence."""
    digits = Digits(drawn)
    used = used_slots(state)
    start = digits.below(max(len(used), 1))
    for slot in used[start:] + used[:start]:
        sequence, detail = state.sequences[slot], state.details[slot]
        if sequence is None or (detail and detail.finished):
            continue
        if detail is None:
            return evolve(assign(state, drawn // 8, serial), slot=slot)
        ready = _first_queued(state, slot, len(sequence.tokens))
        if sequence.written < min(ready, sequence.allocated):
            last = min(ready, sequence.allocated)
            return Write(tuple((slot, position) for position in range(sequence.written, last)))
        if sequence.allocated < len(sequence.tokens):
            more = range(sequence.allocated, len(sequence.tokens))
            return Allocate(tuple((slot, position) for position in more))
        if ready < len(sequence.tokens):
            return Pack()
    return Reserve() if None in state.sequences else enqueue(state, drawn)


def allocate(state: State, drawn: int) -> Allocate:
    """The next cells of some slots, up to, past or short of a page boundary."""
    digits = Digits(drawn)
    arrangement = digits.below(_ARRANGEMENTS)
    batch: list[tuple[int, int] | None] = []
    for slot in used_slots(state):
        sequence = state.sequences[slot]
        if sequence is not None and digits.below(3) != 2:
            start = sequence.allocated
            batch += [(slot, start + step) for step in range(_stretch(state, digits, start))]
    return Allocate(_arranged(state, Digits(arrangement), batch))


def _row(state: State, slot: int) -> tuple[int, ...]:
    sequence = state.sequences[slot]
    return () if sequence is None else sequence.row


def _written(state: State, slot: int) -> int:
    sequence = state.sequences[slot]
    return 0 if sequence is None else sequence.written


def write(state: State, drawn: int) -> Write:
    """The next known, allocated cells of some slots."""
    digits = Digits(drawn)
    arrangement = digits.below(_ARRANGEMENTS)
    batch: list[tuple[int, int] | None] = []
    for slot in used_slots(state):
        sequence = state.sequences[slot]
        if sequence is None or digits.below(4) == 3:
            continue
        ready = min(sequence.allocated, _first_queued(state, slot, len(sequence.tokens)))
        count = ready - sequence.written - digits.below(2) * digits.below(3)
        batch += [(slot, sequence.written + step) for step in range(count)]
    if not batch and used_slots(state):
        slot = digits.one_of(used_slots(state))
        batch.append((slot, _written(state, slot)))
    return Write(_arranged(state, Digits(arrangement), batch))


def clone(state: State, drawn: int) -> Clone:
    """A clone of a slot with cells, at a boundary or not, into any free slot or a given one."""
    digits = Digits(drawn)
    child = None if digits.below(2) == 0 else _wild_slot(state, digits, _free_slots(state))
    live = [slot for slot in state.live if state.details[slot]]
    settled = [slot for slot in live if getattr(state.sequences[slot], "settled", False)]
    return Clone(_wild_slot(state, digits, settled or live), child, 1 + digits.below(5))


def release(state: State, drawn: int) -> Free:
    """A used slot, often one that shares pages; rarely an unused one."""
    digits = Digits(drawn)
    counts, used = state.counts, used_slots(state)
    sharing = [slot for slot in used if any(counts[page] > 1 for page in _row(state, slot))]
    return Free(_wild_slot(state, digits, sharing if sharing and digits.below(2) else used))


def enqueue(state: State, drawn: int) -> Enqueue:
    """A forced token for a live slot."""
    digits = Digits(drawn)
    live = [slot for slot in state.live if state.details[slot]]
    return Enqueue(_wild_slot(state, digits, live), digits.below(ALPHABET))


def purge(state: State, drawn: int) -> Purge:
    """Drop what is queued for a slot."""
    digits = Digits(drawn)
    queued = sorted({queued.slot for queued in state.queue})
    return Purge(_wild_slot(state, digits, queued))


def prefill(state: State, drawn: int, serial: int) -> Prefill:
    """One to three requests, sometimes of several choices; often they just fit, or just do not."""
    digits = Digits(drawn)
    count = 1 + digits.below(2) * digits.below(3)
    requests = [_request(state, digits, serial + index) for index in range(count)]
    if digits.rarely(12):
        requests.append(requests[0])
    return Prefill(tuple(requests))


def submit(state: State, drawn: int, serial: int) -> Submit:
    """A request for the queue of those waiting; rarely one that can never fit, or a known id."""
    digits = Digits(drawn)
    known = (*state.waiting, *state.admitted)
    if digits.rarely(6) and known:
        return Submit(digits.one_of(known))
    return Submit(_request(state, digits, serial))


def admit() -> Admit:
    """Let in whoever fits."""
    return Admit()


def _request(state: State, digits: Digits, serial: int) -> Request:
    prompt = _prompt(state, digits)
    too_many = digits.rarely(12)
    choices = state.geometry.slots + 1 if too_many else digits.one_of((1, 1, 2, 3))
    params = _params(state, digits, prompt, choice=0)
    return Request(id=serial, prompt=prompt, params=params, n_generations=choices)


def _prompt(state: State, digits: Digits) -> Tokens:
    size, most = state.geometry.page_size, state.geometry.max_len
    free = state.counts.count(0)
    lengths = (1, size, size + 1, 2 * size - 1, most - 1, free * size, free * size + 1, most // 2)
    longest = most + 1 if digits.rarely(12) else max(1, most - 1)
    length = max(1, min(digits.one_of(lengths), longest))
    first = digits.below(ALPHABET)
    return tuple((first + index // 2) % ALPHABET for index in range(length))


def _params(state: State, digits: Digits, prompt: Tokens, *, choice: int) -> Params:
    size, left = state.geometry.page_size, state.geometry.max_len - len(prompt)
    boundary = size - len(prompt) % size
    options = (boundary + 1, 1, size + boundary, boundary, left, 3, left + 1)
    max_new = max(1, digits.one_of(options))
    temperature = digits.one_of((0.0, 1.0))
    params = Params(max_new=max_new, temperature=temperature, seed=digits.below(3))
    return _with_stop(params, digits, prompt, choice) if digits.rarely(4) else params


def _with_stop(params: Params, digits: Digits, prompt: Tokens, choice: int) -> Params:
    """A stop sequence that naive decode would meet, or one that straddles the prompt and is not."""
    capped = Params(
        max_new=min(params.max_new, 8), temperature=params.temperature, seed=params.seed
    )
    text = naive.generate(prompt, capped, choice)[0]
    start = digits.below(len(text))
    stop = text[start : start + 1 + digits.below(2)]
    straddling = (prompt[-1], *text[:1])
    stops = digits.one_of(((stop,), (straddling, stop), (straddling,)))
    return Params(
        max_new=params.max_new, temperature=params.temperature, seed=params.seed, stops=stops
    )


def _stretch(state: State, digits: Digits, start: int) -> int:
    """How many cells to add: to the boundary, just past it, one, or all that is known."""
    size = state.geometry.page_size
    boundary = size - start % size
    free = state.counts.count(0)
    fill = free * size + (-start) % size
    most = state.limits.prefill_tokens + digits.rarely(16)
    return min(most, digits.one_of((boundary, fill, 1, boundary + 1, fill + 1, fill)))


def _arranged(state: State, digits: Digits, batch: list[tuple[int, int] | None]) -> Batch:
    """In some order, with padding somewhere, rarely with a wrong entry."""
    spoiled = digits.rarely(8)
    order = digits.below(3)
    if order == 1:
        batch.reverse()
    elif order == 2:
        batch = batch[1::2] + batch[::2]
    if digits.below(3) == 1:
        batch.insert(digits.below(len(batch) + 1), None)
    if spoiled and batch:
        batch = _spoiled(state, digits, batch)
    return tuple(batch[: state.limits.prefill_tokens + 1])


def _spoiled(
    state: State, digits: Digits, batch: list[tuple[int, int] | None]
) -> list[tuple[int, int] | None]:
    """A duplicate, a gap, a rewrite, or a slot that is not there."""
    at = digits.below(len(batch))
    slot, position = batch[at] or (0, 0)
    wrong = digits.one_of(
        (
            (slot, position),
            (slot, position + 1),
            (slot, max(position - 1, 0)),
            (state.geometry.slots, position),
            (INVALID, position),
            (slot, -1),
        )
    )
    return [*batch, wrong] if digits.below(2) == 0 else [*batch[:at], wrong, *batch[at + 1 :]]


def _wild_slot(state: State, digits: Digits, good: Sequence[int]) -> int:
    """Mostly one of the good slots, now and then any other, rarely one out of range."""
    if good and not digits.rarely(7):
        return digits.one_of(good)
    slots = state.geometry.slots
    wild: tuple[int, ...] = (slots, -1, INVALID, *range(slots))
    return digits.one_of(wild)


def _first_queued(state: State, slot: int, otherwise: int) -> int:
    waiting: list[int] = [one.position for one in state.queue if one.slot == slot]
    return min(waiting) if waiting else otherwise


def used_slots(state: State) -> list[int]:
    """The slots that hold a sequence."""
    return [slot for slot, sequence in enumerate(state.sequences) if sequence is not None]


def _free_slots(state: State) -> list[int]:
    return [slot for slot, sequence in enumerate(state.sequences) if sequence is None]
