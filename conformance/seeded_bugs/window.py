"""Plants in the window: how far a release goes, what a query sees, and what is published behind it.

Rows SW and HG of the catalogue of real bugs. Two are twins, in the exact model, of plants in the
reference attention.
"""

from collections.abc import Callable
from typing import Final

import jax.numpy as jnp
from jax import Array

from conformance.seeded_bugs import Plant, patch
from conformance.seeded_bugs.states import with_slots
from impl.models.integer import _attend
from impl.models.protocol import BatchPlan
from impl.setup import Setup
from impl.state import State
from impl.steps.prefix import _before_hole
from impl.steps.window import first_visible
from spec.vocabulary import Geometry

NO_WINDOW: Final = frozenset({"replay"})
"""Methods that take no geometry with a window."""
APART: Final = NO_WINDOW | {"refine"}
"""Those that take none with an index too."""

Attend = Callable[[Array, BatchPlan, Array, Array, int | None], Array]
BeforeHole = Callable[[Geometry, State, Array, Array], Array]
FirstVisible = Callable[[Setup, State, Array], Array]


def _behind_drafts(first_visible: FirstVisible) -> FirstVisible:
    def wrong(setup: Setup, state: State, slot: Array) -> Array:
        optimistic = with_slots(state, committed=state.slots.allocated)
        return first_visible(setup, optimistic, slot)

    return wrong


def _window_by_pages_only(attend: Attend) -> Attend:
    def wrong(
        pool: Array, plan: BatchPlan, seqs: Array, positions: Array, window: int | None
    ) -> Array:
        if window is None:
            return attend(pool, plan, seqs, positions, window)
        size = pool.shape[1]
        first = jnp.maximum(positions - window + 1, 0) // size * size
        skipped = attend(pool, plan, seqs, jnp.maximum(first - 1, 0), None)
        whole = attend(pool, plan, seqs, positions, None)
        return whole - jnp.where(first > 0, skipped, jnp.uint32(0))

    return wrong


def _window_one_more(attend: Attend) -> Attend:
    def wrong(
        pool: Array, plan: BatchPlan, seqs: Array, positions: Array, window: int | None
    ) -> Array:
        return attend(pool, plan, seqs, positions, window and window + 1)

    return wrong


def _publish_the_hole(_right: BeforeHole) -> BeforeHole:
    return lambda _geometry, _state, _slot, count: count


PLANTS: Final = (
    Plant(
        id="SW1",
        thread="https://github.com/vllm-project/vllm/pull/47728",
        mechanism="a release goes up to the window behind the drafts that may yet be rejected",
        clause="WIN",
        first_sight="missed",
        patches=(patch(first_visible, _behind_drafts),),
        blind=NO_WINDOW,
    ),
    Plant(
        id="SW4b",
        thread="https://github.com/vllm-project/tpu-inference/pull/1185",
        mechanism="whole pages outside the window are skipped, cells of a part of one are not",
        clause="CONTENT",
        first_sight="caught",
        patches=(patch(_attend, _window_by_pages_only),),
        blind=NO_WINDOW,
    ),
    Plant(
        id="SW5b",
        thread="https://github.com/sgl-project/sglang/pull/34273",
        mechanism="the window of the exact model is one cell too wide",
        clause="CONTENT",
        first_sight="caught",
        patches=(patch(_attend, _window_one_more),),
        blind=NO_WINDOW,
    ),
    Plant(
        id="HG8",
        thread="https://github.com/sgl-project/sglang/pull/31486",
        mechanism="a publication enters what lies behind a released page as if it were known",
        clause="PC",
        first_sight="caught",
        patches=(patch(_before_hole, _publish_the_hole),),
        blind=APART,
    ),
)
