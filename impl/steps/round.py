"""One decode round, done as a whole or refused; `loop` is a while_loop of rounds.

A refused round changes nothing: every index that it would write to is out of range. So the step
never selects between two pools, which would copy one. Source: docs/sources.md,
"Rounds".
"""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Int32

from impl.commit import commit_pages
from impl.models.protocol import Weights
from impl.plan import Batch, plan_pages, require_length, require_next, require_pages, sort_batch
from impl.setup import Setup
from impl.state import Slots, State, queue
from impl.status import accepted, first_refusal
from impl.steps.answer import Answer, done, nothing
from impl.steps.decode import take_samples
from impl.steps.writing import forward
from spec.vocabulary import Reason


def run_round(setup: Setup, weights: Weights, state: State) -> Answer:
    """One decode round."""
    return (*decode_round(setup, weights, state), nothing())


def generate(setup: Setup, weights: Weights, state: State) -> Answer:
    """At most `limits.rounds` rounds. Result: rounds done, and the status of a refused one."""
    state, result = loop(setup, weights, state)
    return state, done(), result


def decode_round(setup: Setup, weights: Weights, state: State) -> tuple[State, Int32[Array, "3"]]:
    """Pack, allocate, write, attend, sample, finish, clean up: (state, status)."""
    geometry, width = setup.geometry, setup.limits.round_tokens
    slots, positions = queue.head(state.queue, width)
    batch, held = sort_batch(slots, positions, seqs=min(geometry.slots, width)), state.slots
    draws = _draws(held, batch)
    grant = plan_pages(state, batch, geometry)
    open_cells = batch.valid & (held.allocated[batch.slots] != held.written[batch.slots])
    proposed = batch.valid & (held.proposed[batch.slots] > 0)
    outputs = state.outputs.filled + jnp.sum(draws, dtype=jnp.int32)
    status = first_refusal(
        (state.queue.filled == 0, Reason.QUEUE_EMPTY, 0, 1),
        (jnp.any(open_cells), Reason.UNWRITTEN, jnp.sum(open_cells), 0),
        (jnp.any(proposed), Reason.PROPOSED, jnp.sum(proposed), 0),
        require_next(held.allocated, batch),
        require_length(batch, geometry),
        require_pages(grant),
        (outputs > setup.limits.outputs, Reason.OUTPUTS_FULL, outputs, setup.limits.outputs),
    )
    ok = accepted(status)
    taken = jnp.where(ok, jnp.sum(batch.valid, dtype=jnp.int32), 0)
    state = state._replace(queue=queue.pop(state.queue, taken))
    state = commit_pages(state, batch, grant, ok, geometry)
    rows, state = forward(setup, weights, state, batch, ok)
    ends = jnp.cumsum(batch.q_lens) - 1
    state = take_samples(setup, weights, state, batch.slot_ids, rows[ends], draws, ok=ok)
    return state, status


def loop(setup: Setup, weights: Weights, state: State) -> tuple[State, Int32[Array, "4"]]:
    """At most `limits.rounds` rounds; stops before the first refused one.

    Returns the state, and in one array the number of rounds done, then the status of the refused
    round, or zeros.
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


def _draws(slots: Slots, batch: Batch) -> Bool[Array, " B"]:
    """A sequence draws if its last known token is in the batch."""
    ends = jnp.cumsum(batch.q_lens) - 1
    last = batch.positions[ends] + 1 == slots.known[batch.slot_ids]
    return (batch.q_lens > 0) & last
