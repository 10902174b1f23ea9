"""The end of a prefill and of a decode round: draw, append, finish or queue, clean up.

Source: docs/sources.md, "Prefill and decode", "Sampling" and "Finish".
"""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Int32, Shaped

from impl.commit import release
from impl.models.protocol import Weights
from impl.setup import Setup
from impl.state import FINISH_CODES, NO_TOKEN, Slots, State, outputs, queue
from impl.state.slots import put
from impl.status import target
from spec.vocabulary import INVALID, CleanupMode, FinishReason, Geometry


def take_samples(
    setup: Setup,
    weights: Weights,
    state: State,
    slots: Int32[Array, " N"],
    rows: Shaped[Array, "N ..."],
    draws: Bool[Array, " N"],
    *,
    ok: Bool[Array, ""],
) -> State:
    """Draw one token for each of N slots from its row, append it, finish or queue it; tidy.

    slots: ascending. draws: which of them draw. ok: if false, nothing is done.
    """
    goes = ok & draws
    tokens, held = draw(setup, weights, state.slots, slots, rows, goes)
    positions, at = held.known[slots], target(goes, slots, setup.geometry.slots)
    held = held._replace(known=held.known.at[at].add(1, mode="drop"))
    reasons = jnp.where(goes, finish_reasons(setup, held, slots), 0)
    state = state._replace(slots=put(held, at, finished=reasons))
    state = keep_outputs(setup, state, slots, reasons)
    going_on = goes & (reasons == 0)
    state = state._replace(queue=queue.push(state.queue, slots, tokens, positions, going_on))
    return tidy(setup, state, jnp.where(reasons != 0, slots, INVALID), ok=ok)


def draw(
    setup: Setup,
    weights: Weights,
    held: Slots,
    slots: Int32[Array, " N"],
    rows: Shaped[Array, "N ..."],
    goes: Bool[Array, " N"],
) -> tuple[Int32[Array, " N"], Slots]:
    """Draw one token for each of N slots from its row: the tokens, and the slots with those that
    `goes` says behind the known and proposed ones. They are neither known nor proposed yet.
    """
    positions = held.known[slots] + held.proposed[slots]
    tokens, logprobs = setup.model.sample(
        weights, rows, held.seeds[slots], held.choices[slots], positions, held.temperatures[slots]
    )
    assert tokens.shape == logprobs.shape == slots.shape, "a model draws once from each row"
    assert tokens.dtype == jnp.int32, "a model draws token ids"
    at = target(goes, slots, setup.geometry.slots)
    return tokens, held._replace(
        tokens=held.tokens.at[at, positions].set(tokens, mode="drop"),
        logprobs=held.logprobs.at[at, positions].set(logprobs, mode="drop"),
    )


def finish_reasons(setup: Setup, held: Slots, slots: Int32[Array, " N"]) -> Int32[Array, " N"]:
    """Why each slot's sequence has ended, 0 if it has not. A stop precedes a limit."""
    known, prompt = held.known[slots], held.prompt_lens[slots]
    window = known[:, None] - setup.limits.stop_len + jnp.arange(setup.limits.stop_len)
    ending = held.tokens[slots[:, None], jnp.maximum(window, 0)]
    ending = jnp.where(window >= prompt[:, None], ending, NO_TOKEN - 1)
    stops = held.stops[slots]
    assert stops.shape[2] == setup.limits.stop_len, "stop sequences are padded to the limit"
    same = jnp.all((stops == ending[:, None]) | (stops == NO_TOKEN), axis=2)
    stopped = jnp.any(same & (held.stop_lens[slots] > 0), axis=1)
    limited = known - prompt >= held.max_new[slots]
    limit = jnp.where(limited, FINISH_CODES[FinishReason.LIMIT], 0)
    return jnp.where(stopped, FINISH_CODES[FinishReason.STOP], limit)


def keep_outputs(
    setup: Setup, state: State, slots: Int32[Array, " N"], reasons: Int32[Array, " N"]
) -> State:
    """Append the generated tokens of those of N slots that have a reason to the outputs."""
    held, length = state.slots, setup.geometry.max_len
    prompt = held.prompt_lens[slots]
    index = jnp.minimum(prompt[:, None] + jnp.arange(length), length - 1)
    ended = outputs.Ended(
        tokens=held.tokens[slots[:, None], index],
        logprobs=held.logprobs[slots[:, None], index[:, : held.logprobs.shape[1]]],
        lens=held.known[slots] - prompt,
        reasons=reasons,
        requests=held.requests[slots],
        choices=held.choices[slots],
    )
    return state._replace(outputs=outputs.append(state.outputs, ended))


def tidy(setup: Setup, state: State, ended: Int32[Array, " N"], *, ok: Bool[Array, ""]) -> State:
    """Release finished slots, as the cleanup mode says. `ended`: slots that finished just now."""
    if setup.cleanup is CleanupMode.INCREMENTAL:
        return release(state, ended, setup.geometry)
    if setup.cleanup is CleanupMode.END:
        live = jnp.any(state.slots.used & (state.slots.finished == 0))
        return _release_finished(state, setup.geometry, when=ok & ~live)
    return state


def _release_finished(state: State, geometry: Geometry, *, when: Bool[Array, ""]) -> State:
    """Release every finished slot if `when`; otherwise nothing is read or written.

    This is a loop of one step or none: releasing all slots costs as much as the whole table, and a
    conditional would copy its results.
    """

    def step(_: Array, table: State) -> State:
        return release(table, finished_slots(table.slots), geometry)

    table = state._replace(pages=state.pages._replace(cache=()))
    after: State = lax.fori_loop(0, when.astype(jnp.int32), step, table)
    return after._replace(pages=after.pages._replace(cache=state.pages.cache))


def finished_slots(slots: Slots) -> Int32[Array, " S"]:
    """The slots whose sequence has finished, INVALID elsewhere."""
    index = jnp.arange(slots.used.shape[0], dtype=jnp.int32)
    return jnp.where(slots.used & (slots.finished != 0), index, INVALID)
