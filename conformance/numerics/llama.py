"""A float64 oracle of the model in `impl.models.llama`: its K and V, and what a request draws.

It is written from the papers, with numpy, a token at a time, and shares no code with the model.
Source: Touvron et al., "LLaMA" (2023), section 2.2; Su et al., "RoFormer" (2021); Shazeer, "GLU
Variants" (2020).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import jax
import jax.numpy as jnp
import numpy as np
from attrs import evolve
from jax import Array
from numpy.typing import NDArray

from impl.engine import Engine, Key, Output
from impl.host import Host
from impl.models import sampler
from impl.models.llama import LayerWeights, Llama, LlamaWeights
from impl.setup import Setup
from spec.vocabulary import FinishReason, Geometry, Limits, Params, Request

Floats = NDArray[np.float64]

TOLERANCE: Final = 5e-6
"""How far a float32 logit of two small layers may be from that of float64.

Some hundred roundings of 6e-8 affect a logit of size 1 to 4. The largest difference that was
measured, with six sets of weights, is 1.2e-6. A log-probability may be twice as far.
"""
ROUNDINGS: Final = 16
"""How far a logit of a narrower dtype may be, in distances from 1 to the next number of the dtype.

The largest that was measured, with three models and four sets of weights, is 11.3.
"""
TEMPERATURES: Final = (0.0, 0.3, 1.0, 1.7)
COLD: Final = 2.0**-16
"""The temperatures of REQUESTS times this are as low as anyone asks for."""
ROWS: Final = 100
"""The logits that are drawn from at each temperature: so many that some nearly tie by chance."""
DRAWN: Final = len(TEMPERATURES) * ROWS
"""The rows of logits that are drawn from; each temperature comes after the others in turn."""
DRAW_TOLERANCE: Final = 3e-6
"""How far a log-probability of given logits may be from that of float64.

The logits lie below 16 and their log-probabilities below 32, where float32 rounds by 2**-20, which
is 1e-6, in each of two subtractions. The sum of some hundred exponentials is taken to be off by no
more than 1e-6 of it. The largest difference that was measured is 9.2e-7.
"""
LOUD: Final = 64
MODEL: Final = Llama(
    vocabulary=37,
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
MODELS: Final = (
    MODEL,
    Llama(  # one KV head for all, blocks as users have them, tokens that 8 bits cannot number
        vocabulary=301,
        layers=1,
        embed=12,
        q_heads=3,
        kv_heads=1,
        head_dim=10,
        mlp=20,
        rope_theta=300.0,
        norm_eps=1e-2,
        attention="reference",
    ),
    Llama(  # a KV head for each, blocks of one query and one page, tokens past 16 bits
        vocabulary=70_001,
        layers=3,
        embed=20,
        q_heads=3,
        kv_heads=3,
        head_dim=4,
        mlp=16,
        attention="reference",
        q_block=1,
        kv_block_pages=1,
    ),
)
"""Every field has several values, but for those that other checks change."""
SETUP: Final = Setup(
    geometry=Geometry(pages=24, page_size=4, slots=4, pages_per_seq=5),
    limits=Limits(
        queue=4,
        prefill_tokens=18,
        prefill_seqs=3,
        round_tokens=4,
        rounds=8,
        stops=1,
        stop_len=1,
        outputs=4,
    ),
    model=MODEL,
    logprobs=True,
)
KERNEL_SIZES: Final = Geometry(pages=12, page_size=8, slots=4, pages_per_seq=3)
"""The kernel takes pages of 8 or more."""
REQUESTS: Final = tuple(
    Request(id=number, prompt=prompt, params=params, n_generations=choices)
    for number, (prompt, params, choices) in enumerate(
        (
            ((3, 30, 5, 7, 11, 13, 2), Params(max_new=9, temperature=0.0, seed=1), 1),
            ((5, 2, 9), Params(max_new=12, temperature=0.8, seed=5), 3),
            ((8, 8, 8, 8), Params(max_new=6, temperature=1.5, seed=6), 2),
            ((36,), Params(max_new=14, temperature=0.0, seed=2), 1),
            ((0, 6, 1, 17, 4), Params(max_new=8, temperature=0.3, seed=2**31 - 1), 4),
            ((9, 1), Params(max_new=5, temperature=1e-300, seed=3), 1),
            ((2, 4, 6), Params(max_new=5, temperature=1e300, seed=4), 2),
        ),
        start=1,
    )
)
"""Greedy and drawn, one token and more than a page, several choices, the first and last token of
MODEL, and temperatures that no float32 has.
"""


def requests_of(model: Llama) -> tuple[Request, ...]:
    """The requests, with prompts from the whole vocabulary of a model; the last one stays so."""
    last, most = model.vocabulary - 1, MODEL.vocabulary - 1
    spread = (tuple(token * last // most for token in one.prompt) for one in REQUESTS)
    return tuple(evolve(one, prompt=prompt) for one, prompt in zip(REQUESTS, spread, strict=True))


def drawn_weights(seed: int, model: Llama = MODEL) -> LlamaWeights:
    """Random weights in float32, norms included: `Llama.init` draws none of those."""
    draws = np.random.default_rng(seed)

    def of(*shape: int, fan_in: int) -> Array:
        return jnp.asarray(draws.normal(size=shape) * fan_in**-0.5, jnp.float32)

    e, heads, kv, d, mlp = model.embed, model.q_heads, model.kv_heads, model.head_dim, model.mlp
    layers = tuple(
        LayerWeights(
            attention_norm=1.0 + of(e, fan_in=16),
            query=of(e, heads, d, fan_in=e),
            key=of(e, kv, d, fan_in=e),
            value=of(e, kv, d, fan_in=e),
            output=of(heads, d, e, fan_in=heads * d),
            mlp_norm=1.0 + of(e, fan_in=16),
            gate=of(e, mlp, fan_in=e),
            up=of(e, mlp, fan_in=e),
            down=of(mlp, e, fan_in=mlp),
        )
        for _ in range(model.layers)
    )
    embedding, head = of(model.vocabulary, e, fan_in=1), of(e, model.vocabulary, fan_in=e)
    return LlamaWeights(embedding, layers, 1.0 + of(e, fan_in=16), head)


def loud(weights: Any) -> Any:
    """Weights with LOUD times the logits, most of which no softmax in float32 tells from nothing,
    and with rows whose squares no float16 has.
    """
    return weights._replace(embedding=LOUD * 8 * weights.embedding, head=LOUD * weights.head)


def logits(model: Any, weights: Any, tokens: Sequence[int]) -> Floats:
    """The logits [tokens, vocabulary] after each token of one sequence.

    model: a `Llama`; its sizes, rope_theta and norm_eps are read. weights: a `LlamaWeights`.
    """
    rows, _ = _through_layers(model, weights, tokens)
    made: Floats = _norm(rows, weights.norm, model.norm_eps) @ np.asarray(weights.head, np.float64)
    return made


def cells(model: Any, weights: Any, tokens: Sequence[int]) -> Floats:
    """K and V of each token of one sequence: [layers, tokens, 2 * kv_heads, head_dim].

    The heads alternate as in a page of the engine: k0, v0, k1, v1, ...
    """
    _, held = _through_layers(model, weights, tokens)
    return np.stack(
        [np.stack(pair, axis=2).reshape(len(tokens), -1, model.head_dim) for pair in held]
    )


def _through_layers(
    model: Any, weights: Any, tokens: Sequence[int]
) -> tuple[Floats, list[tuple[Floats, Floats]]]:
    """The rows after the last layer, and the rotated K and the V of each layer."""
    rows, held = np.asarray(weights.embedding, np.float64)[list(tokens)], []
    for layer in weights.layers:
        normal = _norm(rows, layer.attention_norm, model.norm_eps)
        mixed, key, value = _attention(model, layer, normal)
        rows = rows + mixed
        held.append((key, value))
        normal = _norm(rows, layer.mlp_norm, model.norm_eps)
        gate = normal @ np.asarray(layer.gate, np.float64)
        up = normal @ np.asarray(layer.up, np.float64)
        rows = rows + (gate / (1 + np.exp(-gate)) * up) @ np.asarray(layer.down, np.float64)
    return rows, held


def _norm(rows: Floats, weight: Any, eps: float) -> Floats:
    scale = np.sqrt(np.mean(rows**2, axis=-1, keepdims=True) + eps)
    normal: Floats = rows / scale * np.asarray(weight, np.float64)
    return normal


def _attention(model: Any, layer: Any, rows: Floats) -> tuple[Floats, Floats, Floats]:
    """What attention adds to the rows, with its rotated K and its V."""
    query, key, value = (
        np.einsum("te,ehd->thd", rows, np.asarray(part, np.float64))
        for part in (layer.query, layer.key, layer.value)
    )
    query, key = _rotated(model, query), _rotated(model, key)
    out = np.zeros_like(rows)
    for head in range(model.q_heads):
        shared = head // (model.q_heads // model.kv_heads)
        for at in range(len(rows)):
            scores = key[: at + 1, shared] @ query[at, head] / np.sqrt(model.head_dim)
            share = np.exp(scores - scores.max())
            mixed = share / share.sum() @ value[: at + 1, shared]
            out[at] += mixed @ np.asarray(layer.output, np.float64)[head]
    return out, key, value


def _rotated(model: Any, parts: Floats) -> Floats:
    """Each pair (i, i + D / 2) as a complex number, turned by its position."""
    half = model.head_dim // 2
    pairs = parts[..., :half] + 1j * parts[..., half:]
    turn = np.outer(np.arange(len(parts)), model.rope_theta ** (-np.arange(half) / half))
    turned = pairs * np.exp(1j * turn)[:, None]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def differences(
    weights: Any, model: Llama = MODEL, *, wanted: Llama | None = None, scale: int = 1
) -> Iterator[str]:
    """What is wrong with the requests served together by an engine with this model, in words.

    wanted: the model of the oracle; None: the same. scale: of the logits, and so of their errors.

    Teacher-forced: each token is compared with what the oracle draws from the tokens before it; one
    of a dtype narrower than float32 may be any of those that nearly tie. The dense model is
    compared with the oracle, too, and a greedy request must take the first of equal logits. Served
    again with one of its tokens as a stop, each request must end there; and with logits and
    temperatures that are as much smaller, but for float16, it must have the same tokens.

    weights: in any dtype; the engine and the oracle have them in that of the model.
    """
    weights = jax.tree.map(lambda leaf: leaf.astype(model.dtype), weights)
    right, setup = wanted or model, evolve(SETUP, model=model)
    tolerance = tolerance_of(model.dtype) * scale
    if model.attention == "tpu":
        setup = evolve(setup, geometry=KERNEL_SIZES)
    yield from _of_dense(model, right, weights, tolerance)
    yield from _of_ties(setup, weights)
    requests, host = requests_of(model), Host(Engine(setup, weights))
    served = host.generate(requests)
    for request in requests:
        for choice in range(request.n_generations):
            output = served.get((request.id, choice))
            if output is None or len(output.tokens) != request.params.max_new:
                yield f"request {request.id}, choice {choice}: {output}"
                continue
            yield from _of_output(right, weights, request, choice, output, tolerance)
    yield from _of_stops(host, requests, served)
    if model.dtype != "float16":  # which has no such small weights
        yield from _of_cold(setup, weights, requests, served)


def tolerance_of(dtype: str) -> float:
    """How far a logit of a model of this dtype may be from that of float64."""
    if dtype == "float32":
        return TOLERANCE
    return ROUNDINGS * epsilon(dtype)


def epsilon(dtype: str) -> float:
    """The distance from 1 to the next number of a dtype."""
    return float(jnp.finfo(dtype).eps)  # type: ignore[no-untyped-call]


def draw_differences(dtype: str) -> Iterator[str]:
    """What is wrong with draws from logits of this dtype, in words: they are taken as given."""
    rng = np.random.default_rng(0)
    rows = jnp.asarray(rng.normal(size=(DRAWN, MODELS[1].vocabulary)) * 3.0, dtype)
    rows = rows.at[:, -1].set(rows.max(axis=1))  # so that the largest ties
    drawn = sampler.draw(rows, *_arguments_of_draws())
    yield from _of_draws(dtype, np.asarray(rows, np.float64), drawn, error=0.0)


def sample_differences(dtype: str) -> Iterator[str]:
    """What is wrong with draws of a model of this dtype from given rows, in words.

    Each of its logits is a sum of `embed` products that are rounded and added in float32. So it is
    off by at most `embed` roundings of 2**-24 of the sum of their sizes, and one to spare. They lie
    below 16, as DRAW_TOLERANCE asks.
    """
    rng, model = np.random.default_rng(1), evolve(MODELS[1], dtype=dtype)
    weights = jax.tree.map(lambda leaf: leaf.astype(dtype), drawn_weights(1, model))
    rows = jnp.asarray(rng.normal(size=(DRAWN, model.embed)) * 2.0, dtype)
    wide, head = (np.asarray(part, np.float64) for part in (rows, weights.head))
    error = (model.embed + 1) * 2.0**-24 * float((np.abs(wide) @ np.abs(head)).max())
    drawn = model.sample(weights, rows, *_arguments_of_draws())
    yield from _of_draws(f"model of {dtype}", wide @ head, drawn, error=error)


def _arguments_of_draws() -> tuple[Array, Array, Array, Array]:
    """Seeds, choices, positions and temperatures of DRAWN draws."""
    numbers = jnp.arange(DRAWN, dtype=jnp.int32)
    warm = jnp.asarray(TEMPERATURES * ROWS, jnp.float32)
    return numbers, numbers % 3, numbers + 5, warm


def _of_draws(
    name: str, rows: Floats, drawn: tuple[Array, Array], *, error: float
) -> Iterator[str]:
    """What is wrong with tokens and log-probabilities of these logits, each off by at most `error`.

    A greedy draw is the first of the largest. The error of a softened logit is that of a logit,
    divided by the temperature.
    """
    tokens, logprobs = drawn
    for at, row in enumerate(rows):
        warmth = TEMPERATURES[at % len(TEMPERATURES)]
        one = Params(max_new=1, temperature=warmth, seed=at)
        scores, token = _scores(row, one, at % 3, at + 5), int(tokens[at])
        likely = row[token] - np.log(np.exp(row).sum())
        best = int(scores.argmax())
        apart = 2 * error + (DRAW_TOLERANCE if warmth else 0)
        nearly = apart > 0 and scores[token] >= scores[best] - apart / (warmth or 1.0)
        if token != best and not nearly:
            yield f"{name}, row {at}: {token}, the oracle draws {best}"
        if not abs(float(logprobs[at]) - likely) <= DRAW_TOLERANCE + 2 * error:
            yield f"{name}, row {at}: log-probability {logprobs[at]}, not {likely}"


def _of_dense(model: Llama, right: Llama, weights: Any, tolerance: float) -> Iterator[str]:
    tokens = [at * 7 % model.vocabulary for at in range(SETUP.geometry.max_len)]
    dense = model.dense_logits(weights, jnp.asarray(tokens, jnp.int32))
    apart = np.abs(np.asarray(dense) - logits(right, weights, tokens)).max()
    if not apart <= tolerance:
        yield f"the logits of the dense model are up to {apart:.2g} from those of the oracle"


def _of_ties(setup: Setup, weights: Any) -> Iterator[str]:
    """Each token of odd number gets the head of the one before it, so that none is ever drawn."""
    head = jnp.asarray(weights.head)
    pairs = head.at[:, 1::2].set(head[:, :-1:2])
    request = requests_of(cast(Llama, setup.model))[0]
    served = Host(Engine(setup, weights._replace(head=pairs))).generate([request])
    tokens = served[request.id, 0].tokens if served else ()
    if len(tokens) != request.params.max_new or any(token % 2 for token in tokens):
        yield f"request {request.id}: {tokens}, no odd token is first of equals"


def _of_cold(
    setup: Setup, weights: Any, requests: Sequence[Request], served: Mapping[Key, Output]
) -> Iterator[str]:
    """The requests again, with logits and temperatures that are COLD times as large: equal tokens.

    A power of two changes no digit of their quotients.
    """
    colder = [
        evolve(one, params=evolve(one.params, temperature=one.params.temperature * COLD))
        for one in requests
    ]
    again = Host(Engine(setup, weights._replace(head=weights.head * COLD))).generate(colder)
    for key, output in served.items():
        if key not in again or again[key].tokens != output.tokens:
            yield f"request {key}, logits and temperature times {COLD}: {again.get(key)}"


def _of_stops(
    host: Host, requests: Sequence[Request], served: Mapping[Key, Output]
) -> Iterator[str]:
    """Each request again, with the middle token of its first choice as a stop sequence."""
    stops = {}
    for one in requests:
        first = served.get((one.id, 0))
        text = (first.tokens if first else ()) or (0,)
        stops[one.id] = text[len(text) // 2]
    ended = host.generate(
        [evolve(one, params=evolve(one.params, stops=((stops[one.id],),))) for one in requests]
    )
    for (request, choice), before in served.items():
        stop, output = stops[request], ended.get((request, choice))
        end = before.tokens.index(stop) + 1 if stop in before.tokens else len(before.tokens)
        reason = FinishReason.STOP if stop in before.tokens else before.reason
        seen = None if output is None else (output.tokens, output.reason)
        if seen != (before.tokens[:end], reason):
            wanted = f"{before.tokens[:end]} and {reason.name}"
            yield f"request {request}, choice {choice}, stop {stop}: {output}, should be {wanted}"


def _of_output(
    model: Any,
    weights: Any,
    request: Request,
    choice: int,
    output: Output,
    tolerance: float,
) -> Iterator[str]:
    text = (*request.prompt, *output.tokens)
    rows = logits(model, weights, text)[len(request.prompt) - 1 : len(text) - 1]
    likely = rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))
    for at, (row, token) in enumerate(zip(rows, output.tokens, strict=True)):
        where = f"request {request.id}, choice {choice}, token {at}"
        scores = _scores(row, request.params, choice, len(request.prompt) + at)
        best = np.argsort(scores)
        ties = scores >= scores[best[-1]] - 2 * tolerance / (request.params.temperature or 1.0)
        if model.dtype == "float32" and ties[best[-2]]:
            yield f"{where}: the two best scores nearly tie, so that either may be drawn"
        if best[-1] != token and (model.dtype == "float32" or not ties[token]):
            yield f"{where}: {token}, the oracle draws {best[-1]}"
        if not abs(output.logprobs[at] - likely[at, token]) <= 2 * tolerance:
            yield f"{where}: log-probability {output.logprobs[at]}, not {likely[at, token]}"


def _scores(row: Floats, params: Params, choice: int, position: int) -> Floats:
    """The scores whose largest is drawn: logits, or softened logits with Gumbel noise."""
    if not params.temperature:
        return row
    key = jax.random.key(params.seed)
    for number in (choice, position):
        key = jax.random.fold_in(key, number)
    noise = np.asarray(jax.random.gumbel(key, row.shape), np.float64)
    drawn: Floats = row / params.temperature + noise
    return drawn
