"""A token that is still queued cannot be written by hand, also if a later one is queued too.

The prefill of (1, 2) draws the token of position 2, which is queued; Enqueue adds one at 3. So the
queue has positions 2 and 3 of slot 0, and 2 cells are written. Both cells are allocated. A write
of position 2 names the next position, allocated and known, and its token is queued: BATCH_QUEUED.
"""
from common import *

e = engine(8, 4, 2, 2)
e.prefill([req(1, (1, 2), 6)])
e.enqueue(0, 9)
e.allocate([(0, 2), (0, 3)])
check(why(e.write, [(0, 2)]), "BATCH_QUEUED", "a write of the first of two queued tokens")
check(int(e.extract().slots.written[0]), 2, "written cells")
