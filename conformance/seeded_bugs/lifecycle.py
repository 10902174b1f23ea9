"""Plants in the release, the reset and the reuse of slots.

Rows CL, RS, PT1 and the defragmentation (DF) of the catalogue of real bugs.
"""

from collections.abc import Callable
from typing import Final

import jax
import jax.numpy as jnp
from jax import Array

from conformance.seeded_bugs import Plant, patch
from conformance.seeded_bugs.states import with_pages, with_slots
from impl import commit, entries
from impl.models.protocol import Weights
from impl.setup import Setup
from impl.state import Params, Queue, State, queue
from impl.steps import decode
from impl.steps.answer import Answer
from spec.vocabulary import INVALID, Geometry

Assign = Callable[[Setup, Weights, State, Array, Array, Array, Array, Params], Answer]
KeepOutputs = Callable[[Setup, State, Array, Array], State]
Purge = Callable[[Queue, Array], Queue]
Release = Callable[[State, Array, Geometry], State]
Reset = Callable[[Setup, Weights, State], Answer]


def _counts_of(
    release: Release, state: State, slots: Array, geometry: Geometry, kept: Array
) -> State:
    """A release that lowers the counts of only the row entries in `kept`."""
    rows = jnp.where(kept, state.pages.rows, INVALID)
    fewer = release(with_pages(state, rows=rows), slots, geometry).pages.counts
    return with_pages(release(state, slots, geometry), counts=fewer)


def _release_written_only(release: Release) -> Release:
    def wrong(state: State, slots: Array, geometry: Geometry) -> State:
        covered = -(-state.slots.written // geometry.page_size)
        kept = jnp.arange(geometry.pages_per_seq) < covered[:, None]
        return _counts_of(release, state, slots, geometry, kept)

    return wrong


def _release_all_but_last(release: Release) -> Release:
    def wrong(state: State, slots: Array, geometry: Geometry) -> State:
        last = (state.slots.allocated - 1) // geometry.page_size
        kept = jnp.arange(geometry.pages_per_seq) != last[:, None]
        return _counts_of(release, state, slots, geometry, kept)

    return wrong


def _release_full_page_or_nothing(release: Release) -> Release:
    def wrong(state: State, slots: Array, geometry: Geometry) -> State:
        kept = (state.slots.allocated >= geometry.page_size)[:, None]
        return _counts_of(release, state, slots, geometry, kept)

    return wrong


def _release_leaving_one(release: Release) -> Release:
    def wrong(state: State, slots: Array, geometry: Geometry) -> State:
        after = release(state, slots, geometry)
        return with_slots(after, written=after.slots.written.at[slots].set(1, mode="drop"))

    return wrong


def _release_keeping_row(release: Release) -> Release:
    def wrong(state: State, slots: Array, geometry: Geometry) -> State:
        return with_pages(release(state, slots, geometry), rows=state.pages.rows)

    return wrong


def _release_and_defragment(release: Release) -> Release:
    def wrong(state: State, slots: Array, geometry: Geometry) -> State:
        after = release(state, slots, geometry)
        first = after.pages.rows[:, 0]
        alone = after.pages.counts.at[first].get(mode="fill", fill_value=0) == 1
        slot = jnp.argmax(alone & after.slots.used)
        (free,) = jnp.nonzero(after.pages.counts == 0, size=1, fill_value=geometry.pages)
        moves = (alone & after.slots.used)[slot] & (free[0] < first[slot])
        new = jnp.where(moves, free[0], first[slot])
        counts = after.pages.counts.at[first[slot]].add(-moves.astype(jnp.int32), mode="drop")
        return with_pages(
            after,
            rows=after.pages.rows.at[slot, 0].set(new),
            counts=counts.at[new].add(moves.astype(jnp.int32), mode="drop"),
        )

    return wrong


def _assign_over_row(assign: Assign) -> Assign:
    def wrong(
        setup: Setup,
        weights: Weights,
        state: State,
        slot: Array,
        choice: Array,
        tokens: Array,
        length: Array,
        params: Params,
    ) -> Answer:
        given = (slot, choice, tokens, length, params)
        after, status, result = assign(setup, weights, state, *given)
        at = jnp.where(status[0] == 0, slot, setup.geometry.slots)
        rows = after.pages.rows.at[at].set(INVALID, mode="drop")
        allocated = after.slots.allocated.at[at].set(0, mode="drop")
        covered = with_slots(with_pages(after, rows=rows), allocated=allocated)
        return covered, status, result

    return wrong


def _keep_queue_on_reset(reset: Reset) -> Reset:
    def wrong(setup: Setup, weights: Weights, state: State) -> Answer:
        after, status, result = reset(setup, weights, state)
        return after._replace(queue=state.queue), status, result

    return wrong


def _keep_counts_on_reset(reset: Reset) -> Reset:
    def wrong(setup: Setup, weights: Weights, state: State) -> Answer:
        after, status, result = reset(setup, weights, state)
        return with_pages(after, counts=state.pages.counts), status, result

    return wrong


def _keep_prompts_on_reset(reset: Reset) -> Reset:
    def wrong(setup: Setup, weights: Weights, state: State) -> Answer:
        after, status, result = reset(setup, weights, state)
        return with_slots(after, prompt_lens=state.slots.prompt_lens), status, result

    return wrong


def _reset_only_if_idle(reset: Reset) -> Reset:
    def wrong(setup: Setup, weights: Weights, state: State) -> Answer:
        after, status, result = reset(setup, weights, state)
        busy = jnp.any(state.slots.used)
        kept = jax.tree.map(lambda old, new: jnp.where(busy, old, new), state, after)
        return kept, status, result

    return wrong


def _purge_nothing(_purge: Purge) -> Purge:
    return lambda held, _slots: held


def _finished_still_queued(keep_outputs: KeepOutputs) -> KeepOutputs:
    def wrong(setup: Setup, state: State, slots: Array, reasons: Array) -> State:
        kept = keep_outputs(setup, state, slots, reasons)
        last = state.slots.known[slots] - 1
        tokens = state.slots.tokens[slots, last]
        return kept._replace(queue=queue.push(kept.queue, slots, tokens, last, reasons != 0))

    return wrong


def _outputs_dropped(keep: KeepOutputs) -> KeepOutputs:
    def wrong(setup: Setup, state: State, slots: Array, reasons: Array) -> State:
        stopped = jnp.where(reasons == 2, 0, reasons)
        return keep(setup, state, slots, stopped)

    return wrong


PLANTS: Final = (
    Plant(
        id="PT1",
        thread="https://github.com/tenstorrent/vllm-tt-plugin/pull/103",
        mechanism="a freed slot keeps its row, and the next sequence inherits the tail",
        clause="ROW",
        patches=(patch(commit.release, _release_keeping_row),),
    ),
    Plant(
        id="CL1",
        thread="https://github.com/sgl-project/sglang-jax/issues/1147",
        mechanism="a release covers the written pages and not all that were allocated",
        clause="CONS",
        patches=(patch(commit.release, _release_written_only),),
    ),
    Plant(
        id="CL3",
        thread="https://github.com/sgl-project/sglang/pull/22862",
        mechanism="a prompt overwrites row entries without releasing their pages",
        clause="CONS",
        patches=(patch(entries.assign, _assign_over_row),),
    ),
    Plant(
        id="CL4",
        thread="https://github.com/vllm-project/tpu-inference/pull/3449",
        mechanism="a freed sequence's queued tokens are not purged",
        clause="Q",
        patches=(patch(queue.purge, _purge_nothing),),
    ),
    Plant(
        id="CL4b",
        thread="https://github.com/vllm-project/vllm/pull/45357",
        mechanism="a finished sequence stays in the queue of the decode loop",
        clause="Q",
        patches=(patch(decode.keep_outputs, _finished_still_queued),),
    ),
    Plant(
        id="CL6",
        thread="https://github.com/kekzl/imp/issues/1115",
        mechanism="a release loses exactly one page, the last",
        clause="CONS",
        patches=(patch(commit.release, _release_all_but_last),),
    ),
    Plant(
        id="CL7",
        thread="https://github.com/neuralmagic/vllm/pull/71",
        mechanism="a sequence that is shorter than a page is not released",
        clause="CONS",
        patches=(patch(commit.release, _release_full_page_or_nothing),),
    ),
    Plant(
        id="CL8",
        thread="https://github.com/sgl-project/sglang/pull/22273",
        mechanism="a release writes a length of one back to the slot",
        clause="LEN",
        patches=(patch(commit.release, _release_leaving_one),),
    ),
    Plant(
        id="OU1",
        thread="https://github.com/vllm-project/tpu-inference/pull/3449",
        mechanism="the output of a stopped sequence is lost in the cleanup",
        clause="OUT",
        patches=(patch(decode.keep_outputs, _outputs_dropped),),
    ),
    Plant(
        id="RS2",
        thread="https://github.com/abetlen/llama-cpp-python/pull/2180",
        mechanism="a logical reset forgets the table and keeps the queue",
        clause="Q",
        patches=(patch(entries.reset_logical, _keep_queue_on_reset),),
    ),
    Plant(
        id="RS2b",
        thread="https://github.com/abetlen/llama-cpp-python/pull/2180",
        mechanism="a logical reset keeps the lengths of the prompts",
        clause="ATOMIC",
        patches=(patch(entries.reset_logical, _keep_prompts_on_reset),),
    ),
    Plant(
        id="RS3",
        thread="https://github.com/vllm-project/vllm/pull/12284",
        mechanism="a reset does nothing while a sequence is live, and reports success",
        clause="RESET",
        patches=(patch(entries.reset_logical, _reset_only_if_idle),),
    ),
    Plant(
        id="RS5",
        thread="https://github.com/marin-community/levanter/pull/1277",
        mechanism="a reset leaves the counts as they were",
        clause="CONS",
        patches=(patch(entries.reset_logical, _keep_counts_on_reset),),
    ),
    Plant(
        id="DF1",
        thread="https://github.com/ggml-org/llama.cpp/issues/12253",
        mechanism="a defragmentation moves a page in its row, and K and V stay where they were",
        clause="CONTENT",
        patches=(patch(commit.release, _release_and_defragment),),
    ),
)
"""In the order of the report."""
