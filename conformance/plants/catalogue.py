"""The catalogue: each entry is the smallest change of our engine that brings a real bug back.

The threads are those of `research/bugs.md`; the mechanisms are planted again, no code is taken.
"""

from typing import Any, Final

import jax.numpy as jnp
from jax import lax

import impl.engine
import impl.host
import impl.round
from conformance.plants import Plant
from spec.vocabulary import INVALID, Reason


def _fork_without_counting(fork: Any) -> Any:
    def wrong(state: Any, parents: Any, children: Any, choices: Any, fresh: Any, setup: Any) -> Any:
        after = fork(state, parents, children, choices, fresh, setup)
        taken = jnp.where(children < setup.geometry.slots, fresh, setup.geometry.pages)
        return after._replace(counts=state.counts.at[taken].add(1, mode="drop"))

    return wrong


def _fork_sharing_partial(fork: Any) -> Any:
    def wrong(state: Any, parents: Any, children: Any, choices: Any, fresh: Any, setup: Any) -> Any:
        pages = setup.geometry.pages
        none = jnp.full_like(fresh, pages)
        after = fork(state, parents, children, choices, none, setup)
        entry = state.written[parents] // setup.geometry.page_size
        page = state.rows.at[parents, entry].get(mode="fill", fill_value=INVALID)
        held = jnp.where((fresh < pages) & (children < setup.geometry.slots), page, INVALID)
        rows = after.rows.at[children, entry].set(page, mode="drop")
        return after._replace(rows=rows, counts=after.counts.at[held].add(1, mode="drop"))

    return wrong


def _fork_with_known_of_parent(fork: Any) -> Any:
    def wrong(state: Any, parents: Any, children: Any, choices: Any, fresh: Any, setup: Any) -> Any:
        after = fork(state, parents, children, choices, fresh, setup)
        known = jnp.minimum(state.known[parents] + 1, setup.geometry.max_len)
        return after._replace(known=after.known.at[children].set(known, mode="drop"))

    return wrong


def _copy_nothing(_copy_page: Any) -> Any:
    return lambda kv_pages, _source, _destination: kv_pages


def _copy_keys_only(copy_page: Any) -> Any:
    def wrong(kv_pages: Any, source: Any, destination: Any) -> Any:
        copied = copy_page(kv_pages, source, destination)
        return copied.at[:, :, 1::2].set(kv_pages[:, :, 1::2])

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


def _release_twice(release: Any) -> Any:
    def wrong(state: Any, slots: Any, geometry: Any) -> Any:
        after = release(state, slots, geometry)
        lost = state.counts - after.counts
        return after._replace(counts=jnp.maximum(after.counts - lost, 0))

    return wrong


def _release_written_only(release: Any) -> Any:
    def wrong(state: Any, slots: Any, geometry: Any) -> Any:
        covered = -(-state.written // geometry.page_size)
        entry = jnp.arange(geometry.pages_per_seq)
        rows = jnp.where(entry < covered[:, None], state.rows, INVALID)
        return release(state._replace(rows=rows), slots, geometry)

    return wrong


def _release_keeping_row(release: Any) -> Any:
    def wrong(state: Any, slots: Any, geometry: Any) -> Any:
        return release(state, slots, geometry)._replace(rows=state.rows)

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


def _purge_nothing(_purge: Any) -> Any:
    return lambda state, _slots: state


def _pop_one_more(pop: Any) -> Any:
    return lambda state, count: pop(state, jnp.where(count > 0, count + 1, count))


def _commit_counts_anyway(commit: Any) -> Any:
    def wrong(state: Any, batch: Any, grant: Any, ok: Any, geometry: Any) -> Any:
        after = commit(state, batch, grant, ok, geometry)
        raised = commit(state, batch, grant, jnp.ones((), bool), geometry).counts
        return after._replace(counts=raised)

    return wrong


def _no_length_guard(_guard: Any) -> Any:
    return lambda _batch, _geometry: (False, Reason.TOO_LONG, 0, 0)


def _rows_by_batch_index(batch_plan: Any) -> Any:
    def wrong(state: Any, batch: Any, ok: Any, geometry: Any) -> Any:
        plan = batch_plan(state, batch, ok, geometry)
        return plan._replace(page_indices=state.rows[: plan.page_indices.shape[0]])

    return wrong


def _limit_off_by_one(reasons: Any) -> Any:
    def wrong(setup: Any, state: Any, slots: Any) -> Any:
        return reasons(setup, state._replace(max_new=state.max_new + 1), slots)

    return wrong


def _stop_into_prompt(reasons: Any) -> Any:
    def wrong(setup: Any, state: Any, slots: Any) -> Any:
        right = reasons(setup, state, slots)
        shifted = state._replace(
            prompt_lens=jnp.zeros_like(state.prompt_lens),
            max_new=jnp.full_like(state.max_new, INVALID),
        )
        return jnp.where(right == 0, reasons(setup, shifted, slots), right)

    return wrong


def _one_key_for_all_choices(draw_of: Any) -> Any:
    return lambda seeds, choices, positions, temperatures: draw_of(
        seeds, choices * 0, positions, temperatures
    )


def _outputs_dropped(keep: Any) -> Any:
    def wrong(setup: Any, state: Any, slots: Any, reasons: Any) -> Any:
        stopped = jnp.where(reasons == 2, 0, reasons)
        return keep(setup, state, slots, stopped)

    return wrong


def _admit_without_reserving(room_refusals: Any) -> Any:
    def wrong(state: Any, requests: Any, setup: Any, stats: Any) -> Any:
        nobody = impl.host.HostState(waiting=state.waiting)
        for refusal in room_refusals(nobody, requests, setup, stats):
            if refusal.reason is not Reason.OUT_OF_PAGES:
                yield refusal

    return wrong


def _wait_out_of_turn(admissible: Any) -> Any:
    def wrong(state: Any, setup: Any, stats: Any) -> Any:
        shortest = sorted(state.waiting, key=lambda request: len(request.prompt))
        return admissible(impl.host.HostState(tuple(shortest), state.admitted), setup, stats)

    return wrong


def _loop_for_ever(loop: Any) -> Any:
    def wrong(setup: Any, weights: Any, state: Any) -> Any:
        def goes_on(carry: Any) -> Any:
            return carry[1] < setup.limits.rounds

        def body(carry: Any) -> Any:
            after, status = impl.round.decode_round(setup, weights, carry[0])
            return after, carry[1] + (status[0] == 0)

        return loop(setup, weights, lax.while_loop(goes_on, body, (state, jnp.int32(0)))[0])

    return wrong


_PLANTS = (
    Plant(
        id="RC2",
        thread="https://github.com/apache/tvm/pull/16666",
        mechanism="a clone does not raise the counts of the pages it shares",
        clause="RC",
        patches=(("impl.sequences", "fork", _fork_without_counting),),
    ),
    Plant(
        id="RC1",
        thread="https://github.com/vllm-project/vllm/issues/42571",
        mechanism="a release lowers counts twice, and a clamp at zero hides it",
        clause="UAF",
        patches=(("impl.sequences", "release", _release_twice),),
    ),
    Plant(
        id="AL3",
        thread="https://github.com/vllm-project/vllm/pull/11565",
        mechanism="counts are raised before the capacity check, and stay raised when it fails",
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
        id="PT1",
        thread="https://github.com/tenstorrent/vllm-tt-plugin/pull/103",
        mechanism="a freed slot keeps its row, and the next tenant inherits the tail",
        clause="ROW",
        patches=(("impl.sequences", "release", _release_keeping_row),),
    ),
    Plant(
        id="PT2",
        thread="https://github.com/gittensor-ai-lab/sparkinfer/issues/289",
        mechanism="row i of a batch is taken to be slot i",
        clause="DET",
        patches=(("impl.plan", "batch_plan", _rows_by_batch_index),),
    ),
    Plant(
        id="CW1",
        thread="https://github.com/marin-community/levanter/pull/1268",
        mechanism="a clone takes over a length that has already been advanced",
        clause="ALONE",
        patches=(("impl.sequences", "fork", _fork_with_known_of_parent),),
    ),
    Plant(
        id="CW3",
        thread="https://github.com/NVIDIA/TensorRT-LLM/pull/4943",
        mechanism="only K of a partial page is copied",
        clause="CONTENT",
        patches=(("impl.cache.paged", "copy_page", _copy_keys_only),),
    ),
    Plant(
        id="CW4",
        thread="https://github.com/NVIDIA/TensorRT-LLM/pull/12306",
        mechanism="a partial last page is shared instead of copied",
        clause="SHARE",
        patches=(("impl.sequences", "fork", _fork_sharing_partial),),
    ),
    Plant(
        id="CW5",
        thread="https://github.com/sgl-project/sglang/pull/7725",
        mechanism="a clone gets a fresh last page and nothing is copied into it",
        clause="CONTENT",
        patches=(("impl.cache.paged", "copy_page", _copy_nothing),),
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
    Plant(
        id="RS2",
        thread="https://github.com/abetlen/llama-cpp-python/pull/2180",
        mechanism="a logical reset forgets the table and keeps the queue",
        clause="Q",
        patches=(("impl.entries", "reset_logical", _keep_queue_on_reset),),
    ),
    Plant(
        id="RS5",
        thread="https://github.com/marin-community/levanter/pull/1277",
        mechanism="a reset leaves the counts as they were",
        clause="CONS",
        patches=(("impl.entries", "reset_logical", _keep_counts_on_reset),),
    ),
    Plant(
        id="CL1",
        thread="https://github.com/sgl-project/sglang-jax/issues/1147",
        mechanism="a release covers the written pages and not all that were allocated",
        clause="CONS",
        patches=(("impl.sequences", "release", _release_written_only),),
    ),
    Plant(
        id="CL4",
        thread="https://github.com/vllm-project/tpu-inference/pull/3449",
        mechanism="a freed sequence's queued tokens are not purged",
        clause="Q",
        patches=(("impl.queue", "purge", _purge_nothing),),
    ),
    Plant(
        id="QU1",
        thread="https://github.com/marin-community/levanter/pull/1169",
        mechanism="packing drops one queued token more than it takes",
        clause="Q",
        patches=(("impl.queue", "pop", _pop_one_more),),
    ),
    Plant(
        id="FI1",
        thread="https://github.com/marin-community/levanter/pull/1268",
        mechanism="a sequence generates one token more than its limit",
        clause="OUT",
        patches=(("impl.decode", "finish_reasons", _limit_off_by_one),),
    ),
    Plant(
        id="FI2",
        thread="https://github.com/marin-community/levanter/issues/1178",
        mechanism="a stop sequence is matched against the prompt too",
        clause="OUT",
        patches=(("impl.decode", "finish_reasons", _stop_into_prompt),),
    ),
    Plant(
        id="OU1",
        thread="https://github.com/vllm-project/tpu-inference/pull/3449",
        mechanism="the output of a stopped sequence is lost in the cleanup",
        clause="OUT",
        patches=(("impl.decode", "keep_outputs", _outputs_dropped),),
    ),
    Plant(
        id="SA1",
        thread="https://github.com/marin-community/levanter/pull/1268",
        mechanism="all choices of a request draw with the key of the first",
        clause="ALONE",
        patches=(("impl.models.integer", "draw_of", _one_key_for_all_choices),),
    ),
    Plant(
        id="QS4",
        thread="https://github.com/vllm-project/vllm/pull/47272",
        mechanism="admission does not reserve what an admitted request may still need",
        clause="ATOMIC",
        patches=(("impl.host", "room_refusals", _admit_without_reserving),),
    ),
    Plant(
        id="QS1",
        thread="https://github.com/marin-community/levanter/issues/1178",
        mechanism="the generation loop counts rounds that produced something, and never ends",
        clause="PROG",
        patches=(("impl.round", "loop", _loop_for_ever),),
    ),
    Plant(
        id="AD1",
        thread="https://github.com/marin-community/levanter/issues/1178",
        mechanism="the shortest waiting prompt is admitted first",
        clause="ALONE",
        patches=(("impl.host", "admissible", _wait_out_of_turn),),
    ),
)

PLANTS: Final = {plant.id: plant for plant in _PLANTS}
"""Every plant by its id."""
