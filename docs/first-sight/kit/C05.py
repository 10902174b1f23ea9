from common import *
# Pages of 2. Request 1: 3 + 3 tokens, 2 choices: 1 + 2 * (3 - 1) = 5 of 8 pages reserved until both choices are gone.
m, s = start()
s = run(m, s, act.Submit(Request(id=1, prompt=(1, 2, 3), params=Params(max_new=3), n_generations=2)), act.Admit(), act.Free(1))
seen("admitted while choice 0 decodes", [r.id for r in s.admitted], [1])
# Request 2 needs 4 pages; 3 are unreserved.
s = run(m, s, act.Submit(Request(id=2, prompt=(1, 2, 3, 4), params=Params(max_new=4))))
seen("Admit", reasons(m, s, act.Admit()), {"OUT_OF_PAGES"})
