"""pages.md: "Any free page is legal. The caller may choose". Assign with a reservation takes pages, in the order given."""
from common import *
from spec.machines.actions import *
m, s = start(geometry(pages=10, page_size=4, pages_per_seq=4), ladder.machine("lifecycle"), capacity=Capacity(reserve="request"))
s = run(m, s, Reserve(0))
a = Assign(0, (1, 2, 3, 4, 5), Params(max_new=7), 1)  # 12 cells, 3 pages
seen("pages wanted", m.pages_wanted(s, a), 3)
s = m.step(s, a, pages=(5, 2, 7))
seen("row", s.sequences[0].row, (5, 2, 7))
seen("counts", s.counts, (0, 0, 1, 0, 0, 1, 0, 1, 0, 0))
try:
    m.step(run(m, s, Reserve(1)), Assign(1, (1,), Params(max_new=3), 2), pages=(5,))
except InvalidInput:
    sys.exit(0)
print("page 5, which is in use, was accepted"); sys.exit(1)
