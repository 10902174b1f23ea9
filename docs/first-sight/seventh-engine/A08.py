"""A clone copies the partial last page: the child's cells are its parent's, whatever the page held.

docs/sharing.md, README: "the full page is shared, the other copied". The page of the copy was used
before by a sequence whose activations had overflowed (an infinity in its cell): that is a dead
cell, whose old contents do not matter (docs/pages.md).
"""
import sys

import jax
import numpy as np

from impl.engine import Engine
from impl.models.llama import Llama
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, default_limits

geometry = Geometry(pages=4, page_size=4, slots=2, pages_per_seq=2)
model = Llama(vocabulary=64, layers=1, embed=16, q_heads=4, kv_heads=2, head_dim=8, mlp=32)
setup = Setup(geometry=geometry, limits=default_limits(geometry), model=model)
WRONG = 0
for is_overflown in (False, True):
    engine = Engine(setup, model.init(jax.random.key(0)))
    for slot, prompt in ((0, (3, 30, 5)), (1, (9, 9, 41))):
        engine.reserve(slot)
        engine.assign(slot, prompt, Params(max_new=2), request=slot)
        engine.allocate([(slot, at) for at in range(3)])
        engine.write([(slot, at) for at in range(3)])
    engine.free(1)  # page 1 is free, and keeps its bytes
    if is_overflown:
        state = engine.extract()
        pools = tuple(np.array(pool) for pool in state.pages.cache)
        pools[0][1, 0, 0, 0] = np.inf
        engine.inject(state._replace(pages=state.pages._replace(cache=pools)))
    assert engine.clone(0, choice=1) == 1
    state = engine.extract()
    assert state.pages.rows.tolist()[1][0] == 1
    pool = np.asarray(state.pages.cache[0])
    same = np.array_equal(pool[0, :3], pool[1, :3])
    print("overflown" if is_overflown else "ordinary", "former occupant: the copy is", same)
    WRONG += not same
sys.exit(bool(WRONG))
