"""Steps in flight: dispatched before the outcome of earlier ones is known, then retired, delivered.

A dispatch gives cells to the tokens of a step, and keeps its positions and rows. Its tokens may be
drawn by steps in flight. Retiring writes and draws; what is drawn is proposed. A delivery makes it
known. Source: docs/sources.md, "Steps in flight".
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int32

from impl.commit import commit_pages, end_cells
from impl.models.protocol import Weights
from impl.plan import Batch, batch_plan, plan_pages, require_pages, require_prompts, sort_batch
from impl.setup import Setup
from impl.state import Slots, State, flights, pages, queue
from impl.state.flights import MOST, Step
from impl.status import Guard, accepted, first_refusal, target
from impl.steps.answer import Answer, nothing
from impl.steps.decode import draw, finish_reasons, keep_outputs, tidy
from impl.steps.writing import compute
from spec.vocabulary import INVALID, Reason


def dispatch(setup: Setup, weights: Weights, state: State, chunks: Int32[Array, " S"]) -> Answer:
    """Begin a step with the next `chunks` tokens of each slot: known ones, or drawn in flight."""
    geometry = setup.geometry
    chunks = jnp.minimum(chunks, geometry.max_len + 1)  # their sum is then an int32
    first, draws = state.slots.allocated, _draws(state, chunks)
    batch = _batch(setup, first, chunks)
    grant = plan_pages(state, batch, geometry)
    leaves = queue.within(state.queue, first, chunks)
    status = first_refusal(
        *require_prompts(state.slots, chunks),
        *_require_order(state, chunks),
        *_require_tokens(setup, state, chunks, draws),
        require_pages(grant),
        *_require_delivery(setup, state, draws, leaves),
    )
    ok = accepted(status)
    state = commit_pages(state, batch, grant, ok, geometry)
    rows = jnp.where((ok & (chunks > 0))[:, None], state.pages.rows, INVALID)
    step = Step(first=jnp.where(chunks > 0, first, 0), lens=chunks, draws=draws, rows=rows)
    state = state._replace(
        pages=pages.hold(state.pages, rows, geometry),
        queue=queue.drop(state.queue, leaves & ok),
        flights=flights.push(state.flights, step, ok),
    )
    return state, status, nothing()


def retire(setup: Setup, weights: Weights, state: State) -> Answer:
    """Do the oldest step that has not retired: write, and draw. What it draws is proposed."""
    geometry, held = setup.geometry, state.flights
    index = flights.next_to_retire(held)
    status = first_refusal((index >= held.filled, Reason.NO_FLIGHT, 0, 1))
    ok, step = accepted(status), flights.step_at(held, index)
    batch = _batch(setup, step.first, step.lens)
    dispatched = state._replace(pages=state.pages._replace(rows=step.rows))
    plan = batch_plan(dispatched, batch, ok, geometry)
    rows, state = compute(setup, weights, state, batch, plan, ok)
    slots, last = batch.slot_ids, jnp.cumsum(batch.q_lens) - 1
    goes = ok & step.draws.at[slots].get(mode="fill", fill_value=False)
    _, drawn = draw(setup, weights, state.slots, slots, rows[last], goes)
    at = target(goes, slots, geometry.slots)
    drawn = drawn._replace(proposed=drawn.proposed.at[at].add(1, mode="drop"))
    return state._replace(slots=drawn, flights=flights.retire(held, ok)), status, nothing()


def deliver(setup: Setup, weights: Weights, state: State) -> Answer:
    """Learn of the oldest step: commit its cells, make its tokens known, finish or queue; tidy."""
    geometry, held = setup.geometry, state.flights
    is_done = held.retired[0]
    status = first_refusal((~is_done, Reason.NO_FLIGHT, 0, 1))
    ok, step = accepted(status), flights.step_at(held, jnp.int32(0))
    draws = ok & step.draws
    state = state._replace(
        pages=pages.unhold(state.pages, jnp.where(ok, step.rows, INVALID), geometry),
        slots=_heard(state.slots, step, ok),
        flights=flights.pop(held, ok),
    )
    slots = jnp.arange(geometry.slots, dtype=jnp.int32)
    reasons = jnp.where(draws, finish_reasons(setup, state.slots, slots), 0)
    state = state._replace(
        slots=state.slots._replace(finished=jnp.maximum(state.slots.finished, reasons))
    )
    state = keep_outputs(setup, state, slots, reasons)
    state = _queued(state, slots, draws & (reasons == 0))
    ended = jnp.where(reasons != 0, slots, INVALID)
    state = end_cells(state, ended, geometry)
    return tidy(setup, state, ended, ok=ok), status, nothing()


def _draws(state: State, chunks: Int32[Array, " S"]) -> Bool[Array, " S"]:
    """Which slots draw: their last token, known or to be drawn by a step in flight, is read."""
    return (chunks > 0) & (state.slots.allocated + chunks == _reach(state))


def _reach(state: State) -> Int32[Array, " S"]:
    """The tokens of each slot that are known, or that steps in flight draw."""
    return state.slots.known + flights.drawn(state.flights)


def _batch(setup: Setup, first: Int32[Array, " S"], count: Int32[Array, " S"]) -> Batch:
    """The batch of `count` positions of each slot from `first` on, as far as a step has room."""
    width, slots = setup.limits.round_tokens, setup.geometry.slots
    ends, place = jnp.cumsum(count, dtype=jnp.int32), jnp.arange(width, dtype=jnp.int32)
    there = place < ends[-1]
    at = jnp.searchsorted(ends, place, side="right").astype(jnp.int32)
    at = jnp.minimum(at, slots - 1)
    positions = first[at] + place - (ends - count)[at]
    return sort_batch(jnp.where(there, at, INVALID), positions, seqs=min(slots, width))


def _require_order(state: State, chunks: Int32[Array, " S"]) -> tuple[Guard, ...]:
    """There is a chunk; a slot that is in no step has neither unwritten cells nor drafts."""
    held, reads = state.slots, chunks > 0
    alone = reads & (flights.steps_of(state.flights) == 0)
    opens, drafts = alone & (held.allocated != held.written), alone & (held.proposed > 0)
    return (
        (~jnp.any(reads), Reason.QUEUE_EMPTY, 0, 1),
        (jnp.any(opens), Reason.UNWRITTEN, jnp.sum(opens), 0),
        (jnp.any(drafts), Reason.PROPOSED, jnp.sum(drafts), 0),
    )


def _require_tokens(
    setup: Setup, state: State, chunks: Int32[Array, " S"], draws: Bool[Array, " S"]
) -> tuple[Guard, ...]:
    """The tokens of chunks are known or drawn in flight, each may be written, and there is room."""
    held, reach, width = state.slots, _reach(state), setup.limits.round_tokens
    left, tokens = reach - held.allocated, jnp.sum(chunks, dtype=jnp.int32)
    beyond, generated = (chunks > 0) & (chunks > left), reach - held.prompt_lens
    ends = draws & (generated >= held.max_new)
    first, last = jnp.argmax(beyond), jnp.argmax(ends)
    return (
        (jnp.any(beyond), Reason.BATCH_UNKNOWN, chunks[first], left[first]),
        (jnp.any(ends), Reason.TOO_LONG, generated[last], held.max_new[last] - 1),
        (tokens > width, Reason.BATCH_WIDTH, tokens, width),
    )


def _require_delivery(
    setup: Setup, state: State, draws: Bool[Array, " S"], leaves: Bool[Array, " Q"]
) -> tuple[Guard, ...]:
    """There is room for one more step, and for what the steps in flight and this one may deliver.

    leaves: which tokens leave the queue with this step.
    """
    limits, open_steps = setup.limits, state.flights.filled
    promised = (flights.drawn(state.flights) > 0) | draws
    more = jnp.sum(promised, dtype=jnp.int32)
    outputs = state.outputs.filled + more
    queued = state.queue.filled - jnp.sum(leaves, dtype=jnp.int32) + more
    return (
        (open_steps >= MOST, Reason.FLIGHTS_FULL, open_steps, MOST - 1),
        (outputs > limits.outputs, Reason.OUTPUTS_FULL, outputs, limits.outputs),
        (queued > limits.queue, Reason.QUEUE_FULL, queued, limits.queue),
    )


def _heard(held: Slots, step: Step, ok: Bool[Array, ""]) -> Slots:
    """The slots after a step is delivered: its cells are committed, what it drew is known."""
    drawn = (ok & step.draws).astype(jnp.int32)
    final = jnp.where(ok & (step.lens > 0), step.first + step.lens, held.committed)
    return held._replace(committed=final, known=held.known + drawn, proposed=held.proposed - drawn)


def _queued(state: State, slots: Int32[Array, " S"], going: Bool[Array, " S"]) -> State:
    """Queue the last known token of slots that go on, unless a step in flight has its position."""
    waits = going & (flights.steps_of(state.flights) == 0)
    positions = state.slots.known - 1
    tokens = state.slots.tokens[slots, positions]
    return state._replace(queue=queue.push(state.queue, slots, tokens, positions, waits))
