"""K and V that an engine with Llama holds, beside the float64 oracle, at each step of a history.

Random calls of a table: sequences are cloned, cut, written in parts and together with others, and
given drafts. A call that is refused changes nothing. Tokens that requests draw are no part of it.
"""

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import numpy as np
from attrs import field, frozen

from conformance.numerics.llama import MODEL, SETUP, Floats, cells
from impl.engine import Engine
from spec.vocabulary import Params, Refused

STEPS: Final = 80
FEWEST: Final = 5
"""The different texts that a history writes at least; 40 seeds wrote 7 to 26."""
TOLERANCE: Final = 5e-6
"""How far a float32 K or V of two small layers may be from that of float64.

As for logits: some hundred roundings of 6e-8 of numbers of size 1 to 4. The largest difference that
was measured, with twelve sets of weights, is 1.3e-6.
"""


@frozen
class Held:
    """What the engine holds: tokens, known and drafts, and lengths, by slot; the pool by layer."""

    used: tuple[bool, ...]
    texts: tuple[tuple[int, ...], ...]
    allocated: tuple[int, ...]
    written: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    pools: tuple[Any, ...] = field(eq=False)


def differences(weights: Any, *, seed: int = 0) -> Iterator[str]:
    """What is wrong with written cells along one random history, in words.

    A history in which hardly anything is written is wrong, too: nearly every call was refused.
    """
    rng, engine = random.Random(seed), Engine(SETUP, weights)
    known: dict[tuple[int, ...], Floats] = {}
    for step in range(STEPS):
        with suppress(Refused):
            _call(engine, _held(engine), rng, step)
        held = _held(engine)
        for slot, length in enumerate(held.written):
            text = held.texts[slot][:length]
            if length and text not in known:
                known[text] = cells(MODEL, weights, text)
            if length:
                yield from _wrong(held, slot, known[text], step)
    if len(known) < FEWEST:
        yield f"{len(known)} texts were written in {STEPS} calls, should be {FEWEST} or more"


def _wrong(held: Held, slot: int, wanted: Floats, step: int) -> Iterator[str]:
    size = SETUP.geometry.page_size
    places = [(held.rows[slot][at // size], at % size) for at in range(wanted.shape[1])]
    if any(page not in range(SETUP.geometry.pages) for page, _ in places):
        yield f"step {step}, slot {slot}: the row {held.rows[slot]} lacks pages of written cells"
        return
    for layer, pool in enumerate(held.pools):
        seen = np.stack([pool[place] for place in places])
        apart = np.abs(seen - wanted[layer]).max(axis=(1, 2))
        for position in np.flatnonzero(~(apart <= TOLERANCE)):
            yield (
                f"step {step}, slot {slot}, layer {layer}: K and V of position {position} are up "
                f"to {apart[position]:.2g} from those of the oracle"
            )


def _held(engine: Engine) -> Held:
    state = engine.extract()
    slots, lengths = state.slots, np.asarray(state.slots.known + state.slots.proposed)
    tokens = np.asarray(slots.tokens)
    return Held(
        used=tuple(np.asarray(slots.used).tolist()),
        texts=tuple(tuple(row[:end].tolist()) for row, end in zip(tokens, lengths, strict=True)),
        allocated=tuple(np.asarray(slots.allocated).tolist()),
        written=tuple(np.asarray(slots.written).tolist()),
        rows=tuple(map(tuple, np.asarray(state.pages.rows).tolist())),
        pools=tuple(np.asarray(pool, np.float64) for pool in state.pages.cache),
    )


def _call(engine: Engine, held: Held, rng: random.Random, step: int) -> None:
    """One random call of the engine. Raises Refused."""
    used = [slot for slot, is_used in enumerate(held.used) if is_used]
    kind, slot = rng.randrange(13), rng.choice(used or [0])
    if not used or kind in {0, 12}:
        slot = engine.reserve()
        prompt = tuple(rng.randrange(MODEL.vocabulary) for _ in range(rng.randrange(1, 14)))
        engine.assign(slot, prompt, Params(max_new=6), request=step, choice=0)
    elif kind <= 3:
        engine.allocate(_next(held, rng, used, held.allocated, list(map(len, held.texts))))
    elif kind <= 6:
        engine.write(_next(held, rng, used, held.written, held.allocated))
    elif kind == 7:
        engine.clone(slot, choice=step)
    elif kind == 8:
        engine.propose(slot, tuple(rng.randrange(MODEL.vocabulary) for _ in range(3)))
        engine.purge(slot)
    elif kind == 9:
        engine.commit(slot, held.written[slot])
    elif kind == 10:
        engine.truncate(slot, rng.randrange(held.allocated[slot] + 1))
    else:
        engine.free(slot)


def _next(
    held: Held, rng: random.Random, used: list[int], start: Any, end: Any
) -> list[tuple[int, int] | None]:
    """Some of the next positions of some slots, in any order."""
    batch: list[tuple[int, int] | None] = []
    for slot in used:
        room = SETUP.limits.prefill_tokens - len(batch)
        most = max(0, min(end[slot], len(held.texts[slot])) - start[slot])
        more = rng.randrange(min(most, room) + 1)
        batch += [(slot, position) for position in range(start[slot], start[slot] + more)]
    rng.shuffle(batch)
    return batch or [None]
