"""Rollback of draft tokens of one slot: propose them, then commit or truncate.

Source: docs/sources.md, "Committed cells".
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int32

from impl.commit import commit_cells, cut_cells
from impl.models.protocol import Weights
from impl.plan import require_not_in_flight, require_prompt, require_used
from impl.setup import Setup
from impl.state import State, flights, queue
from impl.status import accepted, first_refusal, target
from impl.steps.answer import Answer, nothing
from spec.vocabulary import Reason


def propose(
    setup: Setup,
    weights: Weights,
    state: State,
    slot: Int32[Array, ""],
    tokens: Int32[Array, " L"],
    count: Int32[Array, ""],
) -> Answer:
    """Add `count` draft tokens, padded, after the tokens of a slot, and queue them."""
    geometry, limits, held = setup.geometry, setup.limits, state.slots
    assert tokens.shape == (geometry.max_len,), "drafts are padded to the length of a row"
    end = held.known[slot] + held.proposed[slot]
    generated, room = end + count - held.prompt_lens[slot], held.max_new[slot]
    queued = state.queue.filled + flights.promised(state.flights) + count
    status = first_refusal(
        *require_used(held, slot, geometry),
        *require_prompt(held, slot, geometry),
        require_not_in_flight(state, slot),
        (generated >= room, Reason.TOO_LONG, generated, room),
        (queued > limits.queue, Reason.QUEUE_FULL, queued, limits.queue),
    )
    ok, index = accepted(status), jnp.arange(geometry.max_len, dtype=jnp.int32)
    there = ok & (index < count)
    at, positions = target(ok, slot, geometry.slots), end + index
    entered = held._replace(
        tokens=held.tokens.at[
            target(there, jnp.broadcast_to(slot, index.shape), geometry.slots), positions
        ].set(tokens, mode="drop"),
        proposed=held.proposed.at[at].add(count, mode="drop"),
    )
    slots = jnp.broadcast_to(slot, index.shape)
    waiting = queue.push(state.queue, slots, tokens, positions, there)
    return state._replace(slots=entered, queue=waiting), status, nothing()


def commit(
    setup: Setup,
    weights: Weights,
    state: State,
    slot: Int32[Array, ""],
    length: Int32[Array, ""],
) -> Answer:
    """Make written cells of a slot below `length` final, and proposed tokens there known."""
    held = state.slots
    status = first_refusal(
        *require_used(held, slot, setup.geometry),
        require_not_in_flight(state, slot),
        (length <= held.committed[slot], Reason.COMMITTED, length, held.committed[slot]),
        (length > held.written[slot], Reason.UNWRITTEN, length, held.written[slot]),
    )
    at = target(accepted(status), slot, setup.geometry.slots)
    return commit_cells(state, at, length), status, nothing()


def truncate(
    setup: Setup,
    weights: Weights,
    state: State,
    slot: Int32[Array, ""],
    length: Int32[Array, ""],
) -> Answer:
    """Cut off cells and proposed tokens of a slot from `length` on; release emptied pages."""
    held = state.slots
    status = first_refusal(
        *require_used(held, slot, setup.geometry),
        require_not_in_flight(state, slot),
        (length < held.committed[slot], Reason.COMMITTED, length, held.committed[slot]),
        (length > held.allocated[slot], Reason.TOO_LONG, length, held.allocated[slot]),
    )
    at = target(accepted(status), slot, setup.geometry.slots)
    return cut_cells(state, at, length, setup.geometry), status, nothing()
