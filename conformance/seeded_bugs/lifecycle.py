"""Plants in release, reset and reuse: what a slot leaves behind.

Rows CL, RS, PT1 and the defragmentation (DF) of the catalogue of real bugs.
"""

from typing import Any, Final

import jax
import jax.numpy as jnp

from conformance.seeded_bugs import Plant
from impl import queue
from spec.vocabulary import INVALID


def _counts_of(release: Any, state: Any, slots: Any, geometry: Any, kept: Any) -> Any:
    """A release that gives back only the row entries that are kept."""
    rows = jnp.where(kept, state.rows, INVALID)
    fewer = release(state._replace(rows=rows), slots, geometry).counts
    return release(state, slots, geometry)._replace(counts=fewer)


def _release_written_only(release: Any) -> Any:
    def wrong(state: Any, slots: Any, geometry: Any) -> Any:
        covered = -(-state.written // geometry.page_size)
        kept = jnp.arange(geometry.pages_per_seq) < covered[:, None]
        return _counts_of(release, state, slots, geometry, kept)

    return wrong


def _release_all_but_last(release: Any) -> Any:
    def wrong(state: Any, slots: Any, geometry: Any) -> Any:
        last = (state.allocated - 1) // geometry.page_size
        kept = jnp.arange(geometry.pages_per_seq) != last[:, None]
        return _counts_of(release, state, slots, geometry, kept)

    return wrong


def _release_full_page_or_nothing(release: Any) -> Any:
    def wrong(state: Any, slots: Any, geometry: Any) -> Any:
        kept = (state.allocated >= geometry.page_size)[:, None]
        return _counts_of(release, state, slots, geometry, kept)

    return wrong


def _release_leaving_one(release: Any) -> Any:
    def wrong(state: Any, slots: Any, geometry: Any) -> Any:
        after = release(state, slots, geometry)
        return after._replace(written=after.written.at[slots].set(1, mode="drop"))

    return wrong


def _release_keeping_row(release: Any) -> Any:
    def wrong(state: Any, slots: Any, geometry: Any) -> Any:
        return release(state, slots, geometry)._replace(rows=state.rows)

    return wrong


def _release_and_defragment(release: Any) -> Any:
    def wrong(state: Any, slots: Any, geometry: Any) -> Any:
        after = release(state, slots, geometry)
        first = after.rows[:, 0]
        alone = after.counts.at[first].get(mode="fill", fill_value=0) == 1
        slot = jnp.argmax(alone & after.used)
        (free,) = jnp.nonzero(after.counts == 0, size=1, fill_value=geometry.pages)
        moves = (alone & after.used)[slot] & (free[0] < first[slot])
        new = jnp.where(moves, free[0], first[slot])
        counts = after.counts.at[first[slot]].add(-moves.astype(jnp.int32), mode="drop")
        return after._replace(
            rows=after.rows.at[slot, 0].set(new),
            counts=counts.at[new].add(moves.astype(jnp.int32), mode="drop"),
        )

    return wrong


def _assign_over_row(assign: Any) -> Any:
    def wrong(setup: Any, weights: Any, state: Any, slot: Any, *rest: Any) -> Any:
        after, status, result = assign(setup, weights, state, slot, *rest)
        at = jnp.where(status[0] == 0, slot, setup.geometry.slots)
        rows = after.rows.at[at].set(INVALID, mode="drop")
        allocated = after.allocated.at[at].set(0, mode="drop")
        return after._replace(rows=rows, allocated=allocated), status, result

    return wrong


def _keep_queue_on_reset(reset: Any) -> Any:
    def wrong(setup: Any, weights: Any, state: Any) -> Any:
        after, status, result = reset(setup, weights, state)
        kept = after._replace(
            queue_tokens=state.queue_tokens,
            queue_slots=state.queue_slots,
            queue_positions=state.queue_positions,
            queued=state.queued,
        )
        return kept, status, result

    return wrong


def _keep_counts_on_reset(reset: Any) -> Any:
    def wrong(setup: Any, weights: Any, state: Any) -> Any:
        after, status, result = reset(setup, weights, state)
        return after._replace(counts=state.counts), status, result

    return wrong


def _keep_prompts_on_reset(reset: Any) -> Any:
    def wrong(setup: Any, weights: Any, state: Any) -> Any:
        after, status, result = reset(setup, weights, state)
        return after._replace(prompt_lens=state.prompt_lens), status, result

    return wrong


def _reset_only_if_idle(reset: Any) -> Any:
    def wrong(setup: Any, weights: Any, state: Any) -> Any:
        after, status, result = reset(setup, weights, state)
        busy = jnp.any(state.used)
        kept = jax.tree.map(lambda old, new: jnp.where(busy, old, new), state, after)
        return kept, status, result

    return wrong


def _purge_nothing(_purge: Any) -> Any:
    return lambda state, _slots: state


def _finished_still_queued(keep_outputs: Any) -> Any:
    def wrong(setup: Any, state: Any, slots: Any, reasons: Any) -> Any:
        kept = keep_outputs(setup, state, slots, reasons)
        last = state.known[slots] - 1
        return queue.push(kept, slots, state.tokens[slots, last], last, reasons != 0)

    return wrong


def _outputs_dropped(keep: Any) -> Any:
    def wrong(setup: Any, state: Any, slots: Any, reasons: Any) -> Any:
        stopped = jnp.where(reasons == 2, 0, reasons)
        return keep(setup, state, slots, stopped)

    return wrong


PLANTS: Final = (
    Plant(
        id="PT1",
        thread="https://github.com/tenstorrent/vllm-tt-plugin/pull/103",
        mechanism="a freed slot keeps its row, and the next tenant inherits the tail",
        clause="ROW",
        patches=(("impl.sequences", "release", _release_keeping_row),),
    ),
    Plant(
        id="CL1",
        thread="https://github.com/sgl-project/sglang-jax/issues/1147",
        mechanism="a release covers the written pages and not all that were allocated",
        clause="CONS",
        patches=(("impl.sequences", "release", _release_written_only),),
    ),
    Plant(
        id="CL3",
        thread="https://github.com/sgl-project/sglang/pull/22862",
        mechanism="a prompt overwrites row entries without releasing their pages",
        clause="CONS",
        patches=(("impl.entries", "assign", _assign_over_row),),
    ),
    Plant(
        id="CL4",
        thread="https://github.com/vllm-project/tpu-inference/pull/3449",
        mechanism="a freed sequence's queued tokens are not purged",
        clause="Q",
        patches=(("impl.queue", "purge", _purge_nothing),),
    ),
    Plant(
        id="CL4b",
        thread="https://github.com/vllm-project/vllm/pull/45357",
        mechanism="a finished sequence stays in the queue of the decode loop",
        clause="Q",
        patches=(("impl.decode", "keep_outputs", _finished_still_queued),),
    ),
    Plant(
        id="CL6",
        thread="https://github.com/kekzl/imp/issues/1115",
        mechanism="a release loses exactly one page, the last",
        clause="CONS",
        patches=(("impl.sequences", "release", _release_all_but_last),),
    ),
    Plant(
        id="CL7",
        thread="https://github.com/neuralmagic/vllm/pull/71",
        mechanism="a sequence that is shorter than a page is not released",
        clause="CONS",
        patches=(("impl.sequences", "release", _release_full_page_or_nothing),),
    ),
    Plant(
        id="CL8",
        thread="https://github.com/sgl-project/sglang/pull/22273",
        mechanism="a release writes a length of one back to the slot",
        clause="LEN",
        patches=(("impl.sequences", "release", _release_leaving_one),),
    ),
    Plant(
        id="OU1",
        thread="https://github.com/vllm-project/tpu-inference/pull/3449",
        mechanism="the output of a stopped sequence is lost in the cleanup",
        clause="OUT",
        patches=(("impl.decode", "keep_outputs", _outputs_dropped),),
    ),
    Plant(
        id="RS2",
        thread="https://github.com/abetlen/llama-cpp-python/pull/2180",
        mechanism="a logical reset forgets the table and keeps the queue",
        clause="Q",
        patches=(("impl.entries", "reset_logical", _keep_queue_on_reset),),
    ),
    Plant(
        id="RS2b",
        thread="https://github.com/abetlen/llama-cpp-python/pull/2180",
        mechanism="a logical reset keeps which slots have a prompt",
        clause="ATOMIC",
        patches=(("impl.entries", "reset_logical", _keep_prompts_on_reset),),
    ),
    Plant(
        id="RS3",
        thread="https://github.com/vllm-project/vllm/pull/12284",
        mechanism="a reset does nothing while a sequence is live, and says it did",
        clause="RESET",
        patches=(("impl.entries", "reset_logical", _reset_only_if_idle),),
    ),
    Plant(
        id="RS5",
        thread="https://github.com/marin-community/levanter/pull/1277",
        mechanism="a reset leaves the counts as they were",
        clause="CONS",
        patches=(("impl.entries", "reset_logical", _keep_counts_on_reset),),
    ),
    Plant(
        id="DF1",
        thread="https://github.com/ggml-org/llama.cpp/issues/12253",
        mechanism="a defragmentation moves a page in its row, and K and V stay where they were",
        clause="CONTENT",
        patches=(("impl.sequences", "release", _release_and_defragment),),
    ),
)
"""In the order of the report."""
