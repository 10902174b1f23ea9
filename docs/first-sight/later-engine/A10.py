"""`order` of a plan: for each token in plan order, its index in the caller's batch.

Caller's batch: index 0 is (1, 0), 1 is (0, 0), 2 is (0, 1), 3 is padding (the width is 4).
Plan order is by slot, then position, padding last: (0, 0), (0, 1), (1, 0), padding.
Their indices in the caller's batch: 1, 2, 0, 3. (The inverse permutation would be 2, 0, 1, 3.)
"""
from common import *

e = engine(8, 4, 2, 2, prefill_tokens=4)
e.reserve(0)
e.reserve(1)
plan = e.allocate([(1, 0), (0, 0), (0, 1)])
check(plan.order.tolist(), [1, 2, 0, 3], "the order of the plan")
