"""Finite weights in float16 are accepted, however large their sum is.

The embedding has 64 * 16 = 1024 numbers, each 64.0, which float16 holds exactly. Their sum, 65536,
is above 65504, the largest float16; but every number is finite, so the engine is made.
"""
from common import *
import jax.numpy as jnp
from impl.models.llama import Llama
from spec.vocabulary import InvalidInput

g = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=2)
model = Llama(vocabulary=64, layers=1, embed=16, q_heads=2, kv_heads=1, head_dim=4, mlp=8, dtype="float16")
weights = model.init(jax.random.key(0))
weights = weights._replace(embedding=jnp.full_like(weights.embedding, 64.0))
try:
    Engine(Setup(geometry=g, limits=default_limits(g), model=model), weights)
    made = "made"
except InvalidInput:
    made = "InvalidInput"
check(made, "made", "an engine with finite weights")
