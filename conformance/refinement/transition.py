"""One transition of the jitted engine against the specification's, inside jit.

Refused: the status is one of the expected reasons, and every bit of the state is what it was. Done:
all that can be observed is the expected state's, and the lengths and flags of unused slots, which
the next tenant relies on, are those of a new engine. What lies in dead cells and past the end of
the queue is nobody's business.
"""

from functools import reduce

import jax
import jax.numpy as jnp
from jax import Array

from impl.setup import Setup
from impl.state import State

PER_SLOT = ("allocated", "written", "known", "finished", "prompt_lens")
PER_PROMPT = ("max_new", "requests", "choices", "seeds", "temperatures", "stops", "stop_lens")
QUEUE = ("queue_tokens", "queue_slots", "queue_positions")
OUTPUTS = ("out_lens", "out_reasons", "out_requests", "out_choices")


def agrees(
    setup: Setup, before: State, after: State, status: Array, right: State, mask: Array
) -> Array:
    """bool[]: whether the engine may go from `before` to `after` with status i32[3].

    right: the expected successor. mask u32[]: the reasons to refuse, by their bits; 0 is "done".
    """
    listed = (mask >> status[0].astype(jnp.uint32)) & 1 != 0
    refused = (status[0] != 0) & listed & identical(before, after)
    done = (status[0] == 0) & same_observed(setup, after, right)
    return jnp.where(mask != 0, refused, done)


def identical(one: State, other: State) -> Array:
    """bool[]: whether two states are the same, bit for bit."""
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return _all([jnp.array_equal(a, b) for a, b in leaves])


def same_observed(setup: Setup, seen: State, right: State) -> Array:
    """bool[]: whether nobody who looks at the engine can tell it from the expected state."""
    length = setup.geometry.max_len
    used, prompted = right.used, right.used & (right.prompt_lens > 0)
    known = used[:, None] & (jnp.arange(length) < right.known[:, None])
    queued = jnp.arange(right.queue_slots.shape[0]) < right.queued
    kept = jnp.arange(right.out_lens.shape[0]) < right.outputs
    said = kept[:, None] & (jnp.arange(length) < right.out_lens[:, None])
    anyway = jnp.ones_like(used)
    checks = [
        jnp.array_equal(seen.counts, right.counts),
        jnp.array_equal(seen.used, right.used),
        jnp.array_equal(seen.rows, right.rows),
        _same(seen.tokens, right.tokens, known),
        seen.queued == right.queued,
        seen.outputs == right.outputs,
        _same(seen.out_tokens, right.out_tokens, said),
    ]
    for names, there in (
        (PER_SLOT, anyway),
        (PER_PROMPT, prompted),
        (QUEUE, queued),
        (OUTPUTS, kept),
    ):
        checks += [_same(getattr(seen, name), getattr(right, name), there) for name in names]
    checks += [
        _same_cells(setup, a, b, right) for a, b in zip(seen.cache, right.cache, strict=True)
    ]
    return _all(checks)


def _all(checks: list[Array]) -> Array:
    """bool[]: one by one, since XLA folds a stack of constants element by element."""
    return reduce(jnp.logical_and, checks)


def _same(seen: Array, right: Array, there: Array) -> Array:
    """bool[]: equal where it matters; `there` has the leading axes of the arrays."""
    wide = there.reshape(there.shape + (1,) * (seen.ndim - there.ndim))
    return jnp.all((seen == right) | ~wide)


def _same_cells(setup: Setup, seen: Array, right: Array, state: State) -> Array:
    """bool[]: every written position, read through the expected rows, holds what it should."""
    size = setup.geometry.page_size
    position = jnp.arange(setup.geometry.max_len)
    live = state.used[:, None] & (position < state.written[:, None])
    pages = jnp.where(live, state.rows[:, position // size], 0)
    return _same(seen[pages, position % size], right[pages, position % size], live)
