"""Comparison of one transition of the jitted engine with the specification's, inside jit.

Refused: the status is one of the expected reasons, and the state is unchanged, bit for bit. Done:
the observable part of the state is as expected, and the lengths and flags of unused slots, on which
the next sequence relies, are those of a new engine. Dead cells, and entries past the end of the
queue, are not compared.
"""

from functools import reduce
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from impl.setup import Setup
from impl.state import State
from spec.vocabulary import INVALID

Masks = np.ndarray[Any, np.dtype[np.uint64]]
WORD: Final = 32
"""The bits of a word of the device."""
PER_SLOT = (
    "allocated",
    "written",
    "committed",
    "known",
    "proposed",
    "finished",
    "prompt_lens",
    "contexts",
    "stale",
)
PER_PROMPT = ("max_new", "requests", "choices", "seeds", "temperatures", "stops", "stop_lens")
QUEUE = ("tokens", "slots", "positions")
OUTPUTS = ("lens", "reasons", "requests", "choices")
INDEX = ("contexts", "parents", "tokens", "children")
FLIGHTS = ("retired", "holds", "first", "lens", "draws")


def agrees(
    setup: Setup, before: State, after: State, status: Array, right: State, mask: Array
) -> Array:
    """bool[]: whether the engine may go from `before` to `after` with status i32[3].

    right: the expected successor. mask u32[2]: the reasons to refuse, see `words`.
    """
    code = status[0].astype(jnp.uint32)
    word = mask.at[code // WORD].get(mode="fill", fill_value=0)
    listed = (word >> code % WORD) & 1 != 0
    refused = (status[0] != 0) & listed & identical(before, after)
    done = (status[0] == 0) & same_observed(setup, after, right)
    return jnp.where(refuses(mask), refused, done)


def refuses(mask: Array) -> Array:
    """bool[]: whether there is a reason to refuse."""
    return jnp.any(mask != 0)


def words(masks: Masks) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """u32[N, 2] for N sets of reasons, u64[N]: a bit for each reason, the lower half first.

    0 is "done". The device has no integers of 64 bits.
    """
    return np.stack([masks & np.uint64(2**WORD - 1), masks >> np.uint64(WORD)], 1).astype(np.uint32)


def identical(one: State, other: State) -> Array:
    """bool[]: whether two states are the same, bit for bit."""
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return _all([jnp.array_equal(a, b) for a, b in leaves])


def same_observed(setup: Setup, seen: State, right: State) -> Array:
    """bool[]: whether the observable part of a state equals that of the expected state."""
    length = setup.geometry.max_len
    used, prompted = right.slots.used, right.slots.used & (right.slots.prompt_lens > 0)
    ends = right.slots.known + right.slots.proposed
    known = used[:, None] & (jnp.arange(length) < ends[:, None])
    queued = jnp.arange(right.queue.slots.shape[0]) < right.queue.filled
    kept = jnp.arange(right.outputs.lens.shape[0]) < right.outputs.filled
    said = kept[:, None] & (jnp.arange(length) < right.outputs.lens[:, None])
    anyway = jnp.ones_like(used)
    checks = [
        jnp.array_equal(seen.pages.counts, right.pages.counts),
        jnp.array_equal(seen.slots.used, right.slots.used),
        jnp.array_equal(seen.pages.rows, right.pages.rows),
        jnp.array_equal(seen.pages.held, right.pages.held),
        seen.flights.filled == right.flights.filled,
        _same_rows(seen, right),
        jnp.array_equal(seen.indexed.holds, right.indexed.holds),
        _same_order(seen, right),
        _same(seen.slots.tokens, right.slots.tokens, known),
        seen.queue.filled == right.queue.filled,
        seen.outputs.filled == right.outputs.filled,
        _same(seen.outputs.tokens, right.outputs.tokens, said),
    ]
    for one, other, names, there in (
        (seen.slots, right.slots, PER_SLOT, anyway),
        (seen.slots, right.slots, PER_PROMPT, prompted),
        (seen.queue, right.queue, QUEUE, queued),
        (seen.outputs, right.outputs, OUTPUTS, kept),
        (seen.indexed, right.indexed, INDEX, right.indexed.holds),
        (seen.flights, right.flights, FLIGHTS, jnp.ones_like(right.flights.retired)),
    ):
        checks += [_same(getattr(one, name), getattr(other, name), there) for name in names]
    pools = zip(seen.pages.cache, right.pages.cache, strict=True)
    checks += [_same_cells(setup, one, other, right) for one, other in pools]
    return _all(checks)


def _all(checks: list[Array]) -> Array:
    """bool[]: whether all hold; joined in pairs, since XLA folds a stack of constants slowly."""
    return reduce(jnp.logical_and, checks)


def _same(seen: Array, right: Array, there: Array) -> Array:
    """bool[]: whether arrays are equal where `there` holds, which has their leading axes."""
    wide = there.reshape(there.shape + (1,) * (seen.ndim - there.ndim))
    return jnp.all((seen == right) | ~wide)


def _same_rows(seen: State, right: State) -> Array:
    """bool[]: whether steps in flight name the same pages: in any order once a slot has ended."""
    ended = (right.flights.lens == 0)[:, :, None]

    def rows(state: State) -> Array:
        held = state.flights.rows
        return jnp.where(ended, jnp.sort(held, axis=-1), held)

    return jnp.array_equal(rows(seen), rows(right))


def _same_order(seen: State, right: State) -> Array:
    """bool[]: whether the idle pages of the expected state were released in the expected order."""
    idle = right.indexed.holds & (right.pages.counts == 0)
    both = idle[:, None] & idle

    def order(state: State) -> Array:
        waited = state.pages.clock - state.pages.released
        return jnp.sign(waited[:, None] - waited)

    return _same(order(seen), order(right), both)


def _same_cells(setup: Setup, seen: Array, right: Array, state: State) -> Array:
    """bool[]: whether every written position, read through the expected rows, is as expected, and
    every page of the index.
    """
    size = setup.geometry.page_size
    position = jnp.arange(setup.geometry.max_len)
    rows = state.pages.rows[:, position // size]
    written = state.slots.used[:, None] & (position < state.slots.written[:, None])
    live = written & (rows != INVALID)  # the cells of released pages are gone
    pages = jnp.where(live, rows, 0)
    read = _same(seen[pages, position % size], right[pages, position % size], live)
    return read & _same(seen, right, state.indexed.holds)
