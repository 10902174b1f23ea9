from common import *
# A written prompt of 3 tokens is committed to 3; a commit needs committed < n, so 3 is refused.
m, s = start()
s = run(m, s, act.Reserve(0), act.Assign(0, (1, 2, 3), Params(max_new=4), 1), *written(0, 3))
seen("committed", s.committed[0], 3)
seen("Commit(0, 3)", reasons(m, s, act.Commit(0, 3)), {"COMMITTED"})
