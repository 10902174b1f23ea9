"""The bound of a result in float16 covers its underflow: a flush to zero below 2**-14.

One sequence of one query and one cell: V is 2**-15, so the exact answer is 2**-15. That is below
2**-14, the smallest normal number of float16, and a kernel that flushes such results to zero
returns 0, which is off by 2**-15. docs/attention.md (the cast to the result, step 6) and the
docstring of `error_bound` (result: the dtype of its output) allow it: the bound has t of the
result, 2**-14, and so is at least 2**-15. With result=float32 the bound is far smaller than 2**-15.
"""

import sys

import numpy as np

from conformance.numerics.oracle import error_bound

q = np.zeros((1, 1, 1), np.float32)
pool = np.zeros((1, 1, 2, 1), np.float32)
pool[0, 0, 1, 0] = 2.0**-15
args = (q, pool, np.array([1]), np.array([[0]]), np.array([0, 1]), np.array([1]))
narrow = float(error_bound(*args, result=np.float16)[0, 0, 0])
wide = float(error_bound(*args, result=np.float32)[0, 0, 0])
print(narrow, wide, 2.0**-15)
sys.exit(0 if narrow >= 2.0**-15 > wide else 1)
