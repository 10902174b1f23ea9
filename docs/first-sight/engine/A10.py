from common import *
# "(slot, position) pairs in any order": 2, 0, 1 are the next positions of slot 0.
e = engine(8, 4, 4, 2)
e.reserve(0)
e.assign(0, (1, 2, 3), Params(max_new=2), request=1)
check(why(e.allocate, [(0, 2), (0, 0), (0, 1)]), None, "allocation of positions in another order")
check(e.stats().pages_in_use, 1, "pages in use")
