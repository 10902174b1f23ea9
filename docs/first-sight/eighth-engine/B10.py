"""A request stops at token 0, which the model draws first.

Params: it ends as soon as the generated tokens end with one of its stops, which stays in the output.
"""

import sys

import jax.numpy as jnp
from attrs import frozen

from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import FinishReason, Geometry, Params, Request, default_limits


@frozen
class Zeros(IntegerModel):
    """A model that draws token 0, its end of text."""

    def sample(self, params, rows, seeds, choices, positions, temperatures):
        return jnp.zeros(rows.shape, jnp.int32), jnp.zeros(rows.shape, jnp.float32)


geometry = Geometry(pages=4, page_size=4, slots=1, pages_per_seq=2)
host = Host(Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=Zeros())))
params = Params(max_new=5, stops=((0,),))
output = host.generate([Request(id=1, prompt=(5, 6), params=params)])[1, 0]
print(output)
sys.exit((output.tokens, output.reason) != ((0,), FinishReason.STOP))
