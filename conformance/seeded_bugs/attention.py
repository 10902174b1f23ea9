"""Plants in the reference attention: its masks, and its division into blocks.

Rows AK, KG and SW, and the masks of RS4, of the catalogue of real bugs. The exact model has its own
attention, so fuzzing sees these only where it runs the engine's attention, one query at a time.
"""

from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec

import jax.numpy as jnp
from attrs import evolve
from jax import Array

from conformance.seeded_bugs import IDLE, KERNEL_ONLY, Plant, patch
from impl.attention.reference import (
    _absorb,
    _blank,
    _Blocks,
    _ids,
    _Options,
    _phase,
    _queries,
    _Reads,
    _Rows,
    _Running,
    _Stored,
    _Taken,
    _visible,
    ragged_paged_attention,
)

P = ParamSpec("P")

Absorb = Callable[[_Running, _Reads, Array, _Taken, _Options], _Running]
Phase = Callable[[Array, _Stored, _Rows, Array, _Options, Array | None], Array]
Visible = Callable[[Array, Array, int | None], Array]


def _blank_nothing(_right: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda cells, _used: cells


def _mask_keys_by_product(absorb: Absorb) -> Absorb:
    def wrong(
        running: _Running,
        reads: _Reads,
        queries: Array,
        taken: _Taken,
        options: _Options,
    ) -> _Running:
        after = absorb(running, reads, queries, taken, options)
        dead = jnp.where(reads.used[:, None, :, None], 0.0, taken.keys)
        return after._replace(total=after.total + jnp.sum(0.0 * dead))

    return wrong


def _lengths_by_dense_sum(
    attention: Callable[Concatenate[Array, Array, Array, P], Array],
) -> Callable[Concatenate[Array, Array, Array, P], Array]:
    def wrong(
        q: Array, kv_pages: Array, kv_lens: Array, /, *rest: P.args, **options: P.kwargs
    ) -> Array:
        filled = -kv_lens % kv_pages.shape[1]
        before = jnp.cumsum(filled) - filled
        return attention(q, kv_pages, jnp.maximum(kv_lens - before, 0), *rest, **options)

    return wrong


def _clamp_block_of_queries(
    queries: Callable[[Array, _Blocks], Array],
) -> Callable[[Array, _Blocks], Array]:
    def wrong(q: Array, blocks: _Blocks) -> Array:
        first, size = blocks.tokens[:, :1], blocks.tokens.shape[1]
        moved = jnp.minimum(first, q.shape[0] - size) - first
        return queries(q, blocks._replace(tokens=blocks.tokens + moved))

    return wrong


def _finite_lowest_score(
    absorb: Callable[Concatenate[_Running, P], _Running],
) -> Callable[Concatenate[_Running, P], _Running]:
    def wrong(running: _Running, /, *rest: P.args, **named: P.kwargs) -> _Running:
        raised = running._replace(largest=jnp.maximum(running.largest, -5e4))
        return absorb(raised, *rest, **named)

    return wrong


def _clip_positions(visible: Visible) -> Visible:
    return lambda positions, cells, window: visible(jnp.maximum(positions, 0), cells, window)


def _positions_from_zero(phase: Phase) -> Phase:
    def wrong(
        q: Array,
        stored: _Stored,
        rows: _Rows,
        out: Array,
        options: _Options,
        sinks: Array | None,
    ) -> Array:
        return phase(q, stored, rows._replace(kv_len=rows.q_len), out, options, sinks)

    return wrong


def _row_without_tail(
    ids: Callable[[Array, Array, Array], Array],
) -> Callable[[Array, Array, Array], Array]:
    def wrong(pages: Array, row: Array, entries: Array) -> Array:
        first, last = entries[:, :1], max(pages.shape[1] - entries.shape[1], 0)
        return ids(pages, row, entries + jnp.minimum(first, last) - first)

    return wrong


def _window_by_blocks_only(visible: Visible) -> Visible:
    return lambda positions, cells, _window: visible(positions, cells, None)


def _window_one_more(visible: Visible) -> Visible:
    return lambda positions, cells, window: visible(positions, cells, window and window + 1)


def _decode_without_window(phase: Phase) -> Phase:
    def wrong(
        q: Array,
        stored: _Stored,
        rows: _Rows,
        out: Array,
        options: _Options,
        sinks: Array | None,
    ) -> Array:
        single = rows.q_len == 1
        alone, others = (
            rows._replace(q_len=jnp.where(own, rows.q_len, 0)) for own in (single, ~single)
        )
        out = phase(q, stored, alone, out, evolve(options, sliding_window=None), sinks)
        return phase(q, stored, others, out, options, sinks)

    return wrong


PLANTS: Final = (
    Plant(
        id="AK1",
        thread="https://github.com/pytorch/xla/pull/9219",
        mechanism="V of dead cells is not blanked: 0 * NaN is NaN",
        clause="ATT",
        patches=(patch(_blank, _blank_nothing),),
        blind=IDLE,
    ),
    Plant(
        id="AK2",
        thread="https://github.com/sgl-project/sglang-jax/pull/1557",
        mechanism="mask ranges come from dense lengths, K lies aligned to pages",
        clause="ATT",
        patches=(patch(ragged_paged_attention, _lengths_by_dense_sum),),
        blind=IDLE,
    ),
    Plant(
        id="AK3",
        thread="https://github.com/marin-community/levanter/pull/1033",
        mechanism="a block of queries near the end is clamped, and its rows shift",
        clause="ATT",
        patches=(patch(_queries, _clamp_block_of_queries),),
        blind=KERNEL_ONLY,
    ),
    Plant(
        id="AK6",
        thread="https://github.com/flashinfer-ai/flashinfer/issues/4450",
        mechanism="a finite lowest score hides the scores that are lower",
        clause="ATT",
        patches=(patch(_absorb, _finite_lowest_score),),
        blind=KERNEL_ONLY,
    ),
    Plant(
        id="AK7",
        thread="https://github.com/pytorch/xla/pull/8356",
        mechanism="queries before the first cell read it instead of nothing",
        clause="ATT",
        patches=(patch(_visible, _clip_positions),),
        blind=KERNEL_ONLY,
    ),
    Plant(
        id="AK8",
        thread="https://github.com/jax-ml/jax/pull/24495",
        mechanism="queries are taken to be as many as the cells",
        clause="ATT",
        patches=(patch(_phase, _positions_from_zero),),
        blind=IDLE,
    ),
    Plant(
        id="KG1",
        thread="https://github.com/vllm-project/vllm/pull/14597",
        mechanism="the last block of pages is clamped into the row, which repeats pages",
        clause="ATT",
        patches=(patch(_ids, _row_without_tail),),
        blind=KERNEL_ONLY,
    ),
    Plant(
        id="RS4",
        thread="https://github.com/vllm-project/vllm/pull/35219",
        mechanism="K of dead cells is masked by a product with 0, and NaN survives",
        clause="ATT",
        patches=(patch(_absorb, _mask_keys_by_product),),
        blind=IDLE,
    ),
    Plant(
        id="SW4",
        thread="https://github.com/vllm-project/tpu-inference/pull/1185",
        mechanism="blocks outside the window are skipped, tokens are not masked",
        clause="ATT",
        patches=(patch(_visible, _window_by_blocks_only),),
        blind=IDLE,
    ),
    Plant(
        id="SW5",
        thread="https://github.com/sgl-project/sglang/pull/34273",
        mechanism="the window is one cell too wide",
        clause="ATT",
        patches=(patch(_visible, _window_one_more),),
        blind=IDLE,
    ),
    Plant(
        id="SW6",
        thread="https://github.com/EricLBuehler/mistral.rs/issues/2094",
        mechanism="a single query attends without the window",
        clause="ATT",
        patches=(patch(_phase, _decode_without_window),),
        blind=IDLE,
    ),
)
"""In the order of the report."""
