"""One layer with weights by hand: the SwiGLU block reads x after RMSNorm with `mlp_norm`.

Every embedding is (1, 1), and attention adds 0. RMSNorm of (1, 1) is (1, 1) times its weight:
(1, -1) with mlp_norm. gate = first = 1, up = second = -1, hidden = silu(1) * -1 = -0.73. down adds
(2 * hidden, 0): x = (-0.46, 1). The logits are (x0, -x0) up to a positive factor: token 1 is drawn.
"""
import sys

import jax.numpy as jnp

from impl.engine import Engine
from impl.host import Host
from impl.models.llama import LayerWeights, Llama, LlamaWeights
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

model = Llama(vocabulary=2, layers=1, embed=2, q_heads=1, kv_heads=1, head_dim=2, mlp=1,
              attention="reference")
zeros, array = jnp.zeros, lambda given: jnp.array(given, jnp.float32)
layer = LayerWeights(
    attention_norm=array([1, 1]), query=zeros((2, 1, 2)), key=zeros((2, 1, 2)),
    value=zeros((2, 1, 2)), output=zeros((1, 2, 2)), mlp_norm=array([1, -1]),
    gate=array([[1], [0]]), up=array([[0], [1]]), down=array([[2, 0]]),
)
weights = LlamaWeights(embedding=array([[1, 1], [1, 1]]), layers=(layer,), norm=array([1, 1]),
                       head=array([[1, -1], [0, 0]]))
geometry = Geometry(pages=4, page_size=4, slots=1, pages_per_seq=2)
host = Host(Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=model), weights))
(output,) = host.generate([Request(id=1, prompt=(0, 1), params=Params(max_new=3))]).values()
print(output)
sys.exit(output.tokens != (1, 1, 1))
