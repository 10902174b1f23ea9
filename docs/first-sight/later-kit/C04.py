"""Truncate cuts off cells and proposed tokens from `length` on, and the queued tokens of these."""
from common import *
m, s = start()
s = run(m, s, act.Prefill((Request(id=1, prompt=(5, 6), params=Params(max_new=6)),)), act.Propose(0, (4, 7)))
# By hand: 2 cells are allocated; known are 5, 6 and the drawn token, at 2; the drafts are at 3 and 4, without cells.
seen("before", (s.sequences[0].allocated, s.proposed[0], [q.position for q in s.queue]), (2, (4, 7), [2, 3, 4]))
s = run(m, s, act.Truncate(0, 2))
# The length is 2: no cell is cut off, but the drafts at 3 and 4 are. The known token at 2 stays queued.
seen("after", (s.sequences[0].allocated, s.proposed[0], [q.position for q in s.queue]), (2, (), [2]))
