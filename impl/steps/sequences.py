"""Steps on one slot: reserve, assign, clone, free; and the release of all finished slots.

Source: docs/sources.md, "Sequence table", "Clones" and "Count invariants".
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int32

from impl import commit
from impl.models.protocol import Weights
from impl.plan import (
    choice_taken,
    fork_pages,
    require_no_proposal,
    require_not_held,
    require_not_in_flight,
    require_prompt,
    require_unused,
    require_used,
)
from impl.setup import Setup
from impl.state import Params, State, flights, queue
from impl.state import slots as table
from impl.status import accepted, first_refusal, target
from impl.steps.answer import Answer, done, nothing
from impl.steps.decode import finished_slots
from spec.vocabulary import INVALID, Reason


def reserve(
    setup: Setup,
    weights: Weights,
    state: State,
    slot: Int32[Array, ""],
    context: Int32[Array, ""],
) -> Answer:
    """Take a slot (INVALID: the lowest), whose keys begin with a context. Result: the slot."""
    slot = _or_lowest(state, slot)
    status = first_refusal(
        *require_unused(state.slots, slot, setup.geometry), require_not_held(state, slot)
    )
    at = target(accepted(status), slot, setup.geometry.slots)
    taken = table.put(state.slots, at, used=True, contexts=context)
    return state._replace(slots=taken), status, slot[None]


def assign(
    setup: Setup,
    weights: Weights,
    state: State,
    slot: Int32[Array, ""],
    choice: Int32[Array, ""],
    tokens: Int32[Array, " L"],
    length: Int32[Array, ""],
    params: Params,
) -> Answer:
    """Give a slot a prompt: tokens, padded, and their number; params of 1 request."""
    geometry, held = setup.geometry, state.slots
    assert tokens.shape == (geometry.max_len,), "a prompt is padded to the length of a row"
    assert params.requests.shape == (1,), "a slot is given one request"
    whole = length + params.max_new[0]
    request = params.requests[0]
    status = first_refusal(
        *require_used(held, slot, geometry),
        (held.prompt_lens[slot] > 0, Reason.SLOT_ASSIGNED, slot, geometry.slots - 1),
        (whole > geometry.max_len, Reason.TOO_LONG, whole, geometry.max_len),
        (choice_taken(state, request, choice), Reason.CHOICE_TAKEN, request, 0),
    )
    at = target(accepted(status), slot, geometry.slots)[None]
    state = commit.begin(state, at, choice[None], length[None], params)
    return state._replace(slots=table.put(state.slots, at, tokens=tokens)), status, nothing()


def clone(
    setup: Setup,
    weights: Weights,
    state: State,
    parent: Int32[Array, ""],
    child: Int32[Array, ""],
    choice: Int32[Array, ""],
) -> Answer:
    """Clone a slot into a child (INVALID: the lowest) as a choice. Result: the child."""
    geometry, held = setup.geometry, state.slots
    inside = (child >= 0) & (child < geometry.slots) | (child == INVALID)
    child = _or_lowest(state, child)
    copies = queue.pending(state.queue, parent)
    queued = state.queue.filled + flights.promised(state.flights)
    queued = queued + jnp.sum(copies, dtype=jnp.int32)
    partial = held.written[parent] % geometry.page_size != 0
    fresh = fork_pages(state, parent[None], partial[None], geometry)
    out_of_range, unused = require_used(held, parent, geometry)
    status = first_refusal(
        out_of_range,
        (~inside, Reason.SLOT_RANGE, child, geometry.slots - 1),
        unused,
        *require_unused(held, child, geometry),
        *require_prompt(held, parent, geometry),
        require_not_in_flight(state, parent),
        require_not_held(state, child),
        require_no_proposal(held, parent),
        (
            held.allocated[parent] != held.written[parent],
            Reason.UNWRITTEN,
            held.written[parent],
            held.allocated[parent],
        ),
        (choice_taken(state, held.requests[parent], choice), Reason.CHOICE_TAKEN, choice, 0),
        (partial & (fresh[0] >= geometry.pages), Reason.OUT_OF_PAGES, 1, 0),
        (queued > setup.limits.queue, Reason.QUEUE_FULL, queued, setup.limits.queue),
    )
    ok = accepted(status)
    at = target(ok, child, geometry.slots)[None]
    state = commit.fork(state, parent[None], at, choice[None], fresh, setup)
    return state._replace(queue=queue.fork(state.queue, parent, child, ok)), status, child[None]


def free(setup: Setup, weights: Weights, state: State, slot: Int32[Array, ""]) -> Answer:
    """Free a slot and drop its queued tokens."""
    status = first_refusal(*require_used(state.slots, slot, setup.geometry))
    gone = jnp.where(accepted(status), slot, INVALID)[None]
    state = commit.release(state, gone, setup.geometry)
    return state._replace(queue=queue.purge(state.queue, gone)), status, nothing()


def free_finished(setup: Setup, weights: Weights, state: State) -> Answer:
    """Free every finished slot: none of them has a queued token."""
    return commit.release(state, finished_slots(state.slots), setup.geometry), done(), nothing()


def _or_lowest(state: State, slot: Int32[Array, ""]) -> Int32[Array, ""]:
    """The slot, or the lowest one that a sequence may begin in where it is INVALID."""
    lowest = table.lowest_unused(state.slots, flights.held(state.flights), 1)[0]
    return jnp.where(slot == INVALID, lowest, slot)
