"""Plants in the allocator, the page table and what is written through it.

Rows AL, PT, AK4 and RS1 of the catalogue of real bugs.
"""

from typing import Any, Final

import jax.numpy as jnp

from conformance.seeded_bugs import Plant
from spec.vocabulary import INVALID, Reason


def _free_page_twice(lowest_free: Any) -> Any:
    def wrong(counts: Any, size: int) -> Any:
        free = lowest_free(counts, size)
        return jnp.where(jnp.arange(size) == 1, free[0], free)

    return wrong


def _free_by_subtraction(status: Any) -> Any:
    def wrong(setup: Any, state: Any, *rest: Any) -> Any:
        taken = jnp.arange(state.counts.shape[0]) < jnp.sum(state.counts)
        return status(setup, state._replace(counts=taken.astype(jnp.int32)), *rest)

    return wrong


def _commit_counts_anyway(commit: Any) -> Any:
    def wrong(state: Any, batch: Any, grant: Any, ok: Any, geometry: Any) -> Any:
        after = commit(state, batch, grant, ok, geometry)
        raised = commit(state, batch, grant, jnp.ones((), bool), geometry).counts
        return after._replace(counts=raised)

    return wrong


def _commit_lengths_anyway(commit: Any) -> Any:
    def wrong(state: Any, batch: Any, grant: Any, ok: Any, geometry: Any) -> Any:
        after = commit(state, batch, grant, ok, geometry)
        raised = commit(state, batch, grant, jnp.ones((), bool), geometry).allocated
        return after._replace(allocated=raised)

    return wrong


def _commit_first_row_only(commit: Any) -> Any:
    def wrong(state: Any, batch: Any, grant: Any, ok: Any, geometry: Any) -> Any:
        after = commit(state, batch, grant, ok, geometry)
        frozen = (state.allocated > 0)[:, None]
        return after._replace(rows=jnp.where(frozen, state.rows, after.rows))

    return wrong


def _no_length_guard(_guard: Any) -> Any:
    return lambda _batch, _geometry: (False, Reason.TOO_LONG, 0, 0)


def _page_past_the_pool_clipped(plan_pages: Any) -> Any:
    def wrong(counts: Any, batch: Any, geometry: Any) -> Any:
        grant = plan_pages(counts, batch, geometry)
        clipped = jnp.minimum(grant.pages, geometry.pages - 1)
        return grant._replace(pages=clipped, found=grant.found + 1)

    return wrong


def _page_past_the_pool_dropped(plan_pages: Any) -> Any:
    def wrong(counts: Any, batch: Any, geometry: Any) -> Any:
        grant = plan_pages(counts, batch, geometry)
        return grant._replace(found=grant.found + 1)

    return wrong


def _pages_of_batch_by_floor(plan_pages: Any) -> Any:
    def wrong(counts: Any, batch: Any, geometry: Any) -> Any:
        grant = plan_pages(counts, batch, geometry)
        most = max(1, batch.slots.shape[0] // geometry.page_size)
        lost = jnp.cumsum(grant.begins) > most
        pages = jnp.where(lost, geometry.pages, grant.pages)
        return grant._replace(pages=pages, found=jnp.minimum(grant.found, most))

    return wrong


def _rows_by_batch_index(batch_plan: Any) -> Any:
    def wrong(state: Any, batch: Any, ok: Any, geometry: Any) -> Any:
        plan = batch_plan(state, batch, ok, geometry)
        return plan._replace(page_indices=state.rows[: plan.page_indices.shape[0]])

    return wrong


def _rows_rotated(batch_plan: Any) -> Any:
    def wrong(state: Any, batch: Any, ok: Any, geometry: Any) -> Any:
        plan = batch_plan(state, batch, ok, geometry)
        following = jnp.arange(plan.slot_ids.shape[0]) + 1
        turned = plan.page_indices[following % jnp.maximum(plan.num_seqs, 1)]
        return plan._replace(page_indices=turned)

    return wrong


def _lengths_in_callers_order(sort_batch: Any) -> Any:
    def wrong(slots: Any, positions: Any, *, seqs: int) -> Any:
        batch = sort_batch(slots, positions, seqs=seqs)
        sequence = jnp.cumsum(batch.valid & (batch.ranks == 0)) - 1
        counted = jnp.where(batch.valid, sequence, seqs)
        first = jnp.full((seqs,), INVALID).at[counted].min(batch.order, mode="drop")
        return batch._replace(q_lens=batch.q_lens[jnp.argsort(first)])

    return wrong


def _destination_by_cursor(batch_plan: Any) -> Any:
    def wrong(state: Any, batch: Any, ok: Any, geometry: Any) -> Any:
        plan = batch_plan(state, batch, ok, geometry)
        cursor = jnp.where(batch.valid, state.written[batch.slots] + batch.ranks, 0)
        other = batch_plan(state, batch._replace(positions=cursor), ok, geometry)
        return plan._replace(destinations=other.destinations)

    return wrong


def _flat_table_too_narrow(batch_plan: Any) -> Any:
    def wrong(state: Any, batch: Any, ok: Any, geometry: Any) -> Any:
        plan = batch_plan(state, batch, ok, geometry)
        slots, width = state.rows.shape
        place = jnp.arange(slots)[:, None] * (width - 1) + jnp.arange(width)
        shifted = state._replace(rows=state.rows.ravel()[place])
        return plan._replace(destinations=batch_plan(shifted, batch, ok, geometry).destinations)

    return wrong


def _write_padding_to_zero(write: Any) -> Any:
    def wrong(kv_pages: Any, destinations: Any, k: Any, v: Any) -> Any:
        inside = destinations < kv_pages.shape[0] * kv_pages.shape[1]
        return write(kv_pages, jnp.where(inside, destinations, 0), k, v)

    return wrong


def _write_by_adding(_write: Any) -> Any:
    def wrong(kv_pages: Any, destinations: Any, k: Any, v: Any) -> Any:
        pool = kv_pages.reshape(-1, *kv_pages.shape[2:])
        cells = jnp.stack([k, v], axis=2).reshape(k.shape[0], -1, k.shape[2])
        return pool.at[destinations].add(cells, mode="drop").reshape(kv_pages.shape)

    return wrong


PLANTS: Final = (
    Plant(
        id="AL1",
        thread="https://github.com/NVIDIA/TensorRT-LLM/pull/14937",
        mechanism="the list of free pages names one page twice",
        clause="ROW",
        patches=(("impl.allocation", "lowest_free", _free_page_twice),),
    ),
    Plant(
        id="AL2",
        thread="https://github.com/NVIDIA/TensorRT-LLM/pull/12834",
        mechanism="the number of free pages is the pool less the row entries",
        clause="ATOMIC",
        patches=(("impl.prefill", "_status", _free_by_subtraction),),
    ),
    Plant(
        id="AL3",
        thread="https://github.com/vllm-project/vllm/pull/11565",
        mechanism="counts are raised before the capacity check, and stay raised",
        clause="CONS",
        patches=(("impl.allocation", "commit_pages", _commit_counts_anyway),),
    ),
    Plant(
        id="AL4",
        thread="https://github.com/vllm-project/vllm/pull/10730",
        mechanism="an allocation is not capped at the width of the row",
        clause="ATOMIC",
        patches=(("impl.plan", "length_guard", _no_length_guard),),
    ),
    Plant(
        id="AL5",
        thread="https://github.com/vllm-project/vllm/pull/24228",
        mechanism="lengths are advanced before the capacity check, and stay so",
        clause="ROW",
        patches=(("impl.allocation", "commit_pages", _commit_lengths_anyway),),
    ),
    Plant(
        id="PT2",
        thread="https://github.com/gittensor-ai-lab/sparkinfer/issues/289",
        mechanism="row i of a batch is taken to be slot i",
        clause="DET",
        patches=(("impl.plan", "batch_plan", _rows_by_batch_index),),
    ),
    Plant(
        id="PT4",
        thread="https://github.com/marin-community/levanter/pull/1169",
        mechanism="query lengths come in the caller's order, sequences are sorted",
        clause="DET",
        patches=(("impl.plan", "sort_batch", _lengths_in_callers_order),),
    ),
    Plant(
        id="PT4b",
        thread="https://github.com/marin-community/levanter/pull/1169",
        mechanism="a destination comes from a cursor of the slot, not the position",
        clause="DET",
        patches=(("impl.plan", "batch_plan", _destination_by_cursor),),
    ),
    Plant(
        id="PT5",
        thread="https://github.com/vllm-project/tpu-inference/pull/2366",
        mechanism="a page id past the pool is clipped to the last page",
        clause="ATOMIC",
        patches=(("impl.allocation", "plan_pages", _page_past_the_pool_clipped),),
    ),
    Plant(
        id="PT5b",
        thread="https://github.com/vllm-project/tpu-inference/pull/2366",
        mechanism="a page id past the pool is dropped, and its tokens with it",
        clause="ATOMIC",
        patches=(("impl.allocation", "plan_pages", _page_past_the_pool_dropped),),
    ),
    Plant(
        id="PT6",
        thread="https://github.com/AI-Hypercomputer/maxtext/pull/1777",
        mechanism="the pages of a batch are bounded by a division that rounds down",
        clause="ATOMIC",
        patches=(("impl.allocation", "plan_pages", _pages_of_batch_by_floor),),
    ),
    Plant(
        id="PT7",
        thread="https://github.com/NVIDIA/TensorRT-LLM/pull/18259",
        mechanism="the rows of a batch are rotated against its lengths",
        clause="DET",
        patches=(("impl.plan", "batch_plan", _rows_rotated),),
    ),
    Plant(
        id="PT8",
        thread="https://github.com/vllm-project/vllm/pull/54296",
        mechanism="the flat table is indexed one entry short: the adjacent row",
        clause="DET",
        patches=(("impl.plan", "batch_plan", _flat_table_too_narrow),),
    ),
    Plant(
        id="PT9",
        thread="https://github.com/NVIDIA/TensorRT-LLM/issues/13320",
        mechanism="a row that has pages is not extended while its length grows",
        clause="CONS",
        patches=(("impl.allocation", "commit_pages", _commit_first_row_only),),
    ),
    Plant(
        id="AK4",
        thread="https://github.com/sgl-project/sglang/pull/32477",
        mechanism="padding tokens write to the first cell instead of nowhere",
        clause="CONTENT",
        patches=(("impl.cache.paged", "write", _write_padding_to_zero),),
    ),
    Plant(
        id="RS1",
        thread="https://github.com/llmmanorg/llmman/pull/118",
        mechanism="K and V are added to what the cell held",
        clause="CONTENT",
        patches=(("impl.cache.paged", "write", _write_by_adding),),
    ),
)
"""In the order of the report."""
