"""Every row of the model has the logits 0 and 0.02 (the norm makes 1 of each of two equal numbers, less 5e-6, and the
head has 0.01 twice). At temperature 0.001 they are 20 apart: token 0 has probability 2e-9, so that none of 224 draws
is one, but once in two million runs.
"""

import sys

import jax.numpy as jnp

from impl.engine import Engine
from impl.host import Host
from impl.models.llama import LayerWeights, Llama, LlamaWeights
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

model = Llama(vocabulary=2, layers=1, embed=2, q_heads=1, kv_heads=1, head_dim=2, mlp=2)
ones, square = jnp.ones(2), jnp.zeros((2, 2))
layer = LayerWeights(ones, *[jnp.zeros((2, 1, 2))] * 3, jnp.zeros((1, 2, 2)), ones, square, square, square)
weights = LlamaWeights(jnp.ones((2, 2)), (layer,), ones, jnp.array([[0.0, 0.01], [0.0, 0.01]]))

geometry = Geometry(pages=64, page_size=4, slots=8, pages_per_seq=8)
host = Host(Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=model), weights))
params = Params(max_new=28, temperature=0.001, seed=3)
outputs = host.generate([Request(id=1, prompt=(1, 1), params=params, n_generations=8)])
drawn = [token for output in outputs.values() for token in output.tokens]
print(len(drawn), "draws,", drawn.count(0), "of token 0")
sys.exit(len(drawn) != 224 or 0 in drawn)
