"""The candidates: our reference attention, its peers, and a plain scan of the same bytes.

Each candidate is made for one case and gives a call without arguments. An unavailable one raises
`Missing` with the reason.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from conformance.benchmarks.peers import levanter
from conformance.benchmarks.peers.cases import Arrays, Case
from conformance.benchmarks.peers.levanter import Missing
from impl.attention.reference import ragged_paged_attention

Call = Callable[[], Array]
OURS: Final = "ours"
SCAN: Final = "plain scan"
OLD_BLOCKS: Final = "Levanter, 1 query and 2 pages"
NEW_BLOCKS: Final = "Levanter, 16 queries and 16 pages"


def _bound(run: Callable[..., Array], arrays: Arrays) -> Call:
    return lambda: run(*arrays)


def ours(case: Case) -> Call:
    """The reference attention with its default blocks, compiled as a whole like its peers."""
    return _bound(jax.jit(partial(ragged_paged_attention, scale=case.scale)), case.arrays)


def dense(case: Case) -> Call:
    """`jax.nn.dot_product_attention` over gathered pages; decode needs no mask."""
    count, cells, queries = case.size.sequences, case.size.cells, case.queries

    def attend(q: Array, kv_pages: Array, *rest: Array) -> Array:
        gathered = kv_pages[rest[1]].reshape(count, cells, *kv_pages.shape[2:])
        apart = q.reshape(count, queries, *q.shape[1:])
        seen = jnp.arange(cells) <= jnp.arange(cells - queries, cells)[:, None]
        out = jax.nn.dot_product_attention(
            apart,
            gathered[:, :, 0::2],
            gathered[:, :, 1::2],
            scale=case.scale,
            mask=None if queries == 1 else seen[None, None],
        )
        return out.reshape(q.shape)

    return _bound(jax.jit(attend), case.arrays)


def jax_reference(case: Case) -> Call:
    """`ref_ragged_paged_attention` of jax, compiled with the lengths as constants."""
    try:
        module = importlib.import_module("jax.experimental.pallas.ops.tpu.ragged_paged_attention")
        reference = module.ref_ragged_paged_attention
    except (ImportError, AttributeError) as problem:
        raise Missing(f"this jax has none: {problem}") from problem
    lengths = tuple(np.asarray(part) for part in case.arrays[2:])

    def attend(q: Array, kv_pages: Array) -> Any:
        return reference(q, kv_pages, *lengths, sm_scale=case.scale)

    run = jax.jit(attend)
    return lambda: run(*case.arrays[:2])


def levanter_blocks(case: Case, *, queries: int, pages: int) -> Call:
    """The reference of Levanter with these block sizes."""
    return _bound(levanter.attention(case.scale, queries=queries, pages=pages), case.arrays)


def plain_scan(case: Case) -> Call:
    """The sum of all K and V: the cost of reading the bytes."""
    run = jax.jit(lambda pool: pool.sum(dtype=jnp.float32))
    return lambda: run(case.arrays.kv_pages)


CANDIDATES: Final[dict[str, Callable[[Case], Call]]] = {
    OURS: ours,
    "jax.nn.dot_product_attention": dense,
    "jax ref_ragged_paged_attention": jax_reference,
    OLD_BLOCKS: partial(levanter_blocks, queries=1, pages=2),
    NEW_BLOCKS: partial(levanter_blocks, queries=16, pages=16),
    SCAN: plain_scan,
}
"""All candidates, in the order of the table."""
