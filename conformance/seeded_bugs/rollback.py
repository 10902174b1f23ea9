"""Plants in rollback: pages and lengths that a rejected draft leaves behind.

Rows RB of the catalogue of real bugs.
"""

from collections.abc import Callable
from typing import Final

import jax.numpy as jnp
from jax import Array

from conformance.seeded_bugs import Plant, patch
from conformance.seeded_bugs.states import with_slots
from impl import commit
from impl.state import Pages, State, pages
from spec.vocabulary import Geometry

Cut = Callable[[Pages, Array, Array, Geometry], Pages]
Truncate = Callable[[State, Array, Array, Geometry], State]


def _cut_strands_first(cut: Cut) -> Cut:
    def wrong(held: Pages, slot: Array, kept: Array, geometry: Geometry) -> Pages:
        right = cut(held, slot, kept, geometry)
        return right._replace(counts=cut(held, slot, kept + 1, geometry).counts)

    return wrong


def _cut_keeps_row(cut: Cut) -> Cut:
    def wrong(held: Pages, slot: Array, kept: Array, geometry: Geometry) -> Pages:
        return cut(held, slot, kept, geometry)._replace(rows=held.rows)

    return wrong


def _written_stays(truncate: Truncate) -> Truncate:
    def wrong(state: State, slot: Array, length: Array, geometry: Geometry) -> State:
        after = truncate(state, slot, length, geometry)
        return with_slots(after, written=jnp.asarray(state.slots.written))

    return wrong


PLANTS: Final = (
    Plant(
        id="RB1",
        thread="https://github.com/sgl-project/sglang/pull/31616",
        mechanism="a rejection inside a page strands the first page behind it",
        clause="CONS",
        patches=(patch(pages.cut, _cut_strands_first),),
    ),
    Plant(
        id="RB2",
        thread="https://github.com/NVIDIA/TensorRT-LLM/issues/16448",
        mechanism="a rewind frees the tail pages and leaves them in the row",
        clause="UAF",
        patches=(patch(pages.cut, _cut_keeps_row),),
    ),
    Plant(
        id="RB3b",
        thread="https://github.com/vllm-project/vllm/pull/55055",
        mechanism="K and V of rejected drafts stay reachable: the written length is not cut",
        clause="LEN",
        patches=(patch(commit.cut_cells, _written_stays),),
    ),
)
