"""`order` of a batch plan has, for each planned token, its index in the batch of the caller, in which
padding counts. Here the tokens of positions 0 and 1 are entries 3 and 1 of that batch.
"""
from common import *
from spec import table

batch = (None, (0, 1), None, (0, 0))
m, s = start()
s = run(m, s, act.Reserve(0), act.Allocate(batch))
plan = table.plan(s.sequences, batch, page_size=2)
seen("destinations", plan.destinations, (0, 1))
seen("order", plan.order, (3, 1))

e = engine()
e.reserve(0)
e.assign(0, (5, 6), Params(max_new=2), request=1)
plan = e.allocate(batch)
seen("destinations of the engine", plan.destinations[:2].tolist(), [0, 1])
seen("order of the engine", plan.order[:2].tolist(), [3, 1])
