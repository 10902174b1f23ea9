"""The entry points: pure functions of a state, each compiled once for a setup.

Every one returns (state, status i32[3], result i32[...]). Ids that could be out of range arrive as
they are: they are judged here, on the device. Source: seed 000, section 4; seed 001, M4.
"""

import jax.numpy as jnp
from jax import Array, lax

from impl import queue
from impl.allocation import commit_pages, page_guard, plan_pages
from impl.cache.paged import zero
from impl.decode import finished_slots, forward
from impl.models.protocol import BatchPlan, Weights
from impl.plan import Batch, batch_plan, length_guard, position_guard, slot_guards, sort_batch
from impl.prefill import PrefillWork, prefill
from impl.round import decode_round, loop
from impl.sequences import (
    Params,
    begin,
    choice_taken,
    fork,
    fork_pages,
    lowest_unused,
    release,
    unused_guards,
    used_guards,
)
from impl.setup import Setup
from impl.state import State, blank_metadata
from impl.status import Guard, accepted, first_refusal, target
from spec.vocabulary import INVALID, Reason

Answer = tuple[State, Array, Array]

DONE = (0, 0, 0)


def _done() -> Array:
    return jnp.asarray(DONE, jnp.int32)


def _nothing() -> Array:
    return jnp.zeros((0,), jnp.int32)


def _or_lowest(state: State, slot: Array) -> Array:
    """The slot, or the lowest unused one where it is INVALID."""
    return jnp.where(slot == INVALID, lowest_unused(state, 1)[0], slot)


def reserve(setup: Setup, weights: Weights, state: State, slot: Array) -> Answer:
    """Take slot i32[] (INVALID: the lowest). Result: the slot."""
    slot = _or_lowest(state, slot)
    status = first_refusal(*unused_guards(state, slot, setup.geometry))
    at = target(accepted(status), slot, setup.geometry.slots)
    used = state.used.at[at].set(True, mode="drop")
    return state._replace(used=used), status, slot[None]


def assign(
    setup: Setup,
    weights: Weights,
    state: State,
    slot: Array,
    choice: Array,
    tokens: Array,
    length: Array,
    params: Params,
) -> Answer:
    """Give slot i32[] a prompt: tokens i32[L], padded, of length i32[]; params of 1 request."""
    geometry = setup.geometry
    whole = length + params.max_new[0]
    status = first_refusal(
        *used_guards(state, slot, geometry),
        (state.prompt_lens[slot] > 0, Reason.SLOT_ASSIGNED, slot, geometry.slots - 1),
        (whole > geometry.max_len, Reason.TOO_LONG, whole, geometry.max_len),
        (
            choice_taken(state, params.requests[0], choice),
            Reason.CHOICE_TAKEN,
            params.requests[0],
            0,
        ),
    )
    at = target(accepted(status), slot, geometry.slots)[None]
    state = begin(state, at, choice[None], length[None], params)
    return state._replace(tokens=state.tokens.at[at].set(tokens, mode="drop")), status, _nothing()


def allocate(
    setup: Setup, weights: Weights, state: State, slots: Array, positions: Array
) -> Answer:
    """Cover a batch i32[T] of slots (INVALID: padding) and positions. Result: the packed plan."""
    geometry = setup.geometry
    batch = sort_batch(slots, positions, seqs=setup.batch_seqs)
    grant = plan_pages(state.counts, batch, geometry)
    status = first_refusal(
        *slot_guards(state, batch, geometry),
        position_guard(state.allocated, batch),
        length_guard(batch, geometry),
        page_guard(grant),
    )
    ok = accepted(status)
    state = commit_pages(state, batch, grant, ok, geometry)
    return state, status, pack_plan(batch_plan(state, batch, ok, geometry))


def write(setup: Setup, weights: Weights, state: State, slots: Array, positions: Array) -> Answer:
    """Compute and store K and V of a batch i32[T] of known, allocated, unwritten tokens."""
    batch = sort_batch(slots, positions, seqs=setup.batch_seqs)
    geometry = setup.geometry
    empty = batch.valid & (state.prompt_lens[batch.slots] == 0)
    status = first_refusal(
        *slot_guards(state, batch, geometry),
        (jnp.any(empty), Reason.SLOT_EMPTY, jnp.sum(empty), 0),
        position_guard(state.written, batch),
        _below(state.allocated, batch, Reason.BATCH_POSITIONS),
        _below(state.known, batch, Reason.BATCH_UNKNOWN),
        _queued_guard(state, batch),
    )
    _, state = forward(setup, weights, state, batch, accepted(status))
    return state, status, _nothing()


def _below(lengths: Array, batch: Batch, reason: Reason) -> Guard:
    past = batch.valid & (batch.positions >= lengths[batch.slots])
    return jnp.any(past), reason, jnp.max(jnp.where(past, batch.positions, 0)), jnp.sum(past)


def _queued_guard(state: State, batch: Batch) -> Guard:
    entry = jnp.arange(state.queue_slots.shape[0])
    first = (
        jnp.full_like(state.known, INVALID)
        .at[jnp.where(entry < state.queued, state.queue_slots, INVALID)]
        .min(state.queue_positions, mode="drop")
    )
    waits = batch.valid & (batch.positions >= first[batch.slots])
    return jnp.any(waits), Reason.BATCH_QUEUED, jnp.sum(waits), 0


def clone(
    setup: Setup, weights: Weights, state: State, parent: Array, child: Array, choice: Array
) -> Answer:
    """Clone slot i32[] into child i32[] (INVALID: the lowest) as a choice i32[]. Result: child."""
    geometry = setup.geometry
    inside = (child >= 0) & (child < geometry.slots) | (child == INVALID)
    child = _or_lowest(state, child)
    copies = queue.pending(state, parent)
    queued = state.queued + jnp.sum(copies, dtype=jnp.int32)
    partial = state.written[parent] % geometry.page_size != 0
    fresh = fork_pages(state, parent[None], partial[None], geometry)
    out_of_range, unused = used_guards(state, parent, geometry)
    status = first_refusal(
        out_of_range,
        (~inside, Reason.SLOT_RANGE, child, geometry.slots - 1),
        unused,
        *unused_guards(state, child, geometry),
        (state.prompt_lens[parent] == 0, Reason.SLOT_EMPTY, parent, geometry.slots - 1),
        (state.finished[parent] != 0, Reason.SLOT_FINISHED, parent, geometry.slots - 1),
        (
            state.allocated[parent] != state.written[parent],
            Reason.UNWRITTEN,
            state.written[parent],
            state.allocated[parent],
        ),
        (choice_taken(state, state.requests[parent], choice), Reason.CHOICE_TAKEN, choice, 0),
        (partial & (fresh[0] >= geometry.pages), Reason.OUT_OF_PAGES, 1, 0),
        (queued > setup.limits.queue, Reason.QUEUE_FULL, queued, setup.limits.queue),
    )
    ok = accepted(status)
    at = target(ok, child, geometry.slots)[None]
    state = fork(state, parent[None], at, choice[None], fresh, setup)
    children = jnp.full_like(state.queue_slots, child)
    state = queue.push(state, children, state.queue_tokens, state.queue_positions, copies & ok)
    return state, status, child[None]


def free(setup: Setup, weights: Weights, state: State, slot: Array) -> Answer:
    """Free slot i32[] and drop its queued tokens."""
    status = first_refusal(*used_guards(state, slot, setup.geometry))
    gone = jnp.where(accepted(status), slot, INVALID)[None]
    return queue.purge(release(state, gone, setup.geometry), gone), status, _nothing()


def free_finished(setup: Setup, weights: Weights, state: State) -> Answer:
    """Free every finished slot."""
    return release(state, finished_slots(state), setup.geometry), _done(), _nothing()


def enqueue(setup: Setup, weights: Weights, state: State, slot: Array, token: Array) -> Answer:
    """Token i32[] becomes the next of slot i32[], and is queued."""
    geometry, limits = setup.geometry, setup.limits
    generated = state.known[slot] - state.prompt_lens[slot]
    room = state.max_new[slot] - 1
    status = first_refusal(
        *used_guards(state, slot, geometry),
        (state.prompt_lens[slot] == 0, Reason.SLOT_EMPTY, slot, geometry.slots - 1),
        (state.finished[slot] != 0, Reason.SLOT_FINISHED, slot, geometry.slots - 1),
        (generated >= room, Reason.TOO_LONG, generated, room),
        (state.queued >= limits.queue, Reason.QUEUE_FULL, state.queued, limits.queue),
    )
    ok = accepted(status)
    position = state.known[slot]
    at = target(ok, slot, geometry.slots)
    state = queue.push(state, slot[None], token[None], position[None], ok[None])
    tokens = state.tokens.at[at, position].set(token, mode="drop")
    known = state.known.at[at].add(1, mode="drop")
    return state._replace(tokens=tokens, known=known), status, _nothing()


def pack(setup: Setup, weights: Weights, state: State) -> Answer:
    """Take up to `round_tokens` W from the queue. Result: tokens, slots, positions i32[3 * W]."""
    width = setup.limits.round_tokens
    slots, positions = queue.head(state, width)
    index = jnp.arange(width)
    tokens = state.queue_tokens.at[index].get(mode="fill", fill_value=0)
    slots, positions, tokens = lax.sort((slots, positions, tokens), num_keys=2)
    return queue.pop(state, width), _done(), jnp.concatenate([tokens, slots, positions])


def purge(setup: Setup, weights: Weights, state: State, slot: Array) -> Answer:
    """Drop the queued tokens of slot i32[]."""
    status = first_refusal(*used_guards(state, slot, setup.geometry))
    gone = jnp.where(accepted(status), slot, INVALID)[None]
    return queue.purge(state, gone), status, _nothing()


def prefill_requests(setup: Setup, weights: Weights, state: State, work: PrefillWork) -> Answer:
    """Read prompts and draw the first token of every choice."""
    return (*prefill(setup, weights, state, work), _nothing())


def run_round(setup: Setup, weights: Weights, state: State) -> Answer:
    """One decode round."""
    return (*decode_round(setup, weights, state), _nothing())


def generate(setup: Setup, weights: Weights, state: State) -> Answer:
    """At most `limits.rounds` rounds. Result i32[4]: rounds done, status of a refused one."""
    state, result = loop(setup, weights, state)
    return state, _done(), result


def take_outputs(setup: Setup, weights: Weights, state: State) -> Answer:
    """Empty the outputs. Result: what `unpack_outputs` of the driver reads."""
    logprobs = lax.bitcast_convert_type(state.out_logprobs, jnp.int32)
    columns = (state.out_requests, state.out_choices, state.out_reasons, state.out_lens)
    parts = [state.outputs[None], *columns, state.out_tokens.ravel(), logprobs.ravel()]
    return state._replace(outputs=jnp.zeros_like(state.outputs)), _done(), jnp.concatenate(parts)


def reset_logical(setup: Setup, weights: Weights, state: State) -> Answer:
    """Forget everything; touch no K or V byte."""
    return blank_metadata(setup, state.cache), _done(), _nothing()


def reset_physical(setup: Setup, weights: Weights, state: State) -> Answer:
    """Forget everything and zero the pool."""
    cleared = blank_metadata(setup, tuple(zero(pool) for pool in state.cache))
    return cleared, _done(), _nothing()


def stats(setup: Setup, weights: Weights, state: State) -> Array:
    """i32[6 + 2 * (S + O)]: what the host needs to admit, see `impl.engine.Stats`; only reads."""
    used_pages = jnp.sum(state.counts > 0, dtype=jnp.int32)
    numbers = jnp.stack(
        [
            jnp.sum(state.used, dtype=jnp.int32),
            used_pages,
            jnp.sum(state.counts == 0, dtype=jnp.int32),
            jnp.max(state.counts),
            state.queued,
            state.outputs,
        ]
    )
    waits = jnp.arange(state.out_requests.shape[0]) < state.outputs
    return jnp.concatenate(
        [
            numbers,
            jnp.where(state.prompt_lens > 0, state.requests, -1),
            jnp.where(waits, state.out_requests, -1),
            state.choices,
            state.out_choices,
        ]
    )


def pack_plan(plan: BatchPlan) -> Array:
    """The fields of a plan, flat, in order: i32[B + B * M + B + B + 1 + 1 + T + T]."""
    return jnp.concatenate([field.ravel() for field in plan])


NAMES = (
    "reserve",
    "assign",
    "allocate",
    "write",
    "clone",
    "free",
    "free_finished",
    "enqueue",
    "pack",
    "purge",
    "prefill_requests",
    "run_round",
    "generate",
    "take_outputs",
    "reset_logical",
    "reset_physical",
)
"""Every entry point that takes and returns a state."""
