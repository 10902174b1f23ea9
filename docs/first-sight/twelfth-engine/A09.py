"""Cells that were taken ahead are given back in part. By hand: pages of 4; 5 prompt cells are
written, 10 are allocated (3 pages); 6 cells stay (2 pages), and position 6 is the next one."""
from common import Params, check, engine, why

e = engine(6, 4, 2, 4)
e.reserve()
e.assign(0, (1, 2, 3, 4, 5), Params(max_new=6), request=1)
e.allocate([(0, p) for p in range(10)])
e.write([(0, p) for p in range(5)])
check(e.stats().pages_in_use, 3, "pages of 10 cells")
check(why(e.truncate, 0, 6), None, "truncation to 6 of 10 allocated cells, 5 of them written")
check(e.stats().pages_in_use, 2, "pages of 6 cells")
check(why(e.allocate, [(0, 6)]), None, "position 6 is the next one")
