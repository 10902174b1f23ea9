from common import *
# Prompt 3 and 3 new: 6 cells reserved. Allocated 3, 2 ahead: 5. The row covers 6 cells, 3 pages of 2.
c = Capacity(reserve="request", lookahead=2)
g = geometry(pages=20, pages_per_seq=8)
seen("row_pages", c.row_pages(g, 3, 6), 3)
m, s = start(g, ladder.machine("lifecycle"), capacity=c)
s = run(m, s, act.Reserve(0), act.Assign(0, (1, 2, 3), Params(max_new=3), 1), *written(0, 3))
seen("row", len(s.sequences[0].row), 3)
