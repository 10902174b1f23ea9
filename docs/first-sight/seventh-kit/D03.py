"""The probabilistic bound holds with probability 1 - failure for all elements of a batch together
(lambda = sqrt(2 ln(2 n / failure)), n the elements of q). So the same query and head has a larger
bound in a batch of 64 equal heads than in one of a single head."""
import sys
import numpy as np
from conformance.numerics.oracle import error_bound
from conformance.numerics.probabilistic_bound import probable_bound

cells, width = 256, 4
draws = np.random.default_rng(0)
pool = draws.normal(size=(cells, 1, 2, width)).astype(np.float32)
query = draws.normal(size=(1, 1, width)).astype(np.float32)
rest = (np.array([cells]), np.arange(cells)[None], np.array([0, 1]), np.array([1]))


def bound(heads, of=probable_bound):
    return of(np.repeat(query, heads, axis=1), pool, *rest, block_cells=1)[0, 0]


one, many, certain = bound(1), bound(64), bound(1, error_bound)
print(one, many, certain)
assert (many < certain).all()
sys.exit(int(not (many > one).all()))
