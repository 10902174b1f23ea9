"""A clone is refused (PROPOSED) as long as its parent has proposed tokens, whether or not any of them
has a cell: drafts are settled by Commit or Truncate before the sequence is copied.
"""
from common import *

params, cells = Params(max_new=5), ((0, 0), (0, 1))
m, s = start()
s = run(m, s, act.Reserve(0), act.Assign(0, (5, 6), params, 1), act.Allocate(cells), act.Write(cells))
seen("a clone without drafts is refused for", reasons(m, s, act.Clone(0, 1, 1)), set())
s = run(m, s, act.Propose(0, (7, 8)))
seen("a clone with drafts is refused for", reasons(m, s, act.Clone(0, 1, 1)), {"PROPOSED"})

e = engine()
e.reserve(0)
e.assign(0, (5, 6), params, request=1)
e.allocate(cells)
e.write(cells)
e.propose(0, (7, 8))
seen("the engine refuses it for", refused_for(e.clone, 0, 1, choice=1), {"PROPOSED"})
