"""Prefill of several prompts: reserve, assign, allocate, write, fork choices, draw first tokens.

Every choice, the first included, draws from the prompt's last row with its own key. Source:
docs/sources.md, "Prefill and decode", "Clones" and "Forks of a request".
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Int32, Shaped

from impl.commit import begin, commit_pages, fork
from impl.models.protocol import Weights
from impl.plan import (
    Batch,
    any_choice_taken,
    fork_pages,
    plan_pages,
    require_none_in_flight,
    sort_batch,
)
from impl.setup import Setup
from impl.state import Params, State, flights
from impl.state.pages import in_use, number_free
from impl.state.slots import is_unused, lowest_unused
from impl.status import accepted, first_refusal, target
from impl.steps.answer import Answer, nothing
from impl.steps.decode import take_samples
from impl.steps.writing import forward
from spec.vocabulary import INVALID, Geometry, Reason


class PrefillWork(NamedTuple):
    """R prompts, padded. tokens: the prompts, concatenated. lens: 0 is padding.

    generations: number of choices of each. params: of the R requests.
    """

    tokens: Int32[Array, " T"]
    lens: Int32[Array, " R"]
    generations: Int32[Array, " R"]
    params: Params


class Choices(NamedTuple):
    """All choices of all prompts, S wide, in order of their slots.

    source: index of the prompt. number: index of the choice in its request. parents: the slot of
    the first choice, in which the prompt is written and which is cloned.
    """

    there: Bool[Array, " S"]
    source: Int32[Array, " S"]
    number: Int32[Array, " S"]
    slots: Int32[Array, " S"]
    parents: Int32[Array, " S"]
    total: Int32[Array, ""]


def prefill_requests(setup: Setup, weights: Weights, state: State, work: PrefillWork) -> Answer:
    """Prefill prompts, and draw the first token of every choice."""
    return (*prefill(setup, weights, state, work), nothing())


def prefill(
    setup: Setup, weights: Weights, state: State, work: PrefillWork
) -> tuple[State, Int32[Array, "3"]]:
    """Prefill all prompts, or change nothing: (state, status)."""
    geometry, limits = setup.geometry, setup.limits
    assert work.tokens.shape == (limits.prefill_tokens,), "prompts are padded to the limit"
    rows_of = {part.shape[:1] for part in (work.lens, work.generations, *work.params)}
    assert rows_of == {(limits.prefill_seqs,)}, "there is a row for each prompt of the limit"
    summable = work._replace(generations=_summable(work, geometry))
    choices = plan_choices(state, summable, geometry)
    tokens, slots, positions, firsts = _prompt_tokens(summable, choices)
    batch = sort_batch(slots, positions, seqs=setup.batch_seqs)
    grant = plan_pages(state, batch, geometry)
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
    known = state.slots.tokens.at[at, positions].set(tokens, mode="drop")
    state = state._replace(slots=state.slots._replace(tokens=known))
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
    setup: Setup, weights: Weights, state: State, batch: Batch, ok: Bool[Array, ""]
) -> tuple[Shaped[Array, "T ..."], State]:
    """`forward` as a loop of one step, or of none where the prefill is refused.

    XLA orders instructions by their data alone: the writes of the forks do not depend on the reads
    of attention, so without the loop the whole pool would first be copied for those reads.
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
    unused = lowest_unused(state.slots, flights.held(state.flights), geometry.slots)
    there = index < ends[-1]
    return Choices(
        there=there,
        source=source,
        number=index - first,
        slots=jnp.where(there, unused, INVALID),
        parents=unused[first],
        total=ends[-1],
    )


def _summable(work: PrefillWork, geometry: Geometry) -> Int32[Array, " R"]:
    """The numbers of choices, so narrowed that their sum is an int32: more than fit in the slots
    are one too many.
    """
    return jnp.minimum(work.generations, geometry.slots + 1)


def _prompt_tokens(
    work: PrefillWork, choices: Choices
) -> tuple[Int32[Array, " T"], Int32[Array, " T"], Int32[Array, " T"], Int32[Array, " R"]]:
    """Tokens, slots and positions of every prompt token; the first slot of each prompt."""
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
    setup: Setup,
    state: State,
    work: PrefillWork,
    choices: Choices,
    prompt_pages: Int32[Array, ""],
) -> Int32[Array, "3"]:
    geometry, limits = setup.geometry, setup.limits
    present = work.lens > 0
    whole = jnp.max(jnp.where(present, work.lens + work.params.max_new, 0))
    requests = work.params.requests
    taken = any_choice_taken(state, jnp.where(present, requests, -1), work.generations)
    pair = (requests[:, None] == requests) & present[:, None] & present
    repeated = jnp.sum(pair) > jnp.sum(present)
    partial = present & (work.lens % geometry.page_size != 0)
    wanted = prompt_pages + jnp.sum(jnp.where(partial, _summable(work, geometry) - 1, 0))
    unused = is_unused(state.slots, flights.held(state.flights))
    free_slots = jnp.sum(unused, dtype=jnp.int32)
    free_pages = number_free(in_use(state.pages))
    queued, outputs = state.queue.filled + choices.total, state.outputs.filled + choices.total
    queued = queued + flights.promised(state.flights)
    return first_refusal(
        (whole > geometry.max_len, Reason.TOO_LONG, whole, geometry.max_len),
        (taken | repeated, Reason.CHOICE_TAKEN, requests[0], 0),
        require_none_in_flight(state),
        (choices.total > free_slots, Reason.NO_FREE_SLOT, choices.total, free_slots),
        (wanted > free_pages, Reason.OUT_OF_PAGES, wanted, free_pages),
        (queued > limits.queue, Reason.QUEUE_FULL, queued, limits.queue),
        (outputs > limits.outputs, Reason.OUTPUTS_FULL, outputs, limits.outputs),
    )
