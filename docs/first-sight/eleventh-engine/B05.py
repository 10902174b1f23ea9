"""The scale of attention is head_dim ** -0.5, also where head_dim is not embed / q_heads."""
import sys
import jax
import numpy as np
from impl.engine import Engine
from impl.host import Host
from impl.models.llama import Llama
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

geometry = Geometry(pages=16, page_size=4, slots=2, pages_per_seq=8)
# The heads are together wider than the model, as in Qwen3 or Gemma.
model = Llama(vocabulary=64, layers=2, embed=16, q_heads=4, kv_heads=2, head_dim=16, mlp=32,
              attention="reference")
weights = model.init(jax.random.key(3))
wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), weights)


def norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + model.norm_eps) * weight


def rotate(x):  # pairs (i, i + D / 2) by position * theta ** (-2 i / D)
    half = model.head_dim // 2
    angle = np.arange(len(x))[:, None, None] * model.rope_theta ** (-np.arange(half) / half)
    left, right = x[..., :half], x[..., half:]
    return np.concatenate([left * np.cos(angle) - right * np.sin(angle),
                           right * np.cos(angle) + left * np.sin(angle)], -1)


def next_token(tokens):
    x = wide.embedding[list(tokens)]
    for layer in wide.layers:
        h = norm(x, layer.attention_norm)
        q, k = rotate(np.einsum("te,ehd->thd", h, layer.query)), rotate(np.einsum("te,ehd->thd", h, layer.key))
        k, v = (np.repeat(part, 2, axis=1) for part in (k, np.einsum("te,ehd->thd", h, layer.value)))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(model.head_dim)
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        x = x + np.einsum("thd,hde->te", np.einsum("hqk,khd->qhd", p, v), layer.output)
        h = norm(x, layer.mlp_norm)
        gate = h @ layer.gate
        x = x + (gate / (1 + np.exp(-gate)) * (h @ layer.up)) @ layer.down
    logits = np.sort(norm(x[-1], wide.norm) @ wide.head)
    assert logits[-1] - logits[-2] > 1e-4, "no near tie"
    return int(np.argmax(norm(x[-1], wide.norm) @ wide.head))


prompt, right = (3, 30, 5, 7, 11), []
for _ in range(16):
    right.append(next_token((*prompt, *right)))
host = Host(Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=model), weights))
(output,) = host.generate([Request(id=1, prompt=prompt, params=Params(max_new=16))]).values()
print(output.tokens, "expected", tuple(right))
sys.exit(output.tokens != tuple(right))
