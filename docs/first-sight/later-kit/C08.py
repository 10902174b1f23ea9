"""The statistic `pages_per_slot`: the length of each row, that is the pages in it, whatever it has them for."""
from common import *
from spec import stats
# By hand: pages of 2 cells; 2 + 3 = 5 reserved cells are 3 pages, and no cell is allocated yet.
m, s = start(capacity=Capacity(reserve="request"))
s = run(m, s, act.Reserve(1), act.Assign(1, (5, 6), Params(max_new=3), 1))
seen("reserved", (stats.of(s).pages_in_use, stats.of(s).pages_per_slot), (3, (0, 3, 0, 0)))
# 2 cells allocated and 3 taken ahead: ceil(5 / 2) = 3 pages.
m, s = start(capacity=Capacity(lookahead=3))
s = run(m, s, act.Reserve(0), act.Assign(0, (5, 6), Params(max_new=3), 1), *written(0, 2))
seen("ahead", (stats.of(s).pages_in_use, stats.of(s).pages_per_slot), (3, (3, 0, 0, 0)))
# A window of 1: 4 cells written are 2 pages, of which the first is released (before 2 <= 4 - 1 + 1). 1 is left.
m, s = start(geometry(window=1), ladder.whole())
s = run(m, s, act.Reserve(0), act.Assign(0, (5, 6, 7, 8), Params(max_new=3), 1), *written(0, 4), act.Release(0, 2))
seen("released", (stats.of(s).pages_in_use, stats.of(s).pages_per_slot), (1, (1, 0, 0, 0)))
