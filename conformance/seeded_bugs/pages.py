"""Plants in the allocator, the page table and the writes through it.

Rows AL, PT, AK4 and RS1 of the catalogue of real bugs.
"""

from collections.abc import Callable
from typing import Final, Protocol

import jax.numpy as jnp
from jax import Array

from conformance.seeded_bugs import Plant, patch
from conformance.seeded_bugs.states import with_pages, with_slots
from impl import commit, plan
from impl.cache import paged
from impl.models.protocol import BatchPlan
from impl.plan import Batch, Grant
from impl.setup import Setup
from impl.state import State
from impl.state import pages as pool
from impl.status import Guard
from impl.steps.prefill import Choices, PrefillWork, _status
from spec.vocabulary import INVALID, Geometry, Reason

CommitPages = Callable[[State, Batch, Grant, Array, Geometry], State]
RequireLength = Callable[[Batch, Geometry], Guard]
LowestFree = Callable[[Array, int], Array]
PlanBatch = Callable[[State, Batch, Array, Geometry], BatchPlan]
PlanPages = Callable[[State, Batch, Geometry], Grant]
Status = Callable[[Setup, State, PrefillWork, Choices, Array], Array]
Write = Callable[[Array, Array, Array, Array], Array]


class SortBatch(Protocol):
    """The type of `impl.plan.sort_batch`."""

    def __call__(self, slots: Array, positions: Array, *, seqs: int) -> Batch:
        """The tokens in plan order."""
        ...


def _free_page_twice(lowest_free: LowestFree) -> LowestFree:
    def wrong(counts: Array, size: int) -> Array:
        free = lowest_free(counts, size)
        return jnp.where(jnp.arange(size) == 1, free[0], free)

    return wrong


def _free_by_subtraction(status: Status) -> Status:
    def wrong(
        setup: Setup, state: State, work: PrefillWork, choices: Choices, prompt_pages: Array
    ) -> Array:
        taken = jnp.arange(state.pages.counts.shape[0]) < jnp.sum(state.pages.counts)
        counted = with_pages(state, counts=taken.astype(jnp.int32))
        return status(setup, counted, work, choices, prompt_pages)

    return wrong


def _commit_counts_anyway(commit: CommitPages) -> CommitPages:
    def wrong(state: State, batch: Batch, grant: Grant, ok: Array, geometry: Geometry) -> State:
        after = commit(state, batch, grant, ok, geometry)
        raised = commit(state, batch, grant, jnp.ones((), bool), geometry).pages.counts
        return with_pages(after, counts=raised)

    return wrong


def _commit_lengths_anyway(commit: CommitPages) -> CommitPages:
    def wrong(state: State, batch: Batch, grant: Grant, ok: Array, geometry: Geometry) -> State:
        after = commit(state, batch, grant, ok, geometry)
        raised = commit(state, batch, grant, jnp.ones((), bool), geometry).slots.allocated
        return with_slots(after, allocated=raised)

    return wrong


def _commit_first_row_only(commit: CommitPages) -> CommitPages:
    def wrong(state: State, batch: Batch, grant: Grant, ok: Array, geometry: Geometry) -> State:
        after = commit(state, batch, grant, ok, geometry)
        frozen = (state.slots.allocated > 0)[:, None]
        return with_pages(after, rows=jnp.where(frozen, state.pages.rows, after.pages.rows))

    return wrong


def _no_required_length(_require: RequireLength) -> RequireLength:
    return lambda _batch, _geometry: (False, Reason.TOO_LONG, 0, 0)


def _page_past_the_pool_clipped(plan_pages: PlanPages) -> PlanPages:
    def wrong(state: State, batch: Batch, geometry: Geometry) -> Grant:
        grant = plan_pages(state, batch, geometry)
        clipped = jnp.minimum(grant.pages, geometry.pages - 1)
        return grant._replace(pages=clipped, found=grant.found + 1)

    return wrong


def _page_past_the_pool_dropped(plan_pages: PlanPages) -> PlanPages:
    def wrong(state: State, batch: Batch, geometry: Geometry) -> Grant:
        grant = plan_pages(state, batch, geometry)
        return grant._replace(found=grant.found + 1)

    return wrong


def _pages_of_batch_by_floor(plan_pages: PlanPages) -> PlanPages:
    def wrong(state: State, batch: Batch, geometry: Geometry) -> Grant:
        grant = plan_pages(state, batch, geometry)
        most = max(1, batch.slots.shape[0] // geometry.page_size)
        lost = jnp.cumsum(grant.begins) > most
        pages = jnp.where(lost, geometry.pages, grant.pages)
        return grant._replace(pages=pages, found=jnp.minimum(grant.found, most))

    return wrong


def _rows_by_batch_index(batch_plan: PlanBatch) -> PlanBatch:
    def wrong(state: State, batch: Batch, ok: Array, geometry: Geometry) -> BatchPlan:
        plan = batch_plan(state, batch, ok, geometry)
        return plan._replace(page_indices=state.pages.rows[: plan.page_indices.shape[0]])

    return wrong


def _rows_rotated(batch_plan: PlanBatch) -> PlanBatch:
    def wrong(state: State, batch: Batch, ok: Array, geometry: Geometry) -> BatchPlan:
        plan = batch_plan(state, batch, ok, geometry)
        following = jnp.arange(plan.slot_ids.shape[0]) + 1
        turned = plan.page_indices[following % jnp.maximum(plan.num_seqs, 1)]
        return plan._replace(page_indices=turned)

    return wrong


def _lengths_in_callers_order(sort_batch: SortBatch) -> SortBatch:
    def wrong(slots: Array, positions: Array, *, seqs: int) -> Batch:
        batch = sort_batch(slots, positions, seqs=seqs)
        sequence = jnp.cumsum(batch.valid & (batch.ranks == 0)) - 1
        counted = jnp.where(batch.valid, sequence, seqs)
        first = jnp.full((seqs,), INVALID).at[counted].min(batch.order, mode="drop")
        return batch._replace(q_lens=batch.q_lens[jnp.argsort(first)])

    return wrong


def _destination_by_cursor(batch_plan: PlanBatch) -> PlanBatch:
    def wrong(state: State, batch: Batch, ok: Array, geometry: Geometry) -> BatchPlan:
        plan = batch_plan(state, batch, ok, geometry)
        cursor = jnp.where(batch.valid, state.slots.written[batch.slots] + batch.ranks, 0)
        other = batch_plan(state, batch._replace(positions=cursor), ok, geometry)
        return plan._replace(destinations=other.destinations)

    return wrong


def _flat_table_too_narrow(batch_plan: PlanBatch) -> PlanBatch:
    def wrong(state: State, batch: Batch, ok: Array, geometry: Geometry) -> BatchPlan:
        plan = batch_plan(state, batch, ok, geometry)
        slots, width = state.pages.rows.shape
        place = jnp.arange(slots)[:, None] * (width - 1) + jnp.arange(width)
        shifted = with_pages(state, rows=state.pages.rows.ravel()[place])
        return plan._replace(destinations=batch_plan(shifted, batch, ok, geometry).destinations)

    return wrong


def _write_padding_to_zero(write: Write) -> Write:
    def wrong(kv_pages: Array, destinations: Array, k: Array, v: Array) -> Array:
        inside = destinations < kv_pages.shape[0] * kv_pages.shape[1]
        return write(kv_pages, jnp.where(inside, destinations, 0), k, v)

    return wrong


def _write_by_adding(_write: Write) -> Write:
    def wrong(kv_pages: Array, destinations: Array, k: Array, v: Array) -> Array:
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
        patches=(patch(pool.lowest_free, _free_page_twice),),
    ),
    Plant(
        id="AL2",
        thread="https://github.com/NVIDIA/TensorRT-LLM/pull/12834",
        mechanism="the number of free pages is the pool less the row entries",
        clause="ATOMIC",
        patches=(patch(_status, _free_by_subtraction),),
    ),
    Plant(
        id="AL3",
        thread="https://github.com/vllm-project/vllm/pull/11565",
        mechanism="counts are raised before the capacity check, and stay raised",
        clause="CONS",
        patches=(patch(commit.commit_pages, _commit_counts_anyway),),
    ),
    Plant(
        id="AL4",
        thread="https://github.com/vllm-project/vllm/pull/10730",
        mechanism="an allocation is not capped at the width of the row",
        clause="ATOMIC",
        patches=(patch(plan.require_length, _no_required_length),),
    ),
    Plant(
        id="AL5",
        thread="https://github.com/vllm-project/vllm/pull/24228",
        mechanism="lengths are advanced before the capacity check, and stay so",
        clause="ROW",
        patches=(patch(commit.commit_pages, _commit_lengths_anyway),),
    ),
    Plant(
        id="PT2",
        thread="https://github.com/gittensor-ai-lab/sparkinfer/issues/289",
        mechanism="row i of a batch is taken to be slot i",
        clause="DET",
        patches=(patch(plan.batch_plan, _rows_by_batch_index),),
    ),
    Plant(
        id="PT4",
        thread="https://github.com/marin-community/levanter/pull/1169",
        mechanism="query lengths come in the caller's order, sequences are sorted",
        clause="DET",
        patches=(patch(plan.sort_batch, _lengths_in_callers_order),),
    ),
    Plant(
        id="PT4b",
        thread="https://github.com/marin-community/levanter/pull/1169",
        mechanism="a destination comes from a cursor of the slot, not the position",
        clause="DET",
        patches=(patch(plan.batch_plan, _destination_by_cursor),),
    ),
    Plant(
        id="PT5",
        thread="https://github.com/vllm-project/tpu-inference/pull/2366",
        mechanism="a page id past the pool is clipped to the last page",
        clause="ATOMIC",
        patches=(patch(plan.plan_pages, _page_past_the_pool_clipped),),
    ),
    Plant(
        id="PT5b",
        thread="https://github.com/vllm-project/tpu-inference/pull/2366",
        mechanism="a page id past the pool is dropped, and its tokens with it",
        clause="ATOMIC",
        patches=(patch(plan.plan_pages, _page_past_the_pool_dropped),),
    ),
    Plant(
        id="PT6",
        thread="https://github.com/AI-Hypercomputer/maxtext/pull/1777",
        mechanism="the pages of a batch are bounded by a division that rounds down",
        clause="ATOMIC",
        patches=(patch(plan.plan_pages, _pages_of_batch_by_floor),),
    ),
    Plant(
        id="PT7",
        thread="https://github.com/NVIDIA/TensorRT-LLM/pull/18259",
        mechanism="the rows of a batch are rotated against its lengths",
        clause="DET",
        patches=(patch(plan.batch_plan, _rows_rotated),),
    ),
    Plant(
        id="PT8",
        thread="https://github.com/vllm-project/vllm/pull/54296",
        mechanism="the flat table is indexed one entry short: the adjacent row",
        clause="DET",
        patches=(patch(plan.batch_plan, _flat_table_too_narrow),),
    ),
    Plant(
        id="PT9",
        thread="https://github.com/NVIDIA/TensorRT-LLM/issues/13320",
        mechanism="a row that has pages is not extended while its length grows",
        clause="CONS",
        patches=(patch(commit.commit_pages, _commit_first_row_only),),
    ),
    Plant(
        id="AK4",
        thread="https://github.com/sgl-project/sglang/pull/32477",
        mechanism="padding tokens write to the first cell instead of nowhere",
        clause="CONTENT",
        patches=(patch(paged.write, _write_padding_to_zero),),
    ),
    Plant(
        id="RS1",
        thread="https://github.com/llmmanorg/llmman/pull/118",
        mechanism="K and V are added to the old contents of the cell",
        clause="CONTENT",
        patches=(patch(paged.write, _write_by_adding),),
    ),
)
"""In the order of the report."""
