"""PHYSICAL reset of a Llama engine: the docstrings say that it zeroes the pool, every byte of it."""
import sys

import jax
import numpy as np

from impl.engine import Engine
from impl.models.llama import Llama
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, ResetMode, default_limits

geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
model = Llama(vocabulary=64, layers=1, embed=16, q_heads=4, kv_heads=2, head_dim=8, mlp=32)
setup = Setup(geometry=geometry, limits=default_limits(geometry), model=model)
engine = Engine(setup, model.init(jax.random.key(0)))
engine.prefill([Request(id=1, prompt=(3, 30, 5, 7, 11), params=Params(max_new=3))])
# as after a step that had overflowed: an infinity in a cell of page 0
state = engine.extract()
pools = tuple(np.array(pool) for pool in state.pages.cache)
pools[0][0, 0, 0, 0] = np.inf
engine.inject(state._replace(pages=state.pages._replace(cache=pools)))
engine.reset(ResetMode.PHYSICAL)
left = [pool for pool in engine.extract().pages.cache if np.asarray(pool).tobytes().strip(b"\0")]
wrong = sum(int((~(np.asarray(pool) == 0)).sum()) for pool in left)
print(f"{len(left)} pools with bytes that are not 0, {wrong} numbers that are not 0")
sys.exit(bool(left))
