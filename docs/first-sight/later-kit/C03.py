"""reserve="request": the row covers the prompt and its max_new tokens."""
from common import *
m, s = start(capacity=Capacity(reserve="request"))
s = run(m, s, act.Reserve(0), act.Assign(0, (5, 6), Params(max_new=3), 1))
# By hand: 2 + 3 = 5 cells, pages of 2 cells: 3 pages, lowest first.
seen("row", s.sequences[0].row, (0, 1, 2))
# And an even sum: 2 + 4 = 6 cells are 3 pages too.
s = run(m, s, act.Reserve(1), act.Assign(1, (5, 6), Params(max_new=4), 2))
seen("row", s.sequences[1].row, (3, 4, 5))
