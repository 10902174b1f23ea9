"""The inputs of the kernel, and the buffers through which it copies."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from impl.attention.tpu.shape import LANES, Shape


class Inputs(NamedTuple):
    """kv_lens, cu_q_lens, num_seqs in scalar memory; ids, queries, pool in main memory.

    fresh: in main memory too, if K and V of the queries' own tokens are operands; see `fresh`.
    sinks f32[q_heads, 128], all lanes the same: in vector memory, if there are any.
    scales f32[N, 2, 128], of K and V for each 128 rows: in main memory, if there are any.
    """

    kv_lens: Any
    cu_q_lens: Any
    num_seqs: Any
    ids: Any
    queries: Any
    pool: Any
    fresh: Any = None
    sinks: Any = None
    scales: Any = None


class Buffers(NamedTuple):
    """Double buffers: ids in scalar memory; pages, queries and results in vector memory.

    scales: of the rows of pages, None if there are none; as their semaphores then are.

    pages has an axis of tiles, so that the compiler lays it out as main memory is, whose tiles may
    have fewer rows than those that it takes otherwise: a copy then changes no order. results: of
    blocks of a prefill; answers: of decoding. stored, answered: how many rows of each are being
    copied out. The others are semaphores.
    """

    ids: Any
    pages: Any
    scales: Any
    queries: Any
    results: Any
    answers: Any
    stored: Any
    answered: Any
    ids_here: Any
    pages_here: Any
    scales_here: Any
    queries_here: Any
    results_gone: Any
    answers_gone: Any


def given(shape: Shape) -> list[Any]:
    """The shapes of inputs in vector memory."""
    return [pltpu.VMEM((shape.q_heads, LANES), jnp.float32)] * shape.sinks


def sized(shape: Shape) -> Buffers:
    """The shapes of the buffers."""
    block = (2, shape.blocks.q_rows, shape.q_heads, shape.width)
    semaphores = pltpu.SemaphoreType.DMA((2,))
    return Buffers(
        ids=pltpu.SMEM((2 * shape.id_rows, 1, LANES), jnp.int32),
        pages=pltpu.VMEM(
            (2 * shape.fetch_cells * shape.rows // shape.tile, shape.tile, shape.lanes),
            shape.kv_dtype,
        ),
        scales=pltpu.VMEM((2 * shape.fetch_cells * shape.rows // LANES, 2, LANES), jnp.float32)
        if shape.scales
        else None,
        queries=pltpu.VMEM(block, shape.q_dtype),
        results=pltpu.VMEM(block, shape.q_dtype),
        answers=pltpu.VMEM((2, 1, shape.q_heads, shape.width), shape.q_dtype),
        stored=pltpu.SMEM((2,), jnp.int32),
        answered=pltpu.SMEM((2,), jnp.int32),
        ids_here=semaphores,
        pages_here=semaphores,
        scales_here=semaphores if shape.scales else None,
        queries_here=semaphores,
        results_gone=semaphores,
        answers_gone=semaphores,
    )
