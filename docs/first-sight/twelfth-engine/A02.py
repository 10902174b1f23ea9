"""A truncation to more than the allocated cells is refused, though drafts without cells reach there."""
from common import *

e = engine(8, 4, 3, 4)
e.prefill([req(1, (1, 2, 3, 4), 8)])  # 4 cells in 1 page; token 5 is drawn and waits
e.propose(0, (11, 12, 13))  # known 5, drafts at positions 5, 6, 7; no cell past position 3
before = e.extract()
check(before.slots.allocated[0].item(), 4, "allocated after the prefill")
check(why(e.truncate, 0, 6), "TOO_LONG", "truncate to 6 with 4 cells")
after = e.extract()
check(after.slots.allocated[0].item(), 4, "allocated after the refusal")
check(after.slots.proposed[0].item(), 3, "drafts after the refusal")
check(e.pack()[1:], ((11, 0, 5), (12, 0, 6)), "the drafts are packed after the pending token")
e.allocate([(0, 4), (0, 5)])
check(e.stats().pages_in_use, 2, "positions 4 and 5 begin a page")
