"""One slot at a time: reserve, assign, clone, free; and the forks and releases of many.

Source: seed 000, sections 3.3 and 6; seed 001, clone and refcount invariants.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from impl.allocation import lowest_free
from impl.cache.paged import copy_page
from impl.setup import Setup
from impl.state import NO_TOKEN, State
from impl.status import Guard, target
from spec.vocabulary import INVALID, Geometry, Reason


class Params(NamedTuple):
    """What the device knows of N requests: how to sample them and when to stop.

    requests, max_new, seeds i32[N]; temperatures f32[N]; stops i32[N, stops, stop_len]; stop_lens
    i32[N, stops]; all as in State.
    """

    requests: Array
    max_new: Array
    seeds: Array
    temperatures: Array
    stops: Array
    stop_lens: Array


def lowest_unused(state: State, size: int) -> Array:
    """i32[size]: the lowest unused slots, filled up with INVALID."""
    (free,) = jnp.nonzero(~state.used, size=size, fill_value=INVALID)
    return free.astype(jnp.int32)


def used_guards(state: State, slot: Array, geometry: Geometry) -> tuple[Guard, ...]:
    """The slot i32[] is in range and in use."""
    inside = in_range(slot, geometry)
    return (
        (~inside, Reason.SLOT_RANGE, slot, geometry.slots - 1),
        (inside & ~state.used[slot], Reason.SLOT_UNUSED, slot, geometry.slots - 1),
    )


def unused_guards(state: State, slot: Array, geometry: Geometry) -> tuple[Guard, ...]:
    """The slot i32[] can be taken; INVALID asks for any and is given as INVALID if none is left."""
    inside = in_range(slot, geometry)
    return (
        (~inside & (slot != INVALID), Reason.SLOT_RANGE, slot, geometry.slots - 1),
        (slot == INVALID, Reason.NO_FREE_SLOT, 0, 1),
        (inside & state.used[slot], Reason.SLOT_USED, slot, geometry.slots - 1),
    )


def in_range(slot: Array, geometry: Geometry) -> Array:
    """bool[]: whether this is a slot id."""
    return (slot >= 0) & (slot < geometry.slots)


def choice_taken(state: State, request: Array, choice: Array) -> Array:
    """bool[]: whether a (request, choice) pair is live or awaits being taken."""
    live = (state.prompt_lens > 0) & (state.requests == request) & (state.choices == choice)
    waits = (state.out_requests == request) & (state.out_choices == choice)
    return jnp.any(live) | jnp.any(waits & (jnp.arange(waits.shape[0]) < state.outputs))


def any_choice_taken(state: State, requests: Array, generations: Array) -> Array:
    """bool[]: whether one of the first `generations` i32[R] choices of R requests is taken."""

    def matches(held: Array, choices: Array, there: Array) -> Array:
        same = (held == requests[:, None]) & (choices < generations[:, None])
        return jnp.any(same & there)

    waits = jnp.arange(state.out_requests.shape[0]) < state.outputs
    return matches(state.requests, state.choices, state.prompt_lens > 0) | matches(
        state.out_requests, state.out_choices, waits
    )


def begin(state: State, slots: Array, choices: Array, prompt_lens: Array, params: Params) -> State:
    """Give prompts' lengths and params to N slots; a slot id past the table is dropped."""
    return state._replace(
        used=state.used.at[slots].set(True, mode="drop"),
        known=state.known.at[slots].set(prompt_lens, mode="drop"),
        prompt_lens=state.prompt_lens.at[slots].set(prompt_lens, mode="drop"),
        max_new=state.max_new.at[slots].set(params.max_new, mode="drop"),
        requests=state.requests.at[slots].set(params.requests, mode="drop"),
        choices=state.choices.at[slots].set(choices, mode="drop"),
        seeds=state.seeds.at[slots].set(params.seeds, mode="drop"),
        temperatures=state.temperatures.at[slots].set(params.temperatures, mode="drop"),
        stops=state.stops.at[slots].set(params.stops, mode="drop"),
        stop_lens=state.stop_lens.at[slots].set(params.stop_lens, mode="drop"),
    )


def fork_pages(state: State, parents: Array, wants: Array, geometry: Geometry) -> Array:
    """i32[N]: a fresh page for each of N children whose parent ends in a partial page.

    wants bool[N]: which of the children are really there. Past the pool where none is needed or
    none is left.
    """
    free = lowest_free(state.counts, min(parents.shape[0], geometry.pages))
    place = jnp.cumsum(wants, dtype=jnp.int32) - 1
    fresh = free.at[place].get(mode="fill", fill_value=geometry.pages)
    return jnp.where(wants, fresh, geometry.pages)


def fork(
    state: State, parents: Array, children: Array, choices: Array, fresh: Array, setup: Setup
) -> State:
    """Make N children of N parents; a child past the table is dropped.

    Full pages are shared; a partial last page is copied to `fresh` i32[N], past the pool if there
    is none. Tokens, limits and params are the parent's.
    """
    geometry = setup.geometry
    there = children < geometry.slots
    full = state.written[parents] // geometry.page_size
    entry = jnp.arange(geometry.pages_per_seq)
    shared = jnp.where(entry < full[:, None], state.rows[parents], INVALID)
    last = jnp.where(entry == full[:, None], fresh[:, None], INVALID)
    row = jnp.where(last < geometry.pages, last, shared)
    held = target(there[:, None], row, geometry.pages)
    source = state.rows.at[parents, full].get(mode="fill", fill_value=INVALID)
    copied = target(there & (fresh < geometry.pages), fresh, geometry.pages)
    state = state._replace(
        cache=tuple(copy_page(pool, source, copied) for pool in state.cache),
        counts=state.counts.at[held].add(1, mode="drop"),
        rows=state.rows.at[children].set(row, mode="drop"),
        tokens=state.tokens.at[children].set(state.tokens[parents], mode="drop"),
        allocated=state.allocated.at[children].set(state.allocated[parents], mode="drop"),
        written=state.written.at[children].set(state.written[parents], mode="drop"),
        logprobs=state.logprobs.at[children].set(state.logprobs[parents], mode="drop"),
    )
    known = state.known[parents]
    params = Params(
        state.requests[parents],
        state.max_new[parents],
        state.seeds[parents],
        state.temperatures[parents],
        state.stops[parents],
        state.stop_lens[parents],
    )
    prompt_lens = state.prompt_lens[parents]
    state = begin(state, children, choices, prompt_lens, params)
    return state._replace(known=state.known.at[children].set(known, mode="drop"))


def release(state: State, slots: Array, geometry: Geometry) -> State:
    """Free N slots; INVALID or a slot past the table is dropped. No K or V byte is touched.

    Counts are not clamped: one below zero is a bug that must be seen.
    """
    rows = state.rows.at[slots].get(mode="fill", fill_value=INVALID)
    slots = target(True, slots, geometry.slots)

    def cleared(array: Array, value: ArrayLike = 0) -> Array:
        return array.at[slots].set(value, mode="drop")

    return state._replace(
        counts=state.counts.at[target(True, rows, geometry.pages)].add(-1, mode="drop"),
        rows=cleared(state.rows, INVALID),
        used=cleared(state.used, False),
        known=cleared(state.known),
        allocated=cleared(state.allocated),
        written=cleared(state.written),
        prompt_lens=cleared(state.prompt_lens),
        finished=cleared(state.finished),
        stop_lens=cleared(state.stop_lens),
        stops=cleared(state.stops, NO_TOKEN),
    )
