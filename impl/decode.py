"""What prefill and decode rounds share: run the model on a batch, then take the sampled tokens in.

Source: seed 000, sections 4.2 and 4.3; DESIGN, "Sampling" and "Finish".
"""

import jax.numpy as jnp
from jax import Array, lax

from impl import queue
from impl.models.protocol import Weights
from impl.plan import Batch, batch_plan
from impl.sequences import release
from impl.setup import Setup
from impl.state import FINISH_CODES, NO_TOKEN, State
from impl.status import target
from spec.vocabulary import INVALID, CleanupMode, FinishReason, Geometry


def forward(
    setup: Setup, weights: Weights, state: State, batch: Batch, ok: Array
) -> tuple[Array, State]:
    """Write K and V of an allocated batch and run the model on it: rows [T, ...], plan order."""
    plan = batch_plan(state, batch, ok, setup.geometry)
    tokens = state.tokens[batch.slots, batch.positions]
    rows, cache = setup.model.decode(weights, state.cache, plan, tokens, batch.positions)
    slots = target(ok, batch.slot_ids, setup.geometry.slots)
    written = state.written.at[slots].add(batch.q_lens, mode="drop")
    return rows, state._replace(cache=cache, written=written)


def take_samples(
    setup: Setup,
    weights: Weights,
    state: State,
    slots: Array,
    rows: Array,
    draws: Array,
    *,
    ok: Array,
) -> State:
    """Draw one token for each of N slots from rows [N, ...], append it, finish or queue it; tidy.

    slots i32[N], ascending; draws bool[N]: which of them draw; ok bool[]: whether anything is done.
    """
    goes = ok & draws
    positions = state.known[slots]
    tokens, logprobs = setup.model.sample(
        weights,
        rows,
        state.seeds[slots],
        state.choices[slots],
        positions,
        state.temperatures[slots],
    )
    at = target(goes, slots, setup.geometry.slots)
    state = state._replace(
        tokens=state.tokens.at[at, positions].set(tokens, mode="drop"),
        logprobs=state.logprobs.at[at, positions].set(logprobs, mode="drop"),
        known=state.known.at[at].add(1, mode="drop"),
    )
    reasons = jnp.where(goes, finish_reasons(setup, state, slots), 0)
    state = state._replace(finished=state.finished.at[at].set(reasons, mode="drop"))
    state = keep_outputs(setup, state, slots, reasons)
    state = queue.push(state, slots, tokens, positions, goes & (reasons == 0))
    return tidy(setup, state, jnp.where(reasons != 0, slots, INVALID), ok=ok)


def finish_reasons(setup: Setup, state: State, slots: Array) -> Array:
    """i32[N]: why each slot's sequence has ended, 0 if it has not. A stop goes before a limit."""
    known, prompt = state.known[slots], state.prompt_lens[slots]
    window = known[:, None] - setup.limits.stop_len + jnp.arange(setup.limits.stop_len)
    ending = state.tokens[slots[:, None], jnp.maximum(window, 0)]
    ending = jnp.where(window >= prompt[:, None], ending, NO_TOKEN - 1)
    stops = state.stops[slots]
    same = jnp.all((stops == ending[:, None]) | (stops == NO_TOKEN), axis=2)
    stopped = jnp.any(same & (state.stop_lens[slots] > 0), axis=1)
    limited = known - prompt >= state.max_new[slots]
    limit = jnp.where(limited, FINISH_CODES[FinishReason.LIMIT], 0)
    return jnp.where(stopped, FINISH_CODES[FinishReason.STOP], limit)


def keep_outputs(setup: Setup, state: State, slots: Array, reasons: Array) -> State:
    """Append the generated tokens of those of N slots that have a reason i32[N] to the outputs."""
    done = reasons != 0
    size = setup.limits.outputs
    place = target(done, state.outputs + jnp.cumsum(done, dtype=jnp.int32) - 1, size)
    prompt = state.prompt_lens[slots]
    index = prompt[:, None] + jnp.arange(setup.geometry.max_len)
    index = jnp.minimum(index, setup.geometry.max_len - 1)
    tokens = state.tokens[slots[:, None], index]
    kept = index[:, : state.logprobs.shape[1]]
    return state._replace(
        out_tokens=state.out_tokens.at[place].set(tokens, mode="drop"),
        out_logprobs=state.out_logprobs.at[place].set(
            state.logprobs[slots[:, None], kept], mode="drop"
        ),
        out_lens=state.out_lens.at[place].set(state.known[slots] - prompt, mode="drop"),
        out_reasons=state.out_reasons.at[place].set(reasons, mode="drop"),
        out_requests=state.out_requests.at[place].set(state.requests[slots], mode="drop"),
        out_choices=state.out_choices.at[place].set(state.choices[slots], mode="drop"),
        outputs=state.outputs + jnp.sum(done, dtype=jnp.int32),
    )


def tidy(setup: Setup, state: State, ended: Array, *, ok: Array) -> State:
    """Release what has finished, as the cleanup mode says. `ended` i32[N]: slots that just did."""
    if setup.cleanup is CleanupMode.INCREMENTAL:
        return release(state, ended, setup.geometry)
    if setup.cleanup is CleanupMode.END:
        live = jnp.any(state.used & (state.finished == 0))
        return _release_finished(state, setup.geometry, when=ok & ~live)
    return state


def _release_finished(state: State, geometry: Geometry, *, when: Array) -> State:
    """Release every finished slot, when bool[] says so; else nothing is read or written.

    A loop of one step or none: releasing all slots costs as much as the whole table, and a
    conditional would copy what it passes on.
    """

    def step(_: Array, table: State) -> State:
        return release(table, finished_slots(table), geometry)

    table: State = lax.fori_loop(0, when.astype(jnp.int32), step, state._replace(cache=()))
    return table._replace(cache=state.cache)


def finished_slots(state: State) -> Array:
    """i32[S]: the slots whose sequence has finished, INVALID elsewhere."""
    index = jnp.arange(state.used.shape[0], dtype=jnp.int32)
    return jnp.where(state.used & (state.finished != 0), index, INVALID)
