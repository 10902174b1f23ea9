"""docs/serving.md: "A request gets the same tokens whatever other requests are served beside it". All logits are 0, so
that no two scores nearly tie: the same 12 tokens of 1000 are drawn alone and beside two other requests.
"""

import sys

import jax
import jax.numpy as jnp

from impl.engine import Engine
from impl.host import Host
from impl.models.llama import Llama
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

model = Llama(vocabulary=1000, layers=1, embed=4, q_heads=1, kv_heads=1, head_dim=2, mlp=2)
weights = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), model.weight_shapes())
geometry = Geometry(pages=16, page_size=4, slots=4, pages_per_seq=4)
engine = Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=model), weights)


def request(n):
    return Request(id=n, prompt=(n, n), params=Params(max_new=12, temperature=1.0, seed=n))


def tokens(served):
    return Host(engine).generate([request(n) for n in served])[3, 0].tokens


alone, first, last = tokens([3]), tokens([3, 1, 2]), tokens([1, 2, 3])
print(alone, first, last, sep="\n")
sys.exit(not alone == first == last)
