"""The error bound of a query with a window counts the steps over the whole sequence.

docs/attention.md: the kernel takes C cells a step, in N = ceil(kv_len / C) steps, and N enters X, A, Z
and Y. One query at the end of 64 cells with a window of 4, C = 4, K = 0 and V = 1: n = 4, N = 16,
A = min(C, n) - 1 + N = 19, Z = (A + N - 1) k = 34 k, Y = Z + k, and the scores are 0, so that X = N e'.
All p_j are equal and v_j = o = 1, so E = (e^X (expm1(Y) + expm1(Z)) + underflow) / (1 - expm1(X + Z) -
underflow), and the result is (E + 1) expm1(2 k) + E: about 71 roundings of float32. With N = 1, from the
cells that the window leaves, it would be about 11.
"""

import math

import numpy as np

from common_d import compare
from conformance.numerics.oracle import error_bound

cells, window, block, page_size = 64, 4, 4, 8
q = np.zeros((1, 1, 1), np.float32)
pool = np.zeros((cells // page_size, page_size, 2, 1), np.float32)
pool[:, :, 1] = 1.0
found = error_bound(
    q, pool, np.array([cells], np.int32), np.arange(cells // page_size, dtype=np.int32)[None],
    np.array([0, 1], np.int32), np.array([1], np.int32),
    sliding_window=window, block_cells=block, result=np.float32,
)[0, 0, 0]

u = 2.0**-24
k, e = u / (1 - u), 8 * u / (1 - 8 * u)
steps = -(-cells // block)
additions = min(block, window) - 1 + steps
x, z = steps * e, (additions + steps - 1) * k
mean = math.exp(x) * (math.expm1(z + k) + math.expm1(z)) / (1 - math.expm1(x + z))
expected = mean + (mean + 1) * math.expm1(2 * k)
compare("the bound in roundings of float32", round(expected / u, 2), round(float(found) / u, 2))
