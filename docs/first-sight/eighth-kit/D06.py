"""The probabilistic bound of a kernel that takes all 64 cells in one step.

docs/probabilistic-bound.md: at most N - 1 cells rescale, and N is 1 here, so R = 0. With one query
element, all keys 0, and values of 1 and then -1: p = 1/64, o = 0, m = g = s = 0, A = 64 and
    V^2 = kappa^2 (64 * 64 / 64^2 + 64 / 64^2 + 64) = 65.016 kappa^2,   lambda = sqrt(2 ln 2e9) = 6.545
which makes 52.8 unit roundoffs; everything else is far below one of them.
"""

import sys

import numpy as np

from conformance.numerics.probabilistic_bound import probable_bound

values = np.repeat([1.0, -1.0], 32)
pool = np.zeros((1, 64, 2, 1), np.float32)
pool[0, :, 1, 0] = values
q = np.ones((1, 1, 1), np.float32)
ints = ([64], [[0]], [0, 1], [1])
arrays = (q, pool, *(np.array(one, np.int32) for one in ints))
units = float(probable_bound(*arrays, block_cells=64)[0, 0, 0]) * 2**24
print(f"{units:.2f} unit roundoffs, should be 52.8")
sys.exit(not 52.0 < units < 54.0)
