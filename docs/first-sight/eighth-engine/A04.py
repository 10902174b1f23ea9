"""A model with one layer, whose row is the sum of the tokens so far: a clone draws as its parent."""
import sys
import jax.numpy as jnp
from attrs import frozen
from impl.cache import paged
from impl.engine import Engine
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits


@frozen
class Sums:
    vocabulary: int = 1000

    def weight_shapes(self):
        return ()

    def empty_cache(self, geometry):
        return (paged.empty(geometry.pages, geometry.page_size, 1, 1, jnp.int32),)

    def decode(self, params, cache, plan, tokens, positions):
        cells = tokens[:, None, None]
        pool = paged.write(cache[0], plan.destinations, cells, cells)
        read = pool.at[plan.page_indices, :, 0, 0].get(mode="clip").reshape(plan.page_indices.shape[0], -1)
        seqs = jnp.searchsorted(plan.cu_q_lens[1:], jnp.arange(tokens.shape[0]), side="right")
        return jnp.cumsum(read, axis=1)[seqs, positions], (pool,)

    def sample(self, params, rows, seeds, choices, positions, temperatures):
        return (rows % 1000).astype(jnp.int32), jnp.zeros(rows.shape, jnp.float32)


g = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=3)
engine = Engine(Setup(geometry=g, limits=default_limits(g), model=Sums()))
engine.prefill([Request(id=1, prompt=(1, 2, 3, 4, 5, 6), params=Params(max_new=3), n_generations=2)])
engine.generate()
found = {o.choice: o.tokens for o in engine.take_outputs()}
print(found)
# 1 + ... + 6 = 21, then twice the sum so far
sys.exit(0 if found == {0: (21, 42, 84), 1: (21, 42, 84)} else 1)
