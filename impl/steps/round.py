"""One round, done as a whole or refused: of queued tokens, or of chunks of prompts beside them.

`loop` is a while_loop of rounds of queued tokens.

A refused round changes nothing: every index that it would write to is out of range. So the step
never selects between two pools, which would copy one. Source: docs/sources.md,
"Rounds" and "Chunks".
"""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Int32

from impl.commit import commit_pages
from impl.models.protocol import Weights
from impl.plan import (
    Batch,
    plan_pages,
    require_length,
    require_next,
    require_none_in_flight,
    require_pages,
    require_prompts,
    sort_batch,
)
from impl.setup import Setup
from impl.state import Slots, State, queue
from impl.status import Guard, accepted, first_refusal
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


def mixed_round(setup: Setup, weights: Weights, state: State, chunks: Int32[Array, " S"]) -> Answer:
    """One round that also reads chunks of prompts: the next `chunks` tokens of each slot."""
    chunks = jnp.minimum(chunks, setup.geometry.max_len + 1)  # their sum is then an int32
    guards = (*require_prompts(state.slots, chunks), *_require_room(setup, state, chunks))
    batch = _with_chunks(state, chunks, setup)
    return (*round_of(setup, weights, state, batch, guards), nothing())


def _require_room(setup: Setup, state: State, chunks: Int32[Array, " S"]) -> tuple[Guard, ...]:
    """There is a token; those of chunks are known and not queued; the round has room for all."""
    width, left = setup.limits.round_tokens, unread(state)
    tokens, reads = tokens_of_round(state, chunks, width), chunks > 0
    queued = queue.lengths(state.queue, chunks.shape[0])
    beyond, waits = reads & (chunks > left), reads & (queued > 0)
    seen, most = chunks[jnp.argmax(beyond)], left[jnp.argmax(beyond)]
    return (
        ((state.queue.filled == 0) & ~jnp.any(reads), Reason.QUEUE_EMPTY, 0, 1),
        (jnp.any(beyond), Reason.BATCH_UNKNOWN, seen, most),
        (jnp.any(waits), Reason.BATCH_QUEUED, queued[jnp.argmax(waits)], 0),
        (tokens > width, Reason.BATCH_WIDTH, tokens, width),
    )


def unread(state: State) -> Int32[Array, " S"]:
    """How many known tokens of each slot have no cells."""
    return state.slots.known - state.slots.allocated


def tokens_of_round(state: State, chunks: Int32[Array, " S"], width: int) -> Int32[Array, ""]:
    """How many tokens a round with these chunks writes: those that leave the queue, and theirs."""
    return jnp.minimum(state.queue.filled, width) + jnp.sum(chunks, dtype=jnp.int32)


def _with_chunks(state: State, chunks: Int32[Array, " S"], setup: Setup) -> Batch:
    """The batch of the tokens that leave the queue and, behind them, those of the chunks.

    Only as many as a round has room for.
    """
    width, slots = setup.limits.round_tokens, setup.geometry.slots
    queued, positions = queue.head(state.queue, width)
    ends = jnp.cumsum(chunks, dtype=jnp.int32)
    place = jnp.arange(width, dtype=jnp.int32) - jnp.minimum(state.queue.filled, width)
    there = (place >= 0) & (place < ends[-1])
    at = jnp.searchsorted(ends, place, side="right").astype(jnp.int32)
    at = jnp.minimum(at, slots - 1)
    after = state.slots.allocated[at] + place - (ends - chunks)[at]
    return sort_batch(
        jnp.where(there, at, queued),
        jnp.where(there, after, positions),
        seqs=min(slots, width),
    )


def decode_round(setup: Setup, weights: Weights, state: State) -> tuple[State, Int32[Array, "3"]]:
    """Pack, allocate, write, attend, sample, finish, clean up: (state, status)."""
    width = setup.limits.round_tokens
    slots, positions = queue.head(state.queue, width)
    batch = sort_batch(slots, positions, seqs=min(setup.geometry.slots, width))
    some = (state.queue.filled == 0, Reason.QUEUE_EMPTY, 0, 1)
    return round_of(setup, weights, state, batch, (some,))


def round_of(
    setup: Setup,
    weights: Weights,
    state: State,
    batch: Batch,
    guards: tuple[Guard, ...],
) -> tuple[State, Int32[Array, "3"]]:
    """A round with this batch, whose queued tokens are the oldest ones. guards: further ones."""
    geometry, held = setup.geometry, state.slots
    draws = _draws(held, batch)
    grant = plan_pages(state, batch, geometry)
    open_cells = batch.valid & (held.allocated[batch.slots] != held.written[batch.slots])
    proposed = batch.valid & (held.proposed[batch.slots] > 0)
    outputs = state.outputs.filled + jnp.sum(draws, dtype=jnp.int32)
    status = first_refusal(
        *guards,
        (jnp.any(open_cells), Reason.UNWRITTEN, jnp.sum(open_cells), 0),
        (jnp.any(proposed), Reason.PROPOSED, jnp.sum(proposed), 0),
        require_next(held.allocated, batch),
        require_length(batch, geometry),
        require_none_in_flight(state),
        require_pages(grant),
        (outputs > setup.limits.outputs, Reason.OUTPUTS_FULL, outputs, setup.limits.outputs),
    )
    ok = accepted(status)
    taken = jnp.where(ok, jnp.minimum(state.queue.filled, setup.limits.round_tokens), 0)
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
