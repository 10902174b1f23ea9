"""Llama through pages and cache, beside the same weights on the whole prefix."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve
from numpy.typing import NDArray

from impl.cache import rows
from impl.models.llama import Llama, LlamaWeights
from impl.models.protocol import BatchPlan, Cache, Model
from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.geometry import INVALID, Geometry

GEOMETRY = Geometry(pages=13, page_size=4, slots=3, pages_per_seq=4)
WIDTH, LONGEST, VOCABULARY = 9, 16, 37
LLAMA = Llama(
    vocabulary=VOCABULARY,
    layers=2,
    embed=16,
    q_heads=4,
    kv_heads=2,
    head_dim=8,
    mlp=24,
    attention="reference",
    q_block=4,
    kv_block_pages=2,
)
ROWS = {0: [7, 2, 11, 0], 1: [3, 9, 4, 12], 2: [1, 10, 6, 5]}
"""The pages of each slot."""
Work = dict[int, list[int]]
"""For each slot, the positions that it adds in one batch."""

# Paged and dense differ only in the order of float32 sums: in two layers, some hundred roundings of
# 6e-8 affect a logit of size 1 to 4. One wrong cell changes logits a thousand times more.
TOLERANCE = 5e-6


@pytest.fixture(scope="module")
def weights() -> LlamaWeights:
    """Random weights, the same for every test."""
    drawn: LlamaWeights = jax.jit(LLAMA.init)(jax.random.key(1))
    return drawn


dense_logits = jax.jit(Llama.dense_logits, static_argnums=0)


@partial(jax.jit, static_argnames=("llama", "window"))
def run(
    llama: Llama,
    params: LlamaWeights,
    cache: Cache,
    plan: BatchPlan,
    tokens: jax.Array,
    positions: jax.Array,
    window: int | None = None,
) -> tuple[jax.Array, Cache]:
    """The logits of every row in plan order, and the cache, after one batch."""
    rows, cache = llama.decode(params, cache, plan, tokens, positions, window=window)
    return llama.logits(params, rows), cache


def poisoned(llama: Llama = LLAMA) -> Cache:
    """A cache that holds NaN everywhere."""
    return tuple(jnp.full_like(pool, jnp.nan) for pool in llama.empty_cache(GEOMETRY))


def plan_of(work: Work) -> tuple[BatchPlan, NDArray[np.int32]]:
    """The plan of a batch in plan order, padded to WIDTH, and the positions."""
    cells = [(slot, p) for slot in sorted(work) for p in work[slot]]
    size, count = GEOMETRY.page_size, len(work)
    positions = np.full(WIDTH, INVALID, np.int32)
    positions[: len(cells)] = [p for _, p in cells]
    destinations = np.full(WIDTH, INVALID, np.int32)
    destinations[: len(cells)] = [ROWS[s][p // size] * size + p % size for s, p in cells]
    slots, lengths = np.full((2, GEOMETRY.slots), INVALID, np.int32)
    table = np.full((GEOMETRY.slots, GEOMETRY.pages_per_seq), INVALID, np.int32)
    bounds = np.full(GEOMETRY.slots + 1, len(cells), np.int32)
    for index, slot in enumerate(sorted(work)):
        slots[index], lengths[index] = slot, work[slot][-1] + 1
        used = GEOMETRY.pages_for(int(lengths[index]))
        table[index, :used] = ROWS[slot][:used]
        bounds[index] = sum(s < slot for s, _ in cells)
    order = np.arange(WIDTH, dtype=np.int32)
    arrays = (slots, table, lengths, bounds, np.int32(count), order, destinations)
    return BatchPlan(*map(jnp.asarray, arrays)), positions


def batch_tokens(work: Work, texts: NDArray[np.int32]) -> NDArray[np.int32]:
    """The batch's tokens in plan order; padding has an id outside of every vocabulary."""
    known = [texts[slot, p] for slot in sorted(work) for p in work[slot]]
    return np.asarray(known + [INVALID] * (WIDTH - len(known)), np.int32)


SCHEDULES: dict[str, list[Work]] = {
    "token by token": [{0: [p]} for p in range(LONGEST)],
    "three slots in step": [{0: [p], 1: [p], 2: [p]} for p in range(LONGEST)],
    "prefill, then decode, one slot later": [
        {0: [0, 1, 2, 3, 4], 2: [0, 1, 2]},
        {0: [5], 1: list(range(7)), 2: [3]},
        *({0: [6 + n], 1: [7 + n], 2: [4 + n]} for n in range(9)),
    ],
    "prefill in chunks that cut pages": [
        {1: [0, 1, 2], 2: [0]},
        {1: [3, 4, 5, 6, 7, 8, 9, 10]},
        {1: [11, 12, 13, 14, 15], 2: [1, 2, 3, 4]},
    ],
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_paged_decoding_is_the_dense_model(name: str, weights: LlamaWeights) -> None:
    """For every cut of a text into batches, the logits of a row are those of its whole prefix."""
    texts = np.random.default_rng(3).integers(0, VOCABULARY, (3, LONGEST)).astype(np.int32)
    dense = [np.asarray(dense_logits(LLAMA, weights, jnp.asarray(text))) for text in texts]
    cache, worst = poisoned(), 0.0
    for work in SCHEDULES[name]:
        plan, positions = plan_of(work)
        logits, cache = run(LLAMA, weights, cache, plan, batch_tokens(work, texts), positions)
        expected = np.stack([dense[slot][p] for slot in sorted(work) for p in work[slot]])
        error = np.abs(expected - np.asarray(logits)[: len(expected)]).max()
        assert np.isfinite(error)
        worst = max(worst, float(error))

    assert worst < TOLERANCE


def test_with_a_window_released_pages_are_not_read(weights: LlamaWeights) -> None:
    """The logits are those of the dense model with that window, when pages behind it are gone."""
    window, size = 6, GEOMETRY.page_size
    text = np.random.default_rng(8).integers(0, VOCABULARY, (1, LONGEST)).astype(np.int32)
    dense = np.asarray(LLAMA.dense_logits(weights, jnp.asarray(text[0]), window))
    whole = np.asarray(dense_logits(LLAMA, weights, jnp.asarray(text[0])))
    cache, worst, works = poisoned(), 0.0, ([*range(WIDTH)], *([p] for p in range(WIDTH, LONGEST)))
    for number, work in enumerate(works):
        plan, positions = plan_of({0: work})
        gone = max(0, work[0] - window + 1) // size
        table = plan.page_indices.at[0, :gone].set(INVALID)
        plan = plan._replace(page_indices=table)
        cache = tuple(pool.at[np.array(ROWS[0][:gone], int)].set(jnp.nan) for pool in cache)
        tokens = batch_tokens({0: work}, text)
        logits, cache = run(LLAMA, weights, cache, plan, tokens, positions, window)
        error = np.abs(dense[work] - np.asarray(logits)[: len(work)]).max()
        assert np.isfinite(error)
        assert number == 0 or gone > 0
        worst = max(worst, float(error))

    assert worst < TOLERANCE
    assert np.abs(whole - dense)[window:].max() > 1000 * TOLERANCE


def test_one_wrong_page_is_far_outside_the_tolerance(weights: LlamaWeights) -> None:
    """If a step reads one wrong page of finite values, its logits are far outside the tolerance."""
    texts = np.random.default_rng(5).integers(0, VOCABULARY, (3, LONGEST)).astype(np.int32)
    dense = np.asarray(dense_logits(LLAMA, weights, jnp.asarray(texts[0])))
    cache = poisoned()
    for work in ({0: list(range(7))}, {1: list(range(7))}):
        plan, positions = plan_of(work)
        _, cache = run(LLAMA, weights, cache, plan, batch_tokens(work, texts), positions)
    plan, positions = plan_of({0: [7]})
    wrong = plan._replace(page_indices=plan.page_indices.at[0, 0].set(ROWS[1][0]))

    logits, _ = run(LLAMA, weights, cache, wrong, batch_tokens({0: [7]}, texts), positions)

    assert np.abs(dense[7] - np.asarray(logits)[0]).max() > 1000 * TOLERANCE


def test_greedy_decoding_is_naive_decoding(weights: LlamaWeights) -> None:
    """The loop over the cache draws the same tokens as recomputation of the prefix."""
    prompt, steps = [5, 30, 2], 10
    text = np.zeros((1, LONGEST), np.int32)
    text[0, : len(prompt)] = prompt
    naive, cache, paged = text[0].copy(), poisoned(), text.copy()
    work: Work = {0: list(range(len(prompt)))}
    for position in range(len(prompt), len(prompt) + steps):
        # Causal: later tokens cannot change a row, so the padded text has one shape.
        naive[position] = dense_logits(LLAMA, weights, jnp.asarray(naive))[position - 1].argmax()
        plan, positions = plan_of(work)
        logits, cache = run(LLAMA, weights, cache, plan, batch_tokens(work, paged), positions)
        paged[0, position] = logits[len(work[0]) - 1].argmax()
        work = {0: [position]}

    assert len(set(naive.tolist())) > 3
    np.testing.assert_array_equal(naive, paged[0])


def test_a_refused_plan_moves_nothing(weights: LlamaWeights) -> None:
    """With every destination out of range the cache is the same, bit for bit."""
    plan, positions = plan_of({0: [0, 1], 2: [0]})
    refused = plan._replace(destinations=jnp.full(WIDTH, INVALID, jnp.int32))
    rng = np.random.default_rng(6)
    cache = tuple(jnp.asarray(rng.normal(size=pool.shape), pool.dtype) for pool in poisoned())

    _, after = run(LLAMA, weights, cache, refused, np.zeros(WIDTH, np.int32), positions)

    for old, new in zip(cache, after, strict=True):
        np.testing.assert_array_equal(np.asarray(old), np.asarray(new))


def test_a_batch_writes_its_own_cells_in_every_layer(weights: LlamaWeights) -> None:
    """Exactly the cells of the batch's positions stop being NaN, in each layer."""
    work: Work = {0: [0, 1, 2, 3, 4], 1: [0]}
    plan, positions = plan_of(work)
    cells = [ROWS[0][0] * 4, *range(ROWS[0][0] * 4 + 1, ROWS[0][0] * 4 + 4), ROWS[0][1] * 4]

    _, cache = run(LLAMA, weights, poisoned(), plan, np.ones(WIDTH, np.int32), positions)

    assert len(cache) == LLAMA.layers
    for pool in cache:
        flat = np.isfinite(np.asarray(pool)).reshape(GEOMETRY.pages * 4, -1)
        assert sorted([*cells, ROWS[1][0] * 4]) == np.flatnonzero(flat.all(axis=1)).tolist()
        assert (flat.any(axis=1) == flat.all(axis=1)).all()


def test_bfloat16_stays_near_the_dense_model() -> None:
    """In bfloat16 the logits are within a few units of 2 ** -8 of the dense model's."""
    llama = evolve(LLAMA, dtype="bfloat16", layers=1)
    weights = jax.jit(llama.init)(jax.random.key(1))
    text = np.random.default_rng(4).integers(0, VOCABULARY, (1, LONGEST)).astype(np.int32)
    work: Work = {0: list(range(WIDTH))}
    plan, positions = plan_of(work)

    logits, cache = run(llama, weights, poisoned(llama), plan, batch_tokens(work, text), positions)

    dense = np.asarray(dense_logits(llama, weights, jnp.asarray(text[0])))[:WIDTH]
    assert all(pool.dtype == jnp.bfloat16 for pool in cache)
    assert np.abs(dense - np.asarray(logits)).max() < 4 * 2**-8 * np.abs(dense).max()


def test_a_donated_cache_is_updated_in_place(weights: LlamaWeights) -> None:
    """The step reuses the bytes of every layer's pool and copies none of them."""
    geometry = Geometry(pages=512, page_size=4, slots=3, pages_per_seq=4)
    cache = LLAMA.empty_cache(geometry)
    plan, positions = plan_of({0: [0, 1, 2]})
    step = jax.jit(partial(LLAMA.decode, window=None), donate_argnums=1)
    size = sum(pool.nbytes for pool in cache)
    tokens = jnp.zeros(WIDTH, jnp.int32)

    compiled = step.lower(weights, cache, plan, tokens, jnp.asarray(positions)).compile()

    memory, text = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None
    assert text is not None
    assert size == memory.alias_size_in_bytes
    assert memory.temp_size_in_bytes < size // 4
    shapes = ("f32[512,4,4,8]", "f32[2048,4,8]")
    copies = [line for line in text.splitlines() if " copy(" in line]
    assert [] == [line for line in copies if any(shape in line for shape in shapes)]


def test_it_is_a_model_and_a_static_argument(weights: LlamaWeights) -> None:
    """Equal configurations are equal keys, and satisfy the protocol of models."""
    model: Model = LLAMA
    rows = jnp.ones((2, LLAMA.embed))
    zeros = jnp.zeros(2, jnp.int32)

    chosen, log_probabilities = model.sample(weights, rows, zeros, zeros, zeros, jnp.zeros(2))

    assert hash(LLAMA) == hash(evolve(LLAMA))
    assert evolve(LLAMA) == LLAMA
    expected = LLAMA.logits(weights, rows).argmax(axis=1)
    np.testing.assert_array_equal(np.asarray(expected), np.asarray(chosen))
    assert (np.asarray(log_probabilities) < 0).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layers", 0),
        ("embed", 1.5),
        ("q_heads", 3),
        ("head_dim", 7),
        ("rope_theta", 0.0),
        ("rope_theta", "1"),
        ("rope_theta", 10**309),
        ("norm_eps", None),
        ("vocabulary", True),
        ("norm_eps", float("nan")),
        ("dtype", "int32"),
        ("attention", "fastest"),
        ("q_block", 0),
        ("kv_block_pages", -1),
    ],
)
def test_a_configuration_that_means_nothing_is_named(name: str, value: Any) -> None:
    """A size, constant or dtype out of range is invalid input that names it."""
    with pytest.raises(InvalidInput, match=f"Llama.{name}: saw {value!r}"):
        evolve(LLAMA, **{name: value})


def test_a_cache_of_another_depth_is_named(weights: LlamaWeights) -> None:
    """A cache with too few pools is invalid input."""
    plan, positions = plan_of({0: [0]})

    with pytest.raises(InvalidInput, match=r"Llama\.cache: saw 1"):
        run(LLAMA, weights, poisoned()[:1], plan, np.zeros(WIDTH, np.int32), positions)


def test_a_kernel_that_cannot_run_is_not_replaced(weights: LlamaWeights) -> None:
    """Off TPU the default is the reference, and the kernel is refused instead of replaced."""
    assert "reference" == LLAMA.attention
    plan, positions = plan_of({0: [0]})
    asked = evolve(LLAMA, attention="tpu")

    pools = tuple(map(rows.of, poisoned()))
    with pytest.raises(InvalidInput, match="chip: saw 'none, on cpu'"):
        run(asked, weights, pools, plan, np.zeros(WIDTH, np.int32), positions)
