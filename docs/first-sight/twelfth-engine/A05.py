"""A clone needs every allocated cell written, and not the whole prompt."""
from common import *

e = engine(8, 4, 4, 3)
e.reserve(0)
e.assign(0, (1, 2, 3, 4, 5, 6), Params(max_new=4), request=1, choice=0)
check(why(e.clone, 0, choice=1), None, "clone before any cell is allocated")
e.allocate([(0, p) for p in range(4)])
check(why(e.clone, 0, choice=2), "UNWRITTEN", "clone with 4 cells allocated and none written")
e.write([(0, p) for p in range(4)])  # the first chunk of the prompt
check(why(e.clone, 0, choice=2), None, "clone after the first chunk of the prompt")
s = e.extract()
check(s.slots.written.tolist(), [4, 0, 4, 0], "written cells of parent and clones")
check(s.pages.rows[:3, 0].tolist(), [0, 2**31 - 1, 0], "the full page is shared")
