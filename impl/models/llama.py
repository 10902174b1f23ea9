"""A decoder in the manner of Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

`decode` runs it through the paged cache; `dense_logits` runs the same weights on a whole prefix
without pages or cache, which is the meaning of generation. They share the code that acts on one
token, and none that relates tokens to each other. Source: Touvron et al., "LLaMA" (2023), section
2.2; rotary embedding: Su et al., "RoFormer" (2021), with the two halves of a head rotated against
each other.
"""

import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from attrs import field, fields, frozen
from jax import Array, lax
from jaxtyping import Float, Float32, Int32

from impl.attention import appending, reference, tpu
from impl.cache import paged, rows
from impl.models import sampler
from impl.models.protocol import BatchPlan, Cache
from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.geometry import Geometry
from spec.vocabulary.rules import TEMPERATURE

DTYPES = ("float32", "bfloat16", "float16")
ATTENTION = ("reference", "tpu")
_Part = tuple[tuple[int, ...], int]
"""The shape of one array of weights, and its fan-in."""


class LayerWeights(NamedTuple):
    """One layer. E embed, H query heads, K KV heads, D head_dim, F mlp."""

    attention_norm: Float[Array, " E"]
    query: Float[Array, "E H D"]
    key: Float[Array, "E K D"]
    value: Float[Array, "E K D"]
    output: Float[Array, "H D E"]
    mlp_norm: Float[Array, " E"]
    gate: Float[Array, "E F"]
    up: Float[Array, "E F"]
    down: Float[Array, "F E"]


class LlamaWeights(NamedTuple):
    """The whole model."""

    embedding: Float[Array, "vocabulary E"]
    layers: tuple[LayerWeights, ...]
    norm: Float[Array, " E"]
    head: Float[Array, "E vocabulary"]


@frozen(kw_only=True)
class Llama:
    """The configuration: sizes, and how attention is blocked. Satisfies `protocol.Model`.

    vocabulary, layers, embed, q_heads, kv_heads, head_dim (even), mlp: sizes; q_heads is a
    multiple of kv_heads. rope_theta: base of the rotary frequencies. norm_eps: added to the mean
    square in RMSNorm. dtype: of weights, activations and cache, one of DTYPES; norms, rotation
    and attention compute in float32. attention: the implementation, one of ATTENTION; by default
    the one for the backend that the configuration is made on. A kernel that cannot run raises
    InvalidInput, and no other takes its place. q_block, and kv_block_pages or None: of the
    reference.
    """

    vocabulary: int
    layers: int
    embed: int
    q_heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    dtype: str = field(default="float32")
    attention: str = field(factory=lambda: "tpu" if jax.default_backend() == "tpu" else "reference")
    q_block: int = reference.Q_BLOCK
    kv_block_pages: int | None = None

    def __attrs_post_init__(self) -> None:
        for attribute in fields(Llama):
            name, value = attribute.name, getattr(self, attribute.name)
            whole = type(value) is int and value >= 1
            if attribute.type is int and not whole:
                raise _invalid(name, value, "an integer, 1 or more")
            if attribute.type == int | None and not (whole or value is None):
                raise _invalid(name, value, "an integer, 1 or more, or None")
            if attribute.type is float and not (TEMPERATURE.holds(value) and value > 0):
                raise _invalid(name, value, "finite and above 0")
        if self.attention not in ATTENTION:
            raise _invalid("attention", self.attention, f"one of {ATTENTION}")
        if self.dtype not in DTYPES:
            raise _invalid("dtype", self.dtype, f"one of {DTYPES}")
        if self.head_dim % 2:
            raise _invalid("head_dim", self.head_dim, "an even number")
        if self.q_heads % self.kv_heads:
            raise _invalid("q_heads", self.q_heads, f"a multiple of kv_heads = {self.kv_heads}")

    def init(self, key: Array) -> LlamaWeights:
        """Random weights of variance 1 / fan-in, for tests and benchmarks."""
        e, h, k, d, m = self.embed, self.q_heads, self.kv_heads, self.head_dim, self.mlp
        # query, key, value, output, gate, up, down: shape and fan-in.
        layer: list[_Part] = [((e, h, d), e), ((e, k, d), e), ((e, k, d), e), ((h, d, e), h * d)]
        layer += [((e, m), e), ((e, m), e), ((m, e), m)]
        ends: list[_Part] = [((self.vocabulary, e), 1), ((e, self.vocabulary), e)]
        embedding, head, *rest = self._normal(key, ends + layer * self.layers)
        ones = jnp.ones(e, self.dtype)
        layers = []
        for index in range(0, len(rest), len(layer)):
            query, keys, values, output, gate, up, down = rest[index : index + len(layer)]
            layers.append(LayerWeights(ones, query, keys, values, output, ones, gate, up, down))
        return LlamaWeights(embedding, tuple(layers), ones, head)

    def weight_shapes(self) -> LlamaWeights:
        """Shapes and dtypes of what `init` makes."""
        shapes: LlamaWeights = jax.eval_shape(lambda: self.init(jax.random.key(0)))
        return shapes

    def empty_cache(self, geometry: Geometry) -> Cache:
        """One zeroed pool per layer, in the model's dtype and the shape that attention takes."""
        sizes = (geometry.pages, geometry.page_size, self.kv_heads, self.head_dim)
        empty = rows.empty if self.attention == "tpu" else paged.empty
        return tuple(empty(*sizes, self.dtype) for _ in range(self.layers))

    def decode(
        self,
        params: LlamaWeights,
        cache: Cache,
        plan: BatchPlan,
        tokens: Int32[Array, " T"],
        positions: Int32[Array, " T"],
        *,
        window: int | None,
    ) -> tuple[Float[Array, "T {self.embed}"], Cache]:
        """See `protocol.Model.decode`; rows are those after the final norm."""
        plan.assert_fits(tokens)
        if len(cache) != self.layers:
            raise _invalid("cache", len(cache), f"{self.layers} pools, one per layer")
        x, written = self._embed(params, tokens), []
        for layer, pool in zip(params.layers, cache, strict=True):
            q, k, v = self._project(layer, x, positions)
            mixed, kv_pages = self._append_and_attend(q, k, v, pool, plan, window)
            x = self._finish_layer(layer, x, mixed)
            written.append(kv_pages)
        return self._norm(x, params.norm), tuple(written)

    def _append_and_attend(
        self,
        q: Float[Array, "T H D"],
        k: Float[Array, "T K D"],
        v: Float[Array, "T K D"],
        kv_pages: Float[Array, "P ..."],
        plan: BatchPlan,
        window: int | None,
    ) -> tuple[Float[Array, "T H D"], Float[Array, "P ..."]]:
        """The result of the chosen implementation of attention, and the new pool."""
        given = (q, kv_pages, plan.kv_lens, plan.page_indices, plan.cu_q_lens, plan.num_seqs)
        scale, where = self.head_dim**-0.5, plan.destinations
        if self.attention == "tpu":
            return tpu.append_and_attend(
                *given,
                keys=k,
                values=v,
                page_size=kv_pages.shape[1] // self.kv_heads,
                destinations=where,
                scale=scale,
                sliding_window=window,
            )
        return appending.append_and_attend(
            *given,
            keys=k,
            values=v,
            destinations=where,
            scale=scale,
            sliding_window=window,
            q_block=self.q_block,
            kv_block_pages=self.kv_block_pages,
        )

    def logits(
        self, params: LlamaWeights, rows: Float[Array, "N {self.embed}"]
    ) -> Float32[Array, "N {self.vocabulary}"]:
        """The logits of rows from `decode`."""
        head = (self.embed, self.vocabulary)
        assert params.head.shape == head, "the sampler draws from the vocabulary"
        return _product("ne,ev->nv", rows, params.head)

    def sample(
        self,
        params: LlamaWeights,
        rows: Float[Array, "N {self.embed}"],
        seeds: Int32[Array, " N"],
        choices: Int32[Array, " N"],
        positions: Int32[Array, " N"],
        temperatures: Float32[Array, " N"],
    ) -> tuple[Int32[Array, " N"], Float32[Array, " N"]]:
        """See `protocol.Model.sample`."""
        logits = self.logits(params, rows)
        return sampler.draw(logits, seeds, choices, positions, temperatures)

    def dense_logits(
        self, params: LlamaWeights, tokens: Int32[Array, " N"], window: int | None = None
    ) -> Float32[Array, "N {self.vocabulary}"]:
        """The logits after each token of one sequence, from scratch.

        The naive rung: no cache, no pages, one score matrix per head. window: see `decode`.
        """
        positions = jnp.arange(tokens.shape[0], dtype=jnp.int32)
        past = positions[:, None] - positions[None, :]
        seen = (past >= 0) if window is None else (past >= 0) & (past < window)
        x = self._embed(params, tokens)
        for layer in params.layers:
            q, k, v = self._project(layer, x, positions)
            group = self.q_heads // self.kv_heads
            keys, values = (jnp.repeat(part, group, axis=1) for part in (k, v))
            scores = _product("qhd,khd->hqk", q, keys) * self.head_dim**-0.5
            weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
            mixed = _product("hqk,khd->qhd", weights, values).astype(x.dtype)
            x = self._finish_layer(layer, x, mixed)
        return self.logits(params, self._norm(x, params.norm))

    def _normal(self, key: Array, parts: list[_Part]) -> list[Array]:
        """One array per shape and fan-in, cut from one draw, since each draw is slow to compile."""
        sizes = [math.prod(shape) for shape, _ in parts]
        ends = list(itertools.accumulate(sizes))
        drawn = jax.random.normal(key, (ends[-1],))
        return [
            (drawn[end - size : end].reshape(shape) * fan_in**-0.5).astype(self.dtype)
            for (shape, fan_in), size, end in zip(parts, sizes, ends, strict=True)
        ]

    def _embed(
        self, params: LlamaWeights, tokens: Int32[Array, " T"]
    ) -> Float[Array, "T {self.embed}"]:
        # Padding may carry any id, and the default fills rows out of range with NaN.
        rows: Array = params.embedding.at[tokens].get(mode="clip")
        return rows

    def _norm(self, x: Float[Array, "T E"], weight: Float[Array, " E"]) -> Float[Array, "T E"]:
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
        normal = wide * lax.rsqrt(mean_square + self.norm_eps)
        return (normal * weight.astype(jnp.float32)).astype(x.dtype)

    def _project(
        self, layer: LayerWeights, x: Float[Array, "T E"], positions: Int32[Array, " T"]
    ) -> tuple[Float[Array, "T H D"], Float[Array, "T K D"], Float[Array, "T K D"]]:
        """q, k and v of each token; q and k rotated."""
        normal = self._norm(x, layer.attention_norm)
        q = self._rotate(_product("te,ehd->thd", normal, layer.query), positions)
        k = self._rotate(_product("te,ehd->thd", normal, layer.key), positions)
        v = _product("te,ehd->thd", normal, layer.value)
        return q.astype(x.dtype), k.astype(x.dtype), v.astype(x.dtype)

    def _rotate(
        self, x: Float[Array, "T heads D"], positions: Int32[Array, " T"]
    ) -> Float[Array, "T heads D"]:
        """Turn each pair (i, i + D / 2) of a head by position * theta ** (-2 i / D) radians."""
        half = self.head_dim // 2
        frequencies = self.rope_theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
        angles = positions[:, None, None].astype(jnp.float32) * frequencies
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        left, right = x[..., :half], x[..., half:]
        return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)

    def _finish_layer(
        self, layer: LayerWeights, x: Float[Array, "T E"], mixed: Float[Array, "T H D"]
    ) -> Float[Array, "T E"]:
        """Add the projection of attention, then that of the SwiGLU block."""
        x = x + _product("thd,hde->te", mixed, layer.output).astype(x.dtype)
        normal = self._norm(x, layer.mlp_norm)
        gated = jax.nn.silu(_product("te,em->tm", normal, layer.gate))
        hidden = (gated * _product("te,em->tm", normal, layer.up)).astype(x.dtype)
        return x + _product("tm,me->te", hidden, layer.down).astype(x.dtype)


def _invalid(name: str, seen: object, allowed: str) -> InvalidInput:
    return InvalidInput(
        f"Llama.{name}", seen=seen, allowed=allowed, remedy="Correct the configuration."
    )


def _product(subscripts: str, left: Array, right: Array) -> Array:
    """A contraction that accumulates in float32, whatever its operands are."""
    return jnp.einsum(
        subscripts,
        left,
        right,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
