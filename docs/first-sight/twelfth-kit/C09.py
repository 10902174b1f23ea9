"""A row covers the cells taken ahead, but none past `max_len`: here 4 pages of 2 cells."""
from common import *

m, s = start(geometry(pages=6), capacity=Capacity(lookahead=3))
s = run(m, s, act.Reserve(0), act.Assign(0, (1, 2, 3, 4, 5, 6), Params(max_new=2), 1))
pages = []
for n in range(1, 8):
    s = run(m, s, act.Allocate(((0, n - 1),)))
    pages.append(len(s.sequences[0].row))
# ceil((n + 3) / 2) pages, at most 4
seen("pages with 1 to 7 cells", pages, [min(-(-(n + 3) // 2), 4) for n in range(1, 8)])
seen("free pages", s.counts.count(0), 2)
# The worst case of a request of 8 tokens is a whole row of 4 pages, of a pool of 4.
m, s = start(geometry(pages=4), capacity=Capacity(lookahead=1))
seen("Submit", reasons(m, s, act.Submit(Request(id=1, prompt=(1, 2), params=Params(max_new=6)))), set())
