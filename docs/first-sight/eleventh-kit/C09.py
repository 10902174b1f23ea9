"""reserve="request": 5 tokens and 7 more are 3 pages of 4. The child shares the full page 0 and takes 2 of its own."""
from common import *
g = geometry(pages=10, page_size=4, slots=4, pages_per_seq=4)
m, s = start(g, ladder.machine("admission"), capacity=Capacity(reserve="request"))
s = run(m, s, act.Reserve(0), act.Assign(0, (1, 2, 3, 4, 5), Params(max_new=7), 1), *written(0, 5))
seen("row of the parent", s.sequences[0].row, (0, 1, 2))
clone = act.Clone(0, 1, 1)
seen("pages that the clone takes", m.pages_wanted(s, clone), 2)
s = run(m, s, clone)
seen("row of the child", s.sequences[1].row, (0, 3, 4))
seen("free pages", s.counts.count(0), 5)
