"""A query that sees no cell has the answer 0, and must have exactly that: its bound is 0. So any
other answer in its row is beyond the bound, and the share of the bound is infinite; an answer of 0
there, and an error of half of the bound elsewhere, is a share of 0.5.
"""
import math

import numpy as np

from common import *
from conformance.kernels.answers import Right

bound = np.array([[[0.0, 0.0]], [[0.25, 0.25]]])  # row 0 sees nothing
right = Right(answer=np.array([[[0.0, 0.0]], [[1.0, 2.0]]]), bound=bound, likely=bound)
good = np.array([[[0.0, 0.0]], [[1.125, 2.0]]])
wrong = np.array([[[3.0, 0.0]], [[1.0, 2.0]]])
found = right.ratio(good, rows=2), right.ratio(wrong, rows=2), right.looseness(wrong, rows=2)
seen("the shares of the bound", found, (0.5, math.inf, math.inf))
