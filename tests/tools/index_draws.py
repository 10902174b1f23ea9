"""Random actions around an index of prefixes: few texts, so that pages are found again."""

from collections.abc import Iterator
from random import Random

from spec_tools import ONE, span

from spec import index
from spec.machines import actions as act
from spec.machines import pages, prefix
from spec.machines.actions import Action
from spec.state import State
from spec.vocabulary import Params, Request


def drawn(state: State, rng: Random, number: int) -> Action:
    """Often an action that changes the index or uses it; else what leads to one, or any of them."""
    useful = [*_useful(state, rng)]
    if useful and rng.random() < 0.4:
        kinds = sorted({type(action) for action in useful}, key=str)
        kind = rng.choice(kinds)
        return rng.choice([action for action in useful if type(action) is kind])
    slot = rng.randrange(state.geometry.slots)
    if rng.random() < 0.15:
        return _any(state, rng, rng.choice((slot, slot, -1, state.geometry.slots)))
    if state.sequences[slot] is None:
        return _begin(state, rng, slot, number)
    return _next(state, rng, slot, number)


def _useful(state: State, rng: Random) -> Iterator[Action]:
    """Hits, shares, publications and merges of what is there, and evictions of what is idle."""
    size = state.geometry.page_size
    for slot, sequence in enumerate(state.sequences):
        if sequence is None:
            continue
        found = len(prefix.found(state, slot, len(sequence.tokens) // size))
        whole = state.committed[slot] // size
        if not sequence.allocated and found and found * size < len(sequence.tokens):
            yield act.Hit(slot, found * size)
        elif rng.random() < 0.6:
            yield from _shares(state, slot)
        if found < whole:
            yield act.Publish(slot, state.committed[slot])
        yield from (act.Merge(slot, entry) for entry in range(whole) if _twin(state, slot, entry))
    yield from (act.Evict(one.chain, one.context) for one in state.indexed if one and one.rank)


def _shares(state: State, slot: int) -> Iterator[act.Share]:
    """Shares of all that a slot without cells has in common with others."""
    size, known = state.geometry.page_size, len(pages.used(state, slot).tokens)
    if pages.used(state, slot).allocated:
        return
    for parent, sequence in enumerate(state.sequences):
        cells = size * len(prefix.common(state, parent, slot)) if sequence else 0
        if 0 < cells < known:
            yield act.Share(parent, slot, cells)


def _twin(state: State, slot: int, entry: int) -> bool:
    """Whether the index has another page with the content of a row entry."""
    other = index.find(state.indexed, *prefix.key(state, slot, entry))
    return other not in (None, pages.used(state, slot).row[entry])


def _any(state: State, rng: Random, slot: int) -> Action:
    size = state.geometry.page_size
    options: tuple[Action, ...] = (
        act.Hit(slot, rng.randrange(3 * size)),
        act.Publish(slot, rng.randrange(3 * size)),
        act.Share(rng.randrange(-1, state.geometry.slots + 1), slot, rng.randrange(3 * size)),
        act.Merge(slot, rng.randrange(3)),
        act.Evict((rng.choice((1, 2)),) * size, rng.randrange(2)),
        rng.choice((act.Drop(), act.Free(slot), act.FreeFinished(), act.Reset())),
    )
    return rng.choice(options)


def _begin(state: State, rng: Random, slot: int, number: int) -> Action:
    length = rng.randrange(1, max(2, state.geometry.max_len - 1))
    begun = Request(id=number, prompt=(1,) * length, params=ONE)
    context = rng.choice((0, 0, 0, 1))
    return rng.choice((act.Reserve(slot, context), act.Prefill((begun,))))


def _next(state: State, rng: Random, slot: int, number: int) -> Action:
    """What a slot needs before it is written; of one that is written, what else may happen."""
    sequence, sizes = pages.used(state, slot), state.geometry
    if state.details[slot] is None:
        length = rng.choice((1, rng.randrange(1, max(2, sizes.max_len - 1))))
        longest = Params(max_new=min(4, sizes.max_len - length))
        return act.Assign(slot, (1,) * length, rng.choice((ONE, longest)), number)
    if not sequence.allocated and rng.random() < 0.6:
        found = prefix.found(state, slot, (len(sequence.tokens) - 1) // sizes.page_size)
        longer = act.Enqueue(slot, 1)
        hit = act.Hit(slot, max(1, len(found)) * sizes.page_size)
        begins: list[Action] = [hit, longer, longer, longer, *_shares(state, slot)]
        return rng.choice(begins)
    if sequence.allocated < len(sequence.tokens):
        return act.Allocate(span(slot, sequence.allocated, len(sequence.tokens)))
    if sequence.written < min(sequence.allocated, len(sequence.tokens)):
        return act.Write(span(slot, sequence.written, sequence.allocated))
    options: tuple[Action, ...] = (
        *(act.Free(slot), act.Free(slot)),
        act.Clone(slot, None, number),
        act.Release(slot, rng.randrange(4) * sizes.page_size),
        act.Truncate(slot, state.committed[slot]),
        *(act.Round(), act.Pack()),
    )
    return rng.choice(options)
