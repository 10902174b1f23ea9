"""Assertions while tracing: a wrong static fact inside the engine is found before compilation."""

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import pytest
from attrs import evolve, frozen
from engine_tools import GEOMETRY, KEPT, LIMITS, SETUPS
from jax import Array

from impl import arguments, plan
from impl.attention import reference, tpu
from impl.attention.interface import Pool
from impl.attention.tpu import fresh, writing
from impl.models.integer import IntegerModel
from impl.models.llama import Llama
from impl.models.protocol import BatchPlan
from impl.state import initial, pages, slots
from impl.state.packing import assert_same_shapes, pack, unpack
from impl.status import first_refusal, target
from impl.steps import decode, prefill, sequences
from impl.steps import writing as steps_writing
from spec.vocabulary import CleanupMode, Params, Reason, Request

WIDER = evolve(GEOMETRY, pages=GEOMETRY.pages + 1)
LLAMA = Llama(vocabulary=8, layers=1, embed=4, q_heads=2, kv_heads=1, head_dim=2, mlp=4)
YES = jnp.ones((), jnp.bool_)


def ints(*shape: int) -> Array:
    """An int32 array of zeros of this shape."""
    return jnp.zeros(shape, jnp.int32)


def floats(*shape: int) -> Array:
    """A float32 array of zeros of this shape."""
    return jnp.zeros(shape, jnp.float32)


def batch() -> plan.Batch:
    """A batch of the prefill width, with zeros as slots and positions."""
    width = LIMITS.prefill_tokens
    return plan.sort_batch(ints(width), ints(width), seqs=KEPT.batch_seqs)


def batch_plan(**changed: Array) -> BatchPlan:
    """A plan of 8 tokens of 4 sequences, with some arrays replaced."""
    return plan.batch_plan(initial(KEPT), batch(), YES, GEOMETRY)._replace(**changed)


def assign(length: int = GEOMETRY.max_len, requests: int = 1) -> object:
    """Assign a prompt of this padded length, with params of this many requests."""
    params = arguments.params(KEPT, [Params(max_new=1)] * requests, range(requests))
    params = jax.tree.map(jnp.asarray, params)
    slot = jnp.int32(0)
    return sequences.assign(KEPT, (), initial(KEPT), slot, slot, ints(length), slot, params)


def work(**changed: Array) -> object:
    """Trace a prefill, with some arrays replaced."""
    given = arguments.prefill_work(KEPT, [Request(id=1, prompt=(1,), params=Params(max_new=1))])
    given = jax.tree.map(jnp.asarray, given)._replace(**changed)
    return prefill.prefill(KEPT, (), initial(KEPT), given)


@frozen
class Wrong:
    """The exact model with one mistake for each flag. Satisfies `protocol.Model`."""

    vocabulary = IntegerModel().vocabulary
    row: bool = False
    pool: bool = False
    count: bool = False
    dtype: bool = False

    def weight_shapes(self) -> tuple[()]:
        """No weights."""
        return ()

    def empty_cache(self, geometry: Any) -> Any:
        """The cache of the exact model."""
        return IntegerModel().empty_cache(geometry)

    def decode(self, *given: Any, window: int | None) -> Any:
        """The exact model's rows and pools: with `row` one row fewer, with `pool` another dtype."""
        rows, cache = IntegerModel().decode(*given, window=window)
        pools = tuple(pool.astype(jnp.float32) for pool in cache) if self.pool else cache
        return rows[: len(rows) - self.row], pools

    def sample(self, *given: Any) -> Any:
        """The draws of the exact model: with `count` one fewer, with `dtype` another dtype."""
        tokens, logprobs = IntegerModel().sample(*given)
        kept = tokens[: len(tokens) - self.count]
        return kept.astype(jnp.uint32 if self.dtype else jnp.int32), logprobs


def forward(model: Wrong) -> object:
    """Trace a step of a model."""
    return steps_writing.forward(evolve(KEPT, model=model), (), initial(KEPT), batch(), YES)


def draw(model: Wrong) -> object:
    """Trace a draw of a model."""
    setup, draws = evolve(KEPT, model=model), jnp.ones((4,), jnp.bool_)
    rows = jnp.zeros((4,), jnp.uint32)
    return decode.take_samples(setup, (), initial(KEPT), ints(4), rows, draws, ok=YES)


def wide_stops() -> object:
    """Trace the match of stop sequences that are padded beyond the limit."""
    held = initial(KEPT).slots
    return decode.finish_reasons(KEPT, held._replace(stops=ints(4, 2, 4)), ints(2))


def attend(q_heads: int, kv_heads: int) -> object:
    """Trace reference attention without the check of its arguments."""
    options = reference._Options(
        pool=Pool(pages=1, page_size=1, kv_heads=kv_heads),
        scale=1.0,
        soft_cap=None,
        sliding_window=None,
        q_block=1,
        kv_block_pages=1,
        step_elements=0,
    )
    given = ints(1), ints(1, 1), ints(2), jnp.int32(1)
    stored = reference._Stored(floats(1, 1, 2 * kv_heads, 2), None)
    arrays = floats(1, q_heads, 2), stored, *given
    return reference._attend(*arrays, sinks=None, options=options)


def logits() -> object:
    """Trace a head for another vocabulary."""
    weights = LLAMA.init(jax.random.key(0))
    return LLAMA.logits(weights._replace(head=floats(4, 9)), floats(1, 4))


ONE: Final = tpu.shape_of(
    floats(1, 2, 128), floats(2, 16, 256), ints(1, 2), page_size=16, chip="v5e"
)


def operands(cells: Array) -> object:
    """Trace new cells as an operand of the kernel for one token."""
    return fresh.operand(ONE, cells, ints(1), ints(2), ints(1))


def stored(cells: Array) -> object:
    """Trace a write of new cells to a pool of float32."""
    pool, new = floats(2, 16, 256), fresh.Operand(cells, ints(1))
    return writing.write(ONE, pool, new, ints(1), after=pool, interpret=False)


def retyped() -> None:
    """Trace a step that returns counts as flags."""
    state = initial(KEPT)
    counts = state.pages.counts != 0
    assert_same_shapes(KEPT, state._replace(pages=state.pages._replace(counts=counts)))


COUNTS = initial(KEPT).pages.counts
HELD = initial(KEPT).slots.known
MISTAKES: dict[str, tuple[str, Callable[[], object]]] = {
    "pool of another geometry": (
        "a pool has the geometry's pages",
        lambda: pages.make(evolve(KEPT, geometry=WIDER), initial(KEPT).pages.cache),
    ),
    "more pages than there are": (
        "the pool has this many pages",
        lambda: pages.lowest_free(COUNTS, GEOMETRY.pages + 1),
    ),
    "no pages": ("the pool has this many pages", lambda: pages.lowest_free(COUNTS, 0)),
    "more slots than there are": (
        "the table has this many slots",
        lambda: slots.lowest_unused(initial(KEPT).slots, HELD, GEOMETRY.slots + 1),
    ),
    "packed with other fields": (
        "the packed state is of this setup",
        lambda: unpack(SETUPS[CleanupMode.END], pack(initial(KEPT))),
    ),
    "packed with other sizes": (
        "the packed state is of this setup",
        lambda: unpack(evolve(KEPT, limits=evolve(LIMITS, queue=6)), pack(initial(KEPT))),
    ),
    "a field of another dtype": ("a step keeps shapes and dtypes", retyped),
    "no guard": ("a status has at least one guard", first_refusal),
    "a guard that counts": (
        "SLOT_RANGE: a condition is a bool",
        lambda: first_refusal((jnp.int32(2), Reason.SLOT_RANGE, 0, 0)),
    ),
    "an unsigned index": (
        "an index has a signed dtype",
        lambda: target(True, jnp.zeros((1,), jnp.uint32), 3),  # noqa: FBT003
    ),
    "no sequences": ("no more sequences than", lambda: plan.sort_batch(ints(3), ints(3), seqs=0)),
    "more sequences than tokens": (
        "no more sequences than tokens",
        lambda: plan.sort_batch(ints(3), ints(3), seqs=4),
    ),
    "counts of another geometry": (
        "the counts are of this geometry",
        lambda: plan.plan_pages(initial(KEPT), batch(), WIDER),
    ),
    "rows of another geometry": (
        "the rows are of this geometry",
        lambda: plan.batch_plan(initial(KEPT), batch(), YES, evolve(GEOMETRY, pages_per_seq=5)),
    ),
    "a prompt that is not padded": ("a prompt is padded", lambda: assign(length=3)),
    "two requests for a slot": ("a slot is given one request", lambda: assign(requests=2)),
    "a row too few": ("a model gives a row for each token", lambda: forward(Wrong(row=True))),
    "another pool": ("a model keeps its pools", lambda: forward(Wrong(pool=True))),
    "a draw too few": ("a model draws once from each row", lambda: draw(Wrong(count=True))),
    "a draw that is no id": ("a model draws token ids", lambda: draw(Wrong(dtype=True))),
    "stops beyond the limit": ("stop sequences are padded to the limit", wide_stops),
    "prompts that are not padded": ("prompts are padded", lambda: work(tokens=ints(3))),
    "a prompt too few": ("a row for each prompt", lambda: work(lens=ints(2))),
    "a destination too few": (
        "a plan has a destination for each token",
        lambda: batch_plan(destinations=ints(7)).assert_fits(ints(8)),
    ),
    "a place too few": (
        "a plan has a place for each token",
        lambda: batch_plan(order=ints(7)).assert_fits(ints(8)),
    ),
    "a row of the table too few": (
        "a plan has a row for each sequence",
        lambda: batch_plan(page_indices=ints(3, 4)).assert_fits(ints(8)),
    ),
    "a length too few": (
        "a plan has a length for each sequence",
        lambda: batch_plan(kv_lens=ints(3)).assert_fits(ints(8)),
    ),
    "a bound too few": (
        "a plan has the bounds of each sequence",
        lambda: batch_plan(cu_q_lens=ints(4)).assert_fits(ints(8)),
    ),
    "a pool too few": (
        "there is a pool for each layer",
        lambda: IntegerModel().decode(
            (), initial(KEPT).pages.cache[:1], batch_plan(), ints(8), ints(8), window=None
        ),
    ),
    "logits of another vocabulary": ("the sampler draws from the vocabulary", logits),
    "no divisor": ("a divisor is positive", lambda: reference._div(ints(1), 0)),
    "a group that is not whole": (
        "a KV head serves a whole group",
        lambda: attend(q_heads=3, kv_heads=2),
    ),
    "a cell too few": (
        "there is a cell for each token",
        lambda: operands(floats(2, 2, 128)),
    ),
    "cells of another dtype": (
        "a copy keeps the dtype of the pool",
        lambda: stored(jnp.zeros((1, 2, 128), jnp.float16)),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_met_while_tracing(name: str) -> None:
    """A static fact that does not hold raises its assertion while tracing."""
    says, mistake = MISTAKES[name]

    with pytest.raises(AssertionError, match=says):
        jax.eval_shape(mistake)


@pytest.mark.parametrize(
    "right",
    [
        assign,
        work,
        lambda: forward(Wrong()),
        lambda: draw(Wrong()),
        lambda: batch_plan().assert_fits(ints(8)),
        lambda: attend(q_heads=4, kv_heads=2),
        lambda: operands(floats(1, 2, 128)),
        lambda: assert_same_shapes(KEPT, unpack(KEPT, pack(initial(KEPT)))),
    ],
)
def test_what_the_mistakes_are_made_of_is_right(right: Callable[[], object]) -> None:
    """Without a mistake no assertion is raised."""
    jax.eval_shape(right)
