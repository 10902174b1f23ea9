from common import *
import numpy as np
from conformance.numerics.oracle import error_bound
# A sequence of 4 cells. Blocks of 4 and of 4096 cells both take it in one step with 3 additions: the same bound.
r = np.random.default_rng(0)
q = r.normal(size=(1, 1, 8)).astype(np.float32); kv = r.normal(size=(1, 4, 2, 8)).astype(np.float32)
given = (q, kv, np.array([4]), np.array([[0]]), np.array([0, 1]), np.array([1]))
four, wide = (error_bound(*given, block_cells=b) for b in (4, 4096))
seen("the widest bound over that of blocks of 4", round(float((wide / four).max()), 3), 1.0)
