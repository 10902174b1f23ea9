"""Weights as numpy arrays, one with a NaN: InvalidInput names the array (class Engine)."""
import sys

import jax
import numpy as np

from impl.engine import Engine
from impl.models.llama import Llama
from impl.setup import Setup
from spec.vocabulary import Geometry, InvalidInput, default_limits

geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=2)
model = Llama(vocabulary=8, layers=1, embed=4, q_heads=1, kv_heads=1, head_dim=4, mlp=4)
setup = Setup(geometry=geometry, limits=default_limits(geometry), model=model)
weights = jax.tree.map(np.array, model.init(jax.random.key(0)))
Engine(setup, weights)
weights.head[0, 0] = np.nan
try:
    Engine(setup, weights)
except InvalidInput as error:
    sys.exit(0 if error.name == "weights.head" else 1)
print("NaN is accepted")
sys.exit(1)
