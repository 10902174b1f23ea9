"""The last of 2100 prompt tokens is the only 2, all others are 1. Weights by hand: q = (a, 0), k = (0, -a) in the
rotated pair of frequency theta ** (-2 / 4) = 1 / 2000, so that the score of a key at distance d is
-a * a * sin(d / 2000) / sqrt(4): 0 for the token itself, and about -20 * d for the d-th before it (up to d = 2099:
1.05 radians, where the sine still rises). So attention reads the value of the last token alone, and the head, which
shows only what attention read, draws 2.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

from impl.engine import Engine
from impl.host import Host
from impl.models.llama import LayerWeights, Llama, LlamaWeights
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

E, V, D = 8, 3, 4
model = Llama(vocabulary=V, layers=1, embed=E, q_heads=1, kv_heads=1, head_dim=D, mlp=2, rope_theta=4e6)
zeros = lambda *shape: np.zeros(shape, np.float32)
embedding, head = zeros(V, E), zeros(E, V)
query, key, value, output = zeros(E, 1, D), zeros(E, 1, D), zeros(E, 1, D), zeros(1, D, E)
for token in (1, 2):
    embedding[token, 0] = embedding[token, token] = 1  # dimension 0: every token; 1 and 2: which one
    value[token, 0, token] = 1
    output[0, token, 2 + token] = 1
    head[2 + token, token] = 1
a = 283.0 / (E / 2) ** 0.5  # the norm makes of 1, 1 and six zeros 2, 2 and six zeros
query[0, 0, 1], key[0, 0, 3] = a, -a
ones = np.ones(E, np.float32)
layer = LayerWeights(ones, query, key, value, output, ones, zeros(E, 2), zeros(E, 2), zeros(2, E))
weights = LlamaWeights(embedding, (layer,), ones, head)

geometry = Geometry(pages=34, page_size=64, slots=1, pages_per_seq=34)
host = Host(Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=model),
                   jax.tree.map(jnp.asarray, weights)))
drawn = {}
for length in (100, 2040, 2100):
    (result,) = host.generate([Request(id=length, prompt=(1,) * (length - 1) + (2,), params=Params(max_new=1))]).values()
    drawn[length] = result.tokens
print(drawn)
sys.exit(drawn != {100: (2,), 2040: (2,), 2100: (2,)})
