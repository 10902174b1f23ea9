"""The float64 oracle of Llama: it agrees with the served model, and sees each part of it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve, fields
from deep import deep_after

from conformance.kernels.in_engine import interpreted
from conformance.numerics import llama as oracle
from conformance.numerics import llama_cells as cells
from conformance.seeded_bugs import forget_compiled
from impl import arguments
from impl.attention import reference, tpu
from impl.cache import paged
from impl.engine import Engine
from impl.host import Host
from impl.models import sampler
from impl.models.llama import DTYPES, LayerWeights, Llama, LlamaWeights
from impl.setup import Setup
from impl.state.slots import Slots
from impl.steps import decode
from spec.vocabulary import InvalidInput, Refused, Request


@pytest.fixture(scope="module")
def weights() -> LlamaWeights:
    """Random weights, norms included."""
    return oracle.drawn_weights(3)


@pytest.mark.parametrize(
    "model",
    [oracle.MODELS[0], *(pytest.param(one, marks=pytest.mark.deep) for one in oracle.MODELS[1:])],
)
def test_served_requests_are_those_of_the_oracle(model: Llama) -> None:
    """Every token and log-probability of five requests served together is that of the oracle."""
    assert [] == list(oracle.differences(oracle.drawn_weights(3, model), model))


KERNEL = evolve(oracle.MODELS[1], attention="tpu")
ITS_WEIGHTS = oracle.drawn_weights(3, KERNEL)


@pytest.mark.deep
def test_requests_served_with_the_kernel_are_those_of_the_oracle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel for TPUs, interpreted, gives an engine the same tokens and log-probabilities."""
    right, scales = tpu.append_and_attend, list[float]()

    def noted(*given: Any, scale: float, **named: Any) -> Any:
        scales.append(scale)
        return right(*given, scale=scale, **named)

    monkeypatch.setattr(tpu, "append_and_attend", noted)
    monkeypatch.setattr(oracle, "REQUESTS", oracle.REQUESTS[:2])  # the interpreter is slow

    with interpreted():
        told = list(oracle.differences(ITS_WEIGHTS, KERNEL))
    forget_compiled()

    assert [] == told
    assert {KERNEL.head_dim**-0.5} == {*scales}


def test_without_the_interpreter_the_kernel_needs_its_chip() -> None:
    """Nothing of the interpreter is left: another engine runs on a TPU or not at all."""
    with interpreted():
        pass

    with pytest.raises(InvalidInput, match="chip: saw 'none"):
        next(oracle.differences(ITS_WEIGHTS, KERNEL))


def test_the_models_differ_in_every_field() -> None:
    """A field has one value alone if the requests need it, or another check changes it."""
    values = {
        one.name: {getattr(model, one.name) for model in oracle.MODELS} for one in fields(Llama)
    }

    alone = {name for name, held in values.items() if len(held) == 1}
    assert {"dtype", "attention"} == alone
    assert {"more", "one", "equal"} == {
        "equal" if one.q_heads == one.kv_heads else "one" if one.kv_heads == 1 else "more"
        for one in oracle.MODELS
    }


def test_a_wrong_dense_model_is_seen(
    weights: LlamaWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dense model that is off by more than the tolerance is a difference, also at one logit."""
    right = Llama.dense_logits

    def wrong(model: Llama, *rest: Any) -> jax.Array:
        return right(model, *rest).at[3, 5].add(3 * oracle.TOLERANCE)

    monkeypatch.setattr(Llama, "dense_logits", wrong)

    (told,) = oracle.differences(weights)

    assert told.startswith("the logits of the dense model")


NARROW = (
    evolve(oracle.MODELS[0], dtype="float16"),
    evolve(oracle.MODELS[2], dtype="bfloat16"),
)


@pytest.mark.deep
@pytest.mark.parametrize("model", NARROW)
def test_narrow_models_draw_what_the_oracle_draws(model: Llama) -> None:
    """But for tokens that nearly tie, also where logits are large."""
    weights = oracle.drawn_weights(3, model)

    assert [] == list(oracle.differences(weights, model))
    assert [] == list(oracle.differences(oracle.loud(weights), model, scale=oracle.LOUD))


def narrow_draws(
    logits: jax.Array,
    seeds: Any,
    choices: Any,
    positions: Any,
    temperatures: Any,
    dtype: Any = jnp.bfloat16,
) -> Any:
    """Draw from logits that are divided by the temperature in a narrow dtype."""
    warm = temperatures > 0
    divisors = jnp.where(warm, temperatures, 1.0).astype(dtype)
    divided = (logits.astype(dtype) / divisors[:, None]).astype(jnp.float32)
    softened = jnp.where(warm[:, None], divided, logits)
    return DRAW(softened, seeds, choices, positions, warm.astype(jnp.float32))


DRAW = sampler.draw


@pytest.mark.deep
def test_draws_of_narrow_models_that_are_off_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler that is coarser than the model draws tokens that do not nearly tie."""
    monkeypatch.setattr(sampler, "draw", partial(narrow_draws, dtype=jnp.float8_e4m3fn))
    forget_compiled()

    told = list(oracle.differences(oracle.drawn_weights(3, NARROW[0]), NARROW[0]))
    monkeypatch.undo()
    forget_compiled()

    assert any("the oracle draws" in one for one in told)
    assert not any("nearly tie" in one for one in told)


def last_of_equals(logits: jax.Array, *numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draw the last of equal logits, whatever the temperature."""
    return logits.shape[1] - 1 - jnp.argmax(logits[:, ::-1], axis=1), DRAW(logits, *numbers)[1]


def narrow_logprobs(logits: jax.Array, *numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Tokens, and log-probabilities in the dtype of the logits."""
    tokens, _ = DRAW(logits, *numbers)
    likely = jax.nn.log_softmax(logits)
    return tokens, likely[jnp.arange(len(tokens)), tokens].astype(jnp.float32)


@pytest.mark.parametrize("dtype", deep_after(2, DTYPES))
def test_logits_of_any_dtype_are_taken_as_given(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw from narrow logits is computed in float32, and one that is not is told."""
    assert [] == list(oracle.draw_differences(dtype))
    monkeypatch.setattr(sampler, "draw", narrow_logprobs)

    told = list(oracle.draw_differences(dtype))

    assert bool(told) == (dtype != "float32")
    assert all("log-probability" in one for one in told)


@pytest.mark.parametrize("dtype", deep_after(1, reversed(DTYPES)))
def test_logits_of_a_model_of_any_dtype_have_the_accuracy_of_float32(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are rounded to a narrower dtype are told, and those that are off by 2**-12."""
    right = Llama.logits

    def rounded(model: Llama, *rest: Any) -> jax.Array:
        return right(model, *rest).astype(jnp.bfloat16 if dtype == "float32" else dtype)

    def coarse(model: Llama, *rest: Any) -> jax.Array:
        return right(model, *rest) * (1 + 2.0**-12)

    assert [] == list(oracle.sample_differences(dtype))
    for planted in (rounded, coarse):
        monkeypatch.setattr(Llama, "logits", planted)
        told = list(oracle.sample_differences(dtype))
        assert any("log-probability" in one for one in told)


@pytest.mark.parametrize(("planted", "first"), [(narrow_draws, 1), (last_of_equals, 0)])
def test_a_wrong_draw_from_given_logits_is_told(
    planted: Callable[..., Any], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is softened too coarsely, and one that is greedy and takes the last of equals."""
    monkeypatch.setattr(sampler, "draw", planted)

    told = [one for one in oracle.draw_differences("bfloat16") if "the oracle draws" in one]

    rows = {int(one.split()[2].rstrip(":")) % len(oracle.TEMPERATURES) for one in told}
    assert rows, told
    assert first == min(rows)


@pytest.mark.parametrize("least", [1e-2, 1e-4])
def test_a_temperature_that_is_raised_is_told(
    least: float, weights: LlamaWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that takes a low temperature for a higher one draws what is next to impossible."""
    monkeypatch.setattr(arguments, "_SMALLEST", least)

    told = list(oracle.differences(weights))

    assert told
    assert all("logits and temperature" in one for one in told)


@pytest.mark.deep
def test_the_first_of_equal_logits_is_taken(
    weights: LlamaWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler that takes the last of the largest logits is a difference."""
    largest = jnp.argmax
    monkeypatch.setattr(jnp, "argmax", lambda row: row.shape[-1] - 1 - largest(row[::-1]))
    forget_compiled()

    told = any("no odd token is first of equals" in one for one in oracle.differences(weights))
    monkeypatch.undo()
    forget_compiled()

    assert told


@pytest.mark.deep
@pytest.mark.parametrize(("at", "dtype"), [(1, jnp.uint8), (2, jnp.uint16)])
def test_tokens_that_do_not_fit_are_seen(
    at: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw that keeps too few bits of a token is told where the vocabulary needs more."""
    largest = jnp.argmax
    monkeypatch.setattr(jnp, "argmax", lambda row: largest(row).astype(dtype).astype(jnp.int32))
    forget_compiled()

    models = oracle.MODELS[: at + 1]
    told = [any(oracle.differences(oracle.drawn_weights(3, one), one)) for one in models]
    monkeypatch.undo()
    forget_compiled()

    assert told == [False] * at + [True]


@pytest.mark.deep
def test_stops_that_do_not_fit_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop sequences that are compared in 16 bits are missed where tokens have more."""
    right = decode.finish_reasons

    def narrowed(setup: Setup, held: Slots, slots: jax.Array) -> jax.Array:
        stops = held.stops.astype(jnp.int16).astype(jnp.int32)
        return right(setup, held._replace(stops=stops), slots)

    monkeypatch.setattr(decode, "finish_reasons", narrowed)
    monkeypatch.setattr(oracle, "REQUESTS", oracle.REQUESTS[:2])
    forget_compiled()

    model = oracle.MODELS[2]
    told = list(oracle.differences(oracle.drawn_weights(3, model), model))
    monkeypatch.undo()
    forget_compiled()

    assert told
    assert all("should be" in one for one in told)


@pytest.mark.deep
def test_loud_logits_are_those_of_the_oracle(
    weights: LlamaWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probabilities are right where no float32 has the probability itself."""
    loud = oracle.loud(weights)
    assert [] == list(oracle.differences(loud, scale=oracle.LOUD))
    monkeypatch.setattr(jax.nn, "log_softmax", lambda row: jnp.log(jax.nn.softmax(row)))
    forget_compiled()

    found = oracle.differences(loud, scale=oracle.LOUD)
    told = any("log-probability -inf" in one for one in found)
    monkeypatch.undo()
    forget_compiled()

    assert told


@pytest.mark.deep
def test_cells_of_large_rows_are_those_of_the_oracle(
    weights: LlamaWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is normalised though no float16 has its squares."""
    loud, narrow = oracle.loud(weights), evolve(oracle.MODEL, dtype="float16")
    assert [] == list(cells.differences(loud, narrow))
    mean = jnp.mean
    monkeypatch.setattr(jnp, "mean", lambda x, **named: mean(x.astype(jnp.float16), **named))
    forget_compiled()

    told = any(cells.differences(loud, narrow))
    monkeypatch.undo()
    forget_compiled()

    assert told


@pytest.mark.deep
def test_written_cells_are_those_of_the_oracle(weights: LlamaWeights) -> None:
    """Along random histories of a table every written K and V is that of its prefix."""
    assert [] == [one for seed in range(4) for one in cells.differences(weights, seed=seed)]


def adds_what_is_apart(pool: jax.Array, source: Any, destination: Any) -> jax.Array:
    """A copy of pages by their difference to what was there."""
    copied = pool.at[jnp.asarray(source)].get(mode="clip")
    there = pool.at[jnp.asarray(destination)].get(mode="clip")
    return pool.at[destination].add(copied - there, mode="drop")


@pytest.mark.parametrize(
    ("where", "planted", "told"),
    [
        ("impl.state.pages.copy_page", adds_what_is_apart, "are up to nan from"),
        ("impl.steps.reset.zero", lambda pool: pool * 0, "bytes are not 0 after a physical reset"),
    ],
)
@pytest.mark.deep
def test_arithmetic_on_junk_is_seen(
    where: str, planted: object, told: str, weights: LlamaWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a cell held before, which may be no number, is no part of what is put there."""
    monkeypatch.setattr(where, planted)
    forget_compiled()

    every = (one for seed in range(3) for one in cells.differences(weights, seed=seed))
    found = any(told in one for one in every)
    monkeypatch.undo()
    forget_compiled()

    assert found


@pytest.mark.deep
def test_rounds_that_take_one_query_of_a_sequence_alone_are_seen(
    weights: LlamaWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round as wide as the slots is no batch of decoding alone: it may have several of one."""
    right = reference._phase

    def decodes_alone(q: jax.Array, pool: Any, rows: Any, out: Any, *rest: Any) -> Any:
        skipped = rest[0].q_block != 1 and q.shape[0] == rows.q_len.shape[0]
        return out if skipped else right(q, pool, rows, out, *rest)

    monkeypatch.setattr(reference, "_phase", decodes_alone)
    forget_compiled()

    found = [one for seed in range(3) for one in cells.differences(weights, seed=seed)]
    monkeypatch.undo()
    forget_compiled()

    assert any(", layer 1: K and V of position " in one for one in found)
    assert not any(", layer 0: " in one for one in found)


@pytest.mark.deep
@pytest.mark.parametrize(
    "model", [evolve(oracle.MODELS[1], dtype="bfloat16"), evolve(oracle.MODELS[2], dtype="float16")]
)
def test_written_cells_of_other_models_are_those_of_the_oracle(model: Llama) -> None:
    """Whatever heads share K and V, and in whatever dtype, each written cell is of its prefix."""
    weights = oracle.drawn_weights(3, model)

    assert [] == [one for seed in (4, 5) for one in cells.differences(weights, model, seed=seed)]


@pytest.mark.deep
def test_narrow_pages_that_are_not_copied_are_seen(
    weights: LlamaWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clone whose last page is copied in float32 alone lacks cells in every other dtype."""
    right = paged.copy_page

    def wide_alone(pool: jax.Array, *ids: Any) -> jax.Array:
        return right(pool, *ids) if pool.dtype == jnp.float32 else pool

    monkeypatch.setattr("impl.state.pages.copy_page", wide_alone)
    forget_compiled()

    narrow = evolve(oracle.MODEL, dtype="bfloat16")
    seen = any(one for seed in range(3) for one in cells.differences(weights, narrow, seed=seed))
    monkeypatch.undo()
    forget_compiled()

    assert seen


@pytest.mark.parametrize(
    ("dtype", "page_size"), deep_after(2, [("float32", 1), *((dtype, 16) for dtype in DTYPES)])
)
def test_far_cells_are_those_of_the_oracle_in_every_dtype(dtype: str, page_size: int) -> None:
    """K and V of a long text are as near to the oracle as the dtype allows."""
    assert [] == list(cells.far_differences(dtype, page_size=page_size))


def test_numbers_of_pages_that_do_not_fit_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long text in pages of one cell has more of them than 8 bits with a sign can number."""
    right = reference._ids

    def narrowed(pages: jax.Array, row: jax.Array, entries: jax.Array) -> jax.Array:
        return right(pages, row, entries.astype(jnp.int8).astype(jnp.int32))

    monkeypatch.setattr(reference, "_ids", narrowed)
    forget_compiled()

    told = next(cells.far_differences("float32", page_size=1))
    monkeypatch.undo()
    forget_compiled()

    where = "float32, pages of 1: step 0, slot 0, layer 1: K and V of position"
    assert told.startswith(where)


@pytest.mark.parametrize("dtype", deep_after(1, [one for one in DTYPES if one != "float32"]))
def test_rotations_of_rounded_positions_are_seen(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that rounds positions to its dtype is wrong past the first that it cannot hold."""
    right = Llama._rotate

    def rounded(model: Llama, x: jax.Array, positions: jax.Array) -> jax.Array:
        return right(model, x, positions.astype(dtype).astype(jnp.int32))

    monkeypatch.setattr(Llama, "_rotate", rounded)
    forget_compiled()

    told = next(cells.far_differences(dtype, page_size=16))
    monkeypatch.undo()
    forget_compiled()

    first = round(2 / oracle.epsilon(dtype)) + 1
    where = f"{dtype}, pages of 16: step 0, slot 0, layer 0: K and V of position {first} are"
    assert told.startswith(where)


def one_cell_longer(held: cells.Held) -> cells.Held:
    """One cell more counts as written, where there is a token for it."""
    pairs = zip(held.written, held.texts, strict=True)
    return evolve(held, written=tuple(min(one + (one > 0), len(text)) for one, text in pairs))


def other_rows(held: cells.Held) -> cells.Held:
    """Each slot has the row of another one."""
    return evolve(held, rows=held.rows[::-1])


@pytest.mark.parametrize("wrong", deep_after(1, [one_cell_longer, other_rows]))
def test_wrong_cells_are_seen(
    weights: LlamaWeights,
    monkeypatch: pytest.MonkeyPatch,
    wrong: Callable[[cells.Held], cells.Held],
) -> None:
    """A length that is one too long and a row of the wrong pages are differences."""
    right = cells._held
    monkeypatch.setattr(cells, "_held", lambda engine: wrong(right(engine)))

    assert any(cells.differences(weights))


@pytest.mark.parametrize("error", [np.nan, np.inf, -np.inf, 1.1, -1.1, 0.9, 0.0])
@pytest.mark.parametrize("layer", range(oracle.MODEL.layers))
@pytest.mark.parametrize("position", [0, 3, 4, 6])
def test_one_number_that_is_off_is_told_by_its_place(
    position: int, layer: int, error: float
) -> None:
    """A number of K or V that is no number, or off by more than is tolerated, has its place."""
    geometry, heads = oracle.SETUP.geometry, 2 * oracle.MODEL.kv_heads
    shape = (geometry.pages, geometry.page_size, heads, oracle.MODEL.head_dim)
    pools = tuple(np.zeros(shape) for _ in range(oracle.MODEL.layers))
    row = (9, 2, -1, -1, -1)
    page, offset = row[position // geometry.page_size], position % geometry.page_size
    pools[layer][page, offset, position % heads, layer] = error * cells.TOLERANCE
    held = cells.Held((True,), ((1,) * 7,), (7,), (7,), (row,), frozenset(), pools)
    wanted = np.zeros((oracle.MODEL.layers, 7, *shape[2:]))

    told = list(cells._wrong(held, 0, wanted, 5))

    assert (not abs(error) <= 1.0) == len(told)
    place = f"step 5, slot 0, layer {layer}: K and V of position {position} are"
    assert all(one.startswith(place) for one in told)


def test_a_history_in_which_everything_is_refused_is_told(
    weights: LlamaWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that writes nothing has shown nothing."""
    monkeypatch.setattr(cells, "_call", lambda *_: None)

    (told,) = cells.differences(weights)

    assert told.startswith("0 texts were written")


def test_a_refused_write_leaves_every_cell(
    weights: LlamaWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stores K and V all the same is told, also where no sequence has written cells."""
    write = Engine.write

    def wrong(engine: Engine, batch: Any) -> None:
        try:
            write(engine, batch)
        except Refused:
            state = engine.extract()
            pools = tuple(pool + 1 for pool in state.pages.cache)
            engine.inject(state._replace(pages=state.pages._replace(cache=pools)))
            raise

    monkeypatch.setattr(Engine, "write", wrong)

    told = (one for seed in range(2) for one in cells.differences(weights, seed=seed))

    assert any("a call that is refused changes" in one for one in told)


@pytest.mark.parametrize("off", deep_after(2, [float("nan"), float("inf"), 5.0, -5.0, 0.0]))
def test_any_log_probability_that_is_off_is_told(
    off: float, weights: LlamaWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One log-probability that is off by tolerances is told with its request, choice and token."""
    right, (request, choice) = Host.generate, (oracle.REQUESTS[1].id, 0)

    def generate(host: Host, requests: Sequence[Request]) -> Any:
        served = dict(right(host, requests))
        if (request, choice) in served:
            one = served[request, choice]
            logprobs = (*one.logprobs[:-1], one.logprobs[-1] + off * oracle.TOLERANCE)
            served[request, choice] = evolve(one, logprobs=logprobs)
        return served

    monkeypatch.setattr(Host, "generate", generate)

    told = list(oracle.differences(weights))

    assert (off != 0.0) == len(told)
    last = oracle.REQUESTS[1].params.max_new - 1
    place = f"request {request}, choice {choice}, token {last}: log-probability"
    assert all(one.startswith(place) for one in told)


def test_near_ties_are_told(weights: LlamaWeights) -> None:
    """Two tokens with one head have equal logits, so that a draw between them is not certain."""
    head = np.array(weights.head)
    head[:, 1::2] = head[:, :-1:2]

    told = oracle.differences(weights._replace(head=jnp.asarray(head)))

    assert any("nearly tie" in one for one in told)


CHANGES: dict[str, Callable[[Llama], Llama]] = {
    "rope": lambda model: evolve(model, rope_theta=9_000.0),
    "norm": lambda model: evolve(model, norm_eps=2e-2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_slightly_different_model_is_seen(weights: LlamaWeights, name: str) -> None:
    """An oracle with another base of rotation or another epsilon disagrees with what is served."""
    assert any(oracle.differences(weights, wanted=CHANGES[name](oracle.MODEL)))


@pytest.mark.parametrize("part", LayerWeights._fields)
def test_each_weight_matters(weights: LlamaWeights, part: str) -> None:
    """One changed weight of the first layer changes the logits by more than the tolerance."""
    first = weights.layers[0]
    changed: Any = np.array(getattr(first, part))
    changed.ravel()[0] += 0.1
    other = weights._replace(layers=(first._replace(**{part: changed}), *weights.layers[1:]))
    tokens = list(range(8))
    right = oracle.logits(oracle.MODEL, weights, tokens)

    assert oracle.TOLERANCE < np.abs(right - oracle.logits(oracle.MODEL, other, tokens)).max()
