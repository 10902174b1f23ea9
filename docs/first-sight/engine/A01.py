from common import *
# Prompt of 3 in pages of 2: pages 0 and 1, the second half full. Two further choices copy the
# partial page: 2 + 2 = 4 pages, and the pool has 3.
e = engine(3, 2, 3, 4)
check(why(e.prefill, [req(1, (1, 2, 3), 4, n=3)]), "OUT_OF_PAGES", "prefill that needs 4 pages of 3")
