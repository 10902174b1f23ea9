"""The log-probability in an output is that of the drawn token, before temperature. The model here
has two tokens, always of probability 1/4 and 3/4, so that each token 0 has log(1/4) and each token
1 log(3/4)."""
import math

import jax.numpy as jnp
from attrs import frozen

from common import *
from impl.models import sampler


@frozen
class Coin:
    vocabulary = 2

    def weight_shapes(self):
        return ()

    def empty_cache(self, geometry):
        return (jnp.zeros((geometry.pages, geometry.page_size, 2, 1), jnp.float32),)

    def decode(self, params, cache, plan, tokens, positions):
        row = jnp.log(jnp.array([0.25, 0.75], jnp.float32))
        return jnp.broadcast_to(row, (tokens.shape[0], 2)), cache

    def sample(self, params, rows, seeds, choices, positions, temperatures):
        return sampler.draw(rows, seeds, choices, positions, temperatures)


g = Geometry(pages=16, page_size=8, slots=2, pages_per_seq=8)
h = Host(Engine(Setup(geometry=g, limits=default_limits(g), model=Coin(), logprobs=True)))
(output,) = h.generate([req(1, (0, 1), 60, temperature=1.0, seed=3)]).values()
check(set(output.tokens), {0, 1}, "both tokens are drawn in 60 draws")
right = [round(math.log(0.75 if token else 0.25), 3) for token in output.tokens]
check([round(one, 3) for one in output.logprobs], right, "log-probabilities")
