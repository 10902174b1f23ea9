"""The whole state of an engine as one pytree: what jit takes, donates and returns.

Nothing here is a mirror of anything else: which pages a slot holds is in `rows` alone, whether a
page is free in `counts` alone. Source: seed 000, section 3; seed 001, M3.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from impl.models.protocol import Cache
from impl.setup import Setup
from spec.vocabulary import INVALID, FinishReason

FINISH_CODES = {FinishReason.LIMIT: 1, FinishReason.STOP: 2}
"""How `finished` and `out_reasons` say why; 0 is "not finished"."""

NO_TOKEN = -1
"""Fills stop sequences that are shorter than the table; matches any token there."""


class State(NamedTuple):
    """P pages, S slots, M pages per sequence, L = M * page_size positions, Q queue, O outputs.

    cache: one pool per layer. counts i32[P]. rows i32[S, M], INVALID where there is no page.
    used bool[S]. tokens i32[S, L]. known, allocated, written i32[S]: the three lengths.
    prompt_lens i32[S]: 0 while no prompt is assigned. max_new, requests, choices, seeds i32[S].
    temperatures f32[S]. stops i32[S, stops, stop_len]: right-aligned, NO_TOKEN before the first.
    stop_lens i32[S, stops]. finished i32[S]: see FINISH_CODES. logprobs f32[S, L], or f32[S, 0].
    queue_tokens, queue_slots, queue_positions i32[Q] and queued i32[]: the queue, oldest first.
    out_tokens i32[O, L], out_logprobs f32[O, L or 0], out_lens, out_reasons, out_requests,
    out_choices i32[O] and outputs i32[]: finished choices, until they are taken.
    """

    cache: Cache
    counts: Array
    rows: Array
    used: Array
    tokens: Array
    known: Array
    allocated: Array
    written: Array
    prompt_lens: Array
    max_new: Array
    requests: Array
    choices: Array
    seeds: Array
    temperatures: Array
    stops: Array
    stop_lens: Array
    finished: Array
    logprobs: Array
    queue_tokens: Array
    queue_slots: Array
    queue_positions: Array
    queued: Array
    out_tokens: Array
    out_logprobs: Array
    out_lens: Array
    out_reasons: Array
    out_requests: Array
    out_choices: Array
    outputs: Array


def initial(setup: Setup) -> State:
    """Nothing used, every page free, the pool zeroed."""
    return blank_metadata(setup, setup.model.empty_cache(setup.geometry))


def blank_metadata(setup: Setup, cache: Cache) -> State:
    """A state that knows nothing, around a pool whose bytes are whatever they are."""
    geometry, limits = setup.geometry, setup.limits
    slots, width, length = geometry.slots, geometry.pages_per_seq, geometry.max_len

    def zeros(*shape: int) -> Array:
        return jnp.zeros(shape, jnp.int32)

    kept = length if setup.logprobs else 0
    return State(
        cache=cache,
        counts=zeros(geometry.pages),
        rows=jnp.full((slots, width), INVALID, jnp.int32),
        used=jnp.zeros((slots,), jnp.bool_),
        tokens=zeros(slots, length),
        known=zeros(slots),
        allocated=zeros(slots),
        written=zeros(slots),
        prompt_lens=zeros(slots),
        max_new=zeros(slots),
        requests=zeros(slots),
        choices=zeros(slots),
        seeds=zeros(slots),
        temperatures=jnp.zeros((slots,), jnp.float32),
        stops=jnp.full((slots, limits.stops, limits.stop_len), NO_TOKEN, jnp.int32),
        stop_lens=zeros(slots, limits.stops),
        finished=zeros(slots),
        logprobs=jnp.zeros((slots, kept), jnp.float32),
        queue_tokens=zeros(limits.queue),
        queue_slots=zeros(limits.queue),
        queue_positions=zeros(limits.queue),
        queued=zeros(),
        out_tokens=zeros(limits.outputs, length),
        out_logprobs=jnp.zeros((limits.outputs, kept), jnp.float32),
        out_lens=zeros(limits.outputs),
        out_reasons=zeros(limits.outputs),
        out_requests=zeros(limits.outputs),
        out_choices=zeros(limits.outputs),
        outputs=zeros(),
    )
