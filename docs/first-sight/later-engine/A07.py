"""A clone whose copy of the last page is page 0 has the cells of its parent.

Requests 8 and 2 are prefilled in slots 0 and 1: prompts (9, 9) and (1, 2), pages 0 and 1. Slot 0 is
freed, so page 0 is the lowest free page, with old cells of (9, 9). The clone of slot 1 copies its
partial page 1 to page 0. Both are greedy with the same tokens and cells, so both end, at max_new 5,
with the same tokens, which are those of the request served alone.
"""
from common import *

e = engine(8, 4, 3, 2)
e.prefill([req(8, (9, 9), 5), req(2, (1, 2), 5)])
e.free(0)
check(e.clone(1, choice=1), 0, "the slot of the child")
check(int(e.extract().pages.rows[0, 0]), 0, "the page of the child")
e.generate()
outputs = {one.choice: one.tokens for one in e.take_outputs()}
((_, alone),) = Host(engine(8, 4, 3, 2)).generate([req(2, (1, 2), 5)]).items()
check(outputs[0], alone.tokens, "tokens of the parent")
check(outputs[1], alone.tokens, "tokens of the child")
