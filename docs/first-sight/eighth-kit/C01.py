"""A request whose only choice ends in its own prefill holds no slot afterwards, so nothing of it is
reserved ("until none of its choices holds a slot") and its id is free once its output is taken."""
from common import *

m, s = start(geometry(pages=4, page_size=2, slots=2, pages_per_seq=4))
one = Request(id=1, prompt=(5, 6), params=Params(max_new=1))  # pages_needed: ceil(3 / 2) = 2
big = Request(id=2, prompt=(7, 8), params=Params(max_new=6))  # ceil(8 / 2) = 4: the whole pool
s = run(m, s, act.Submit(one), act.Admit(), act.TakeOutputs())
seen("slots in use", [q is not None for q in s.sequences], [False, False])
seen("submit of the id again", reasons(m, s, act.Submit(one)), set())
s = run(m, s, act.Submit(big))
seen("admission to an empty engine", reasons(m, s, act.Admit()), set())
