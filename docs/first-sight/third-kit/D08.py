"""Two states have the same key exactly if they differ in page ids alone. A parent and a clone that
share a full page are another state than two sequences with the same text in pages of their own: no
renaming of pages makes one page two.
"""
from common import *
from conformance.exploration.renaming import key

m, s = start(machine=ladder.machine("lifecycle"))
params = Params(max_new=1)
first = (act.Reserve(0), act.Assign(0, (5, 6), params, 1, 0), *written(0, 2))
shared = run(m, s, *first, act.Clone(0, 1, 1))
alone = run(m, s, *first, act.Reserve(1), act.Assign(1, (5, 6), params, 1, 1), *written(1, 2))
# the same as `alone`, with the pages the other way round
moved = run(m, s, act.Reserve(1), act.Assign(1, (5, 6), params, 1, 1), *written(1, 2), *first)
rows = [tuple(one.row for one in state.sequences[:2]) for state in (shared, alone, moved)]
seen("the rows", rows, [((0,), (0,)), ((0,), (1,)), ((1,), (0,))])
seen("equal keys, without and with sharing",
     (key(m, alone) == key(m, moved), key(m, alone) == key(m, shared)), (True, False))
