"""Rotary positions are rounded to the dtype of the model.

Llama's docstring: with any dtype "norms, rotation and attention compute in float32". The weights
make k = (1, 0) before rotation for each token, and head_dim 2 has one frequency, 1: K of position p
is (cos p, sin p), rounded to bfloat16 when it is stored. So K of position 257 is (cos 257, sin 257)
= (0.819, -0.573) up to 2**-8, and not that of position 256, (-0.040, -0.999).
"""

import math
import sys

import jax.numpy as jnp
import numpy as np

from common_b import Geometry, Params, Request, engine
from impl.models.llama import LayerWeights, Llama, LlamaWeights

model = Llama(vocabulary=4, layers=1, embed=2, q_heads=1, kv_heads=1, head_dim=2, mlp=2,
              dtype="bfloat16")
full = lambda *shape: jnp.ones(shape, jnp.bfloat16)
key = full(2, 1, 2).at[:, 0, 0].set(0.5).at[:, 0, 1].set(0.0)
layer = LayerWeights(full(2), full(2, 1, 2), key, full(2, 1, 2), full(1, 2, 2), full(2),
                     full(2, 2), full(2, 2), full(2, 2))
weights = LlamaWeights(full(4, 2), (layer,), full(2), full(2, 4))
geometry = Geometry(pages=10, page_size=32, slots=1, pages_per_seq=10)
one = engine(geometry, model=model, weights=weights)
one.prefill([Request(id=1, prompt=(1,) * 260, params=Params(max_new=5))])
state = one.extract()
page = int(state.pages.rows[0, 257 // 32])
seen = np.asarray(state.pages.cache[0][page, 257 % 32, 0], np.float32)
expected = np.array([math.cos(257), math.sin(257)])
print("expected", expected)
print("seen    ", seen)
sys.exit(0 if np.abs(seen - expected).max() < 0.02 else 1)
