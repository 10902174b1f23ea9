"""A physical reset leaves a pool with every byte zero, whatever floats were in it."""
import sys

import numpy as np

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Refused, ResetMode, default_limits


import jax

from impl.models.llama import Llama

geometry = Geometry(pages=4, page_size=4, slots=2, pages_per_seq=2)
model = Llama(vocabulary=64, layers=1, embed=16, q_heads=4, kv_heads=2, head_dim=8, mlp=32)
engine = Engine(
    Setup(geometry=geometry, limits=default_limits(geometry), model=model),
    model.init(jax.random.key(0)),
)
state = engine.extract()
pools = tuple(np.full_like(pool, np.nan) for pool in state.pages.cache)
engine.inject(state._replace(pages=state.pages._replace(cache=pools)))
engine.reset(ResetMode.PHYSICAL)
nan = [any(pool.tobytes()) for pool in engine.extract().pages.cache]

engine.reserve(0)  # and without NaN: cells of a prompt, some of which are negative
engine.assign(0, (3, 30, 5, 7), Params(max_new=1), request=1)
engine.allocate([(0, at) for at in range(4)])
engine.write([(0, at) for at in range(4)])
engine.reset(ResetMode.PHYSICAL)
written = [any(pool.tobytes()) for pool in engine.extract().pages.cache]
print("bytes are left of NaN:", nan, "of written cells:", written)
sys.exit(1 if any(nan + written) else 0)
