from common import *
import numpy as np
from conformance.kernels.appending import Task, wrong
# Two pages of one cell. The kernel was to append in page 0, and moved other NaN bits over the dead cell of page 1.
bits = np.array([0x3F800000, 0x7FC00001], np.uint32).reshape(2, 1, 1, 1)
right = bits.view(np.float32); task = Task(None, {}, right, frozenset({(0, 0)}))
moved = np.array([0x3F800000, 0x7FC00002], np.uint32).reshape(2, 1, 1, 1).view(np.float32)
seen("the right pool", wrong(task, right.copy()), [])
seen("other NaN bits in a dead cell", wrong(task, moved), ["overwritten"])
