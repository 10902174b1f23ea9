"""A batch may name every slot, however few prompts one prefill may have.

limits.prefill_seqs is 1: that is a limit of Prefill. The batch below has 2 entries, of at most 8
(prefill_tokens), each the first position of its slot. So each slot gets one cell, and page 0 and 1.
"""
from common import *

e = engine(8, 4, 2, 2, prefill_seqs=1)
e.reserve(0)
e.reserve(1)
check(why(e.allocate, [(0, 0), (1, 0)]), None, "the batch")
held = e.extract()
check(held.slots.allocated.tolist(), [1, 1], "allocated cells")
check(held.pages.rows[:, 0].tolist(), [0, 1], "first pages")
