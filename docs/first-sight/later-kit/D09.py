"""error_bound: the dtype of the result is q's, if none is given."""
from common import *
import ml_dtypes, numpy as np
from conformance.numerics.oracle import error_bound, ragged_paged_attention
q = np.ones((1, 1, 1), ml_dtypes.bfloat16)
pool = np.array([1.0, 1.0 + 2.0**-8], np.float32).reshape(1, 1, 2, 1)  # K is 1, V is 1 + 2**-8
arrays = (q, pool, [1], [[0]], [0, 1], 1)
# By hand: one cell is visible, so the answer is its V, 1 + 2**-8 = 1.00390625. bfloat16 has 8 significant bits: next to
# 1 are 1 and 1 + 2**-7, and the answer lies half way. A correct kernel rounds it to either: an error of 2**-8.
seen("answer", float(ragged_paged_attention(*arrays)[0, 0, 0]), 1.00390625)
seen("a bfloat16 result within the bound", bool(error_bound(*arrays)[0, 0, 0] >= 2.0**-8), True)
seen("float32, if it is given", bool(error_bound(*arrays, result=np.float32)[0, 0, 0] < 2.0**-8), True)
