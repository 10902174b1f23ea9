"""Two engines of one process that differ only in their cleanup mode.

Each prefills a request of max_new 1, which finishes at once. INCREMENTAL frees its slot: 0 in use.
NONE never frees: 1 in use, with the 1 page of its prompt.
"""
from common import *

first = engine(8, 4, 2, 2, cleanup=CleanupMode.INCREMENTAL)
first.prefill([req(1, (1, 2), 1)])
check(first.stats().active, 0, "slots in use with cleanup INCREMENTAL")
second = engine(8, 4, 2, 2, cleanup=CleanupMode.NONE)
second.prefill([req(1, (1, 2), 1)])
check(second.stats().active, 1, "slots in use with cleanup NONE")
check(second.stats().pages_in_use, 1, "pages in use with cleanup NONE")
