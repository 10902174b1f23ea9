from common import *
# 4 tokens fill both pages of the pool; a clone shares both and needs no page.
e = engine(2, 2, 2, 4)
e.prefill([req(1, (1, 2, 3, 4), 4)])
check(e.stats().free_pages, 0, "free pages")
check(why(e.clone, 0, choice=1), None, "clone that needs no page, no page free")
check(e.stats().largest_count, 2, "largest count")
