"""One decode round, whole or not at all; `loop` is a while_loop of it and nothing else.

A refused round changes nothing: its plan yields a status, every index it would write through goes
out of range, and so no pool is ever selected, which would copy it. Source: DESIGN, "Rounds".
"""

import jax.numpy as jnp
from jax import Array, lax

from impl import queue
from impl.allocation import commit_pages, page_guard, plan_pages
from impl.decode import forward, take_samples
from impl.models.protocol import Weights
from impl.plan import Batch, length_guard, position_guard, sort_batch
from impl.setup import Setup
from impl.state import State
from impl.status import accepted, first_refusal
from spec.vocabulary import Reason


def decode_round(setup: Setup, weights: Weights, state: State) -> tuple[State, Array]:
    """Pack, allocate, write, attend, sample, finish, clean up: (state, status i32[3])."""
    geometry, width = setup.geometry, setup.limits.round_tokens
    slots, positions = queue.head(state, width)
    batch = sort_batch(slots, positions, seqs=min(geometry.slots, width))
    draws = _draws(state, batch)
    grant = plan_pages(state.counts, batch, geometry)
    open_cells = batch.valid & (state.allocated[batch.slots] != state.written[batch.slots])
    outputs = state.outputs + jnp.sum(draws, dtype=jnp.int32)
    status = first_refusal(
        (state.queued == 0, Reason.QUEUE_EMPTY, 0, 1),
        (jnp.any(open_cells), Reason.UNWRITTEN, jnp.sum(open_cells), 0),
        position_guard(state.allocated, batch),
        length_guard(batch, geometry),
        page_guard(grant),
        (outputs > setup.limits.outputs, Reason.OUTPUTS_FULL, outputs, setup.limits.outputs),
    )
    ok = accepted(status)
    state = queue.pop(state, jnp.where(ok, jnp.sum(batch.valid, dtype=jnp.int32), 0))
    state = commit_pages(state, batch, grant, ok, geometry)
    rows, state = forward(setup, weights, state, batch, ok)
    ends = jnp.cumsum(batch.q_lens) - 1
    state = take_samples(setup, weights, state, batch.slot_ids, rows[ends], draws, ok=ok)
    return state, status


def loop(setup: Setup, weights: Weights, state: State) -> tuple[State, Array]:
    """At most `limits.rounds` rounds; stops before the first refused one.

    Returns the state and i32[4]: rounds done, then the status of the refused round, or zeros.
    """

    def goes_on(carry: tuple[State, Array, Array]) -> Array:
        _, done, status = carry
        return (done < setup.limits.rounds) & accepted(status)

    def body(carry: tuple[State, Array, Array]) -> tuple[State, Array, Array]:
        state, done, _ = carry
        state, status = decode_round(setup, weights, state)
        return state, done + accepted(status), status

    begin = (state, jnp.zeros((), jnp.int32), jnp.zeros((3,), jnp.int32))
    state, done, status = lax.while_loop(goes_on, body, begin)
    return state, jnp.concatenate([done[None], status])


def _draws(state: State, batch: Batch) -> Array:
    """bool[B]: a sequence draws if its last known token is in the batch."""
    ends = jnp.cumsum(batch.q_lens) - 1
    last = batch.positions[ends] + 1 == state.known[batch.slot_ids]
    return (batch.q_lens > 0) & last
