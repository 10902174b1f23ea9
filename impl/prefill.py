"""Reading prompts at once: reserve, assign, allocate, write, fork the choices, draw first tokens.

Every choice, the first included, draws from the prompt's last row with its own key. Source: seed
000, sections 4.2 and 6; DESIGN, "Clone".
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from impl.allocation import commit_pages, plan_pages
from impl.decode import forward, take_samples
from impl.models.protocol import Weights
from impl.plan import Batch, sort_batch
from impl.sequences import (
    Params,
    any_choice_taken,
    begin,
    fork,
    fork_pages,
    lowest_unused,
)
from impl.setup import Setup
from impl.state import State
from impl.status import accepted, first_refusal, target
from spec.vocabulary import INVALID, Geometry, Reason


class PrefillWork(NamedTuple):
    """R prompts, padded. tokens i32[T]: one prompt after another. lens i32[R]: 0 is padding.

    generations i32[R]: choices of each. params: of R requests.
    """

    tokens: Array
    lens: Array
    generations: Array
    params: Params


class Choices(NamedTuple):
    """All choices of all prompts, S wide, in order of their slots.

    there bool[S]. source i32[S]: which prompt. number i32[S]: which choice of it. slots i32[S].
    parents i32[S]: the slot of the first choice, where the last row of the prompt is written (the
    clone source). total i32[].
    """

    there: Array
    source: Array
    number: Array
    slots: Array
    parents: Array
    total: Array


def prefill(setup: Setup, weights: Weights, state: State, work: PrefillWork) -> tuple[State, Array]:
    """Do it all, or nothing: (state, status i32[3])."""
    geometry = setup.geometry
    choices = plan_choices(state, work, geometry)
    tokens, slots, positions, firsts = _prompt_tokens(work, choices)
    batch = sort_batch(slots, positions, seqs=setup.batch_seqs)
    grant = plan_pages(state.counts, batch, geometry)
    status = _status(setup, state, work, choices, grant.wanted)
    ok = accepted(status)

    there = ok & (work.lens > 0)
    state = begin(
        state,
        target(there, firsts, geometry.slots),
        jnp.zeros_like(firsts),
        work.lens,
        work.params,
    )
    at = target(ok, slots, geometry.slots)
    state = state._replace(tokens=state.tokens.at[at, positions].set(tokens, mode="drop"))
    state = commit_pages(state, batch, grant, ok, geometry)
    rows, state = _read_prompts(setup, weights, state, batch, ok)

    clones = ok & choices.there & (choices.number > 0)
    partial = work.lens[choices.source] % geometry.page_size != 0
    fresh = fork_pages(state, choices.parents, clones & partial, geometry)
    children = target(clones, choices.slots, geometry.slots)
    state = fork(state, choices.parents, children, choices.number, fresh, setup)

    last_rows = rows[(jnp.cumsum(work.lens) - 1)[choices.source]]
    state = take_samples(setup, weights, state, choices.slots, last_rows, choices.there, ok=ok)
    return state, status


def _read_prompts(
    setup: Setup, weights: Weights, state: State, batch: Batch, ok: Array
) -> tuple[Array, State]:
    """`forward` as a loop of one step, or of none where the prefill is refused.

    XLA orders instructions by their data alone: nothing that the forks write depends on what
    attention read, so without the loop the whole pool is copied first, for attention to read from.
    """

    def step(_: Array, carry: tuple[Array, State]) -> tuple[Array, State]:
        return forward(setup, weights, carry[1], batch, ok)

    rows = jax.eval_shape(lambda: forward(setup, weights, state, batch, ok)[0])
    begin = (jnp.zeros(rows.shape, rows.dtype), state)
    end: tuple[Array, State] = lax.fori_loop(0, ok.astype(jnp.int32), step, begin)
    return end


def plan_choices(state: State, work: PrefillWork, geometry: Geometry) -> Choices:
    """Give each choice the next lowest unused slot."""
    index = jnp.arange(geometry.slots, dtype=jnp.int32)
    ends = jnp.cumsum(work.generations, dtype=jnp.int32)
    source = jnp.searchsorted(ends, index, side="right").astype(jnp.int32)
    source = jnp.minimum(source, work.lens.shape[0] - 1)
    first = ends[source] - work.generations[source]
    slots = lowest_unused(state, geometry.slots)
    there = index < ends[-1]
    return Choices(
        there=there,
        source=source,
        number=index - first,
        slots=jnp.where(there, slots, INVALID),
        parents=slots[first],
        total=ends[-1],
    )


def _prompt_tokens(work: PrefillWork, choices: Choices) -> tuple[Array, Array, Array, Array]:
    """Tokens, slots and positions i32[T] of every prompt token; first slots i32[R]."""
    index = jnp.arange(work.tokens.shape[0], dtype=jnp.int32)
    ends = jnp.cumsum(work.lens, dtype=jnp.int32)
    prompt = jnp.searchsorted(ends, index, side="right").astype(jnp.int32)
    prompt = jnp.minimum(prompt, work.lens.shape[0] - 1)
    there = index < ends[-1]
    begins = jnp.cumsum(work.generations, dtype=jnp.int32) - work.generations
    firsts = choices.slots.at[begins].get(mode="fill", fill_value=INVALID)
    positions = jnp.where(there, index - (ends - work.lens)[prompt], 0)
    return work.tokens, jnp.where(there, firsts[prompt], INVALID), positions, firsts


def _status(
    setup: Setup, state: State, work: PrefillWork, choices: Choices, prompt_pages: Array
) -> Array:
    geometry, limits = setup.geometry, setup.limits
    present = work.lens > 0
    whole = jnp.max(jnp.where(present, work.lens + work.params.max_new, 0))
    requests = work.params.requests
    taken = any_choice_taken(state, jnp.where(present, requests, -1), work.generations)
    pair = (requests[:, None] == requests) & present[:, None] & present
    repeated = jnp.sum(pair) > jnp.sum(present)
    partial = present & (work.lens % geometry.page_size != 0)
    wanted = prompt_pages + jnp.sum(jnp.where(partial, work.generations - 1, 0))
    free_slots = geometry.slots - jnp.sum(state.used, dtype=jnp.int32)
    free_pages = jnp.sum(state.counts == 0, dtype=jnp.int32)
    queued, outputs = state.queued + choices.total, state.outputs + choices.total
    return first_refusal(
        (whole > geometry.max_len, Reason.TOO_LONG, whole, geometry.max_len),
        (taken | repeated, Reason.CHOICE_TAKEN, requests[0], 0),
        (choices.total > free_slots, Reason.NO_FREE_SLOT, choices.total, free_slots),
        (wanted > free_pages, Reason.OUT_OF_PAGES, wanted, free_pages),
        (queued > limits.queue, Reason.QUEUE_FULL, queued, limits.queue),
        (outputs > limits.outputs, Reason.OUTPUTS_FULL, outputs, limits.outputs),
    )
