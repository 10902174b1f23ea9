"""K and V that an engine with Llama holds, beside the float64 oracle, at each step of a history.

Random calls of a table: sequences are cloned, cut, written in parts and together with others, and
given drafts; rounds take several queued tokens of one sequence. A call that is refused changes
nothing, in no cell either. At first no cell holds a number, and after a physical reset each holds
zeros. Which tokens requests draw is no part of it.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from attrs import evolve, field, frozen

from conformance.numerics.llama import MODEL, SETUP, Floats, cells, drawn_weights, epsilon
from impl.engine import Engine
from impl.models.llama import Llama
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Refused, ResetMode, default_limits

STEPS: Final = 120
MISTAKES: Final = 8
"""One batch in so many lacks a position, or names one that is already done."""
FEWEST: Final = 5
"""The different texts that a history writes at least; 40 seeds wrote 8 to 29."""
TOLERANCE: Final = 5e-6
"""How far a float32 K or V of two small layers may be from that of float64.

As for logits: some hundred roundings of 6e-8 of numbers of size 1 to 4. The largest difference that
was measured, with twelve sets of weights, is 1.3e-6.
"""


MORE: Final = 300
FARTHEST: Final = 2048
"""The longest text that is written for what a dtype cannot hold, without MORE."""
JUNK: Final = (float("nan"), float("inf"), -float("inf"))
"""What cells may hold that are not written."""
PAGE_SIZES: Final = (16, 1)
"""With pages of one cell a long text has more pages than 8 bits can number."""
ROUNDINGS: Final = 8
"""How many units of its dtype a K or V may be off; those of float32 come with each position, since
an angle is rounded. At most 5.7 were measured, and 600 where positions are rounded to bfloat16.
"""


@frozen
class Held:
    """What the engine holds: tokens, known and drafts, and lengths, by slot; the pool by layer."""

    used: tuple[bool, ...]
    texts: tuple[tuple[int, ...], ...]
    allocated: tuple[int, ...]
    written: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    queued: frozenset[int]
    pools: tuple[Any, ...] = field(eq=False)


def differences(weights: Any, model: Llama = MODEL, *, seed: int = 0) -> Iterator[str]:
    """What is wrong with written cells along one random history, in words.

    weights: in any dtype; the engine and the oracle have them in that of the model.

    A history in which hardly anything is written is wrong, too: nearly every call was refused.
    """
    weights = jax.tree.map(lambda leaf: leaf.astype(model.dtype), weights)
    rng, engine = random.Random(seed), Engine(evolve(SETUP, model=model), weights)
    _fill(engine, JUNK)
    known = dict[tuple[int, ...], Floats]()
    tolerance = TOLERANCE if model.dtype == "float32" else ROUNDINGS * epsilon(model.dtype)
    for step in range(STEPS):
        before, is_refused = _held(engine), False
        try:
            _call(engine, before, rng, step)
        except Refused:
            is_refused = True
        held = _held(engine)
        if is_refused and not _same(before, held):
            yield f"step {step}: a call that is refused changes what the engine holds"
        for slot, length in enumerate(held.written):
            text = held.texts[slot][:length]
            if length and text not in known:
                known[text] = cells(model, weights, text)
            if length:
                yield from _wrong(held, slot, known[text], step, tolerance=tolerance)
    if len(known) < FEWEST:
        yield f"{len(known)} texts were written in {STEPS} calls, should be {FEWEST} or more"
    yield from _of_reset(engine)


def _fill(engine: Engine, values: Sequence[float]) -> None:
    """Put these values into the cells of the pool, one after another."""
    state = engine.extract()
    pools = tuple(
        jnp.asarray(np.resize(np.asarray(values, pool.dtype), pool.shape))
        for pool in state.pages.cache
    )
    engine.inject(state._replace(pages=state.pages._replace(cache=pools)))


def _of_reset(engine: Engine) -> Iterator[str]:
    """A physical reset erases each byte of every pool, whatever it holds."""
    _fill(engine, (*JUNK, -1.0))
    engine.reset(ResetMode.PHYSICAL)
    for layer, pool in enumerate(engine.extract().pages.cache):
        left = np.flatnonzero(np.frombuffer(np.asarray(pool).tobytes(), np.uint8))
        if left.size:
            yield f"layer {layer}: {left.size} bytes are not 0 after a physical reset"


def far_differences(dtype: str, *, page_size: int, seed: int = 0) -> Iterator[str]:
    """What is wrong with the cells of one long sequence of a model of this dtype, in words.

    It is longer than the first position that the dtype cannot hold, if that is not too far.
    """
    exact = round(2 / epsilon(dtype))
    length = MORE + (exact if exact <= FARTHEST else 0)
    model = evolve(MODEL, dtype=dtype)
    pages = -(-length // page_size) + 1
    sizes = Geometry(pages=pages, page_size=page_size, slots=1, pages_per_seq=pages)
    weights = jax.tree.map(lambda leaf: leaf.astype(dtype), drawn_weights(seed))
    engine = Engine(Setup(geometry=sizes, limits=default_limits(sizes), model=model), weights)
    text = tuple(np.random.default_rng(seed).integers(0, model.vocabulary, length).tolist())
    batch = [(0, position) for position in range(length)]
    engine.reserve()
    engine.assign(0, text, Params(max_new=1), request=0, choice=0)
    engine.allocate(batch)
    engine.write(batch)
    tolerance = ROUNDINGS * epsilon(dtype) + length * epsilon("float32")
    wanted = cells(model, weights, text)
    for wrong in _wrong(_held(engine), 0, wanted, 0, sizes=sizes, tolerance=tolerance):
        yield f"{dtype}, pages of {page_size}: {wrong}"


def _wrong(
    held: Held,
    slot: int,
    wanted: Floats,
    step: int,
    *,
    sizes: Geometry = SETUP.geometry,
    tolerance: float = TOLERANCE,
) -> Iterator[str]:
    size = sizes.page_size
    places = [(held.rows[slot][at // size], at % size) for at in range(wanted.shape[1])]
    if any(page not in range(sizes.pages) for page, _ in places):
        yield f"step {step}, slot {slot}: the row {held.rows[slot]} lacks pages of written cells"
        return
    for layer, pool in enumerate(held.pools):
        seen = np.stack([pool[place] for place in places])
        apart = np.abs(seen - wanted[layer]).max(axis=(1, 2))
        for position in np.flatnonzero(~(apart <= tolerance)):
            yield (
                f"step {step}, slot {slot}, layer {layer}: K and V of position {position} are up "
                f"to {apart[position]:.2g} from those of the oracle"
            )


def _same(one: Held, other: Held) -> bool:
    pools = zip(one.pools, other.pools, strict=True)
    return one == other and all(
        np.array_equal(before, after, equal_nan=True) for before, after in pools
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
        queued=frozenset(np.asarray(state.queue.slots)[: int(state.queue.filled)].tolist()),
        pools=tuple(np.asarray(pool, np.float64) for pool in state.pages.cache),
    )


def _call(engine: Engine, held: Held, rng: random.Random, step: int) -> None:
    """One random call of the engine. Raises Refused."""
    used = [slot for slot, is_used in enumerate(held.used) if is_used]
    by_hand = [slot for slot in used if slot not in held.queued]
    vocabulary = engine.setup.model.vocabulary
    kind, slot = rng.randrange(19), rng.choice(used or [0])
    if not used or kind in {0, 12}:
        slot = engine.reserve()
        prompt = tuple(rng.randrange(vocabulary) for _ in range(rng.randrange(1, 14)))
        engine.assign(slot, prompt, Params(max_new=6), request=step, choice=0)
    elif kind <= 3:
        engine.allocate(_next(held, rng, by_hand, held.allocated, list(map(len, held.texts))))
    elif kind <= 6:
        engine.write(_next(held, rng, by_hand, held.written, held.allocated))
    elif kind == 7:
        engine.clone(slot, choice=step)
    elif kind == 8:
        engine.propose(slot, tuple(rng.randrange(vocabulary) for _ in range(3)))
        engine.purge(slot)
    elif kind == 9:
        engine.commit(slot, held.written[slot])
    elif kind == 10:
        engine.truncate(slot, rng.randrange(held.allocated[slot] + 1))
    elif kind == 11:
        engine.free(slot)
    else:
        _call_of_rounds(engine, held, rng, used)


def _call_of_rounds(engine: Engine, held: Held, rng: random.Random, used: list[int]) -> None:
    """Queue a token of a slot that has written or queued all others; or take a round of them.

    Mostly one behind another, so that a round takes several of one slot.
    """
    if rng.randrange(4) == 0:
        engine.take_outputs()
        engine.round()
        return
    written = [slot for slot in used if held.written[slot] == len(held.texts[slot])]
    ready = [*held.queued] if held.queued and rng.randrange(4) else written
    if ready:
        engine.enqueue(rng.choice(ready), rng.randrange(engine.setup.model.vocabulary))


def _next(
    held: Held, rng: random.Random, slots: list[int], start: Any, end: Any
) -> list[tuple[int, int] | None]:
    """Some of the next positions of some slots, in any order; now and then with a mistake."""
    batch: list[tuple[int, int]] = []
    for slot in slots:
        room = SETUP.limits.prefill_tokens - len(batch)
        most = max(0, min(end[slot], len(held.texts[slot])) - start[slot])
        more = rng.randrange(min(most, room) + 1)
        batch += [(slot, position) for position in range(start[slot], start[slot] + more)]
    rng.shuffle(batch)
    if batch and not rng.randrange(MISTAKES):
        slot, position = batch.pop(rng.randrange(len(batch)))
        batch += [(slot, max(0, position - rng.randrange(1, 3)))] * rng.randrange(2)
    return [*batch] or [None]
