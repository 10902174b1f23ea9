"""When a sequence is freed, every count of its pages falls by 1, and a page with count 0 is free
(docs/actions.md, "Free"): also a page of which no token is known yet.
"""
from common import check, engine
from spec.vocabulary import Params

e = engine(8, 4, 2, 4)
e.reserve(0)
e.assign(0, (1, 2, 3), Params(max_new=9), request=1)
e.allocate([(0, position) for position in range(3)])
e.free(0)
check(e.stats().free_pages, 8, "free pages after a sequence with one page")
e.reserve(0)
e.assign(0, (1, 2, 3), Params(max_new=9), request=1)
e.allocate([(0, position) for position in range(6)])  # pages 0 and 1; three tokens are known
e.free(0)
check(e.stats().free_pages, 8, "free pages after a sequence with two pages and three tokens")
