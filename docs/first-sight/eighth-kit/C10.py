from common import *
from spec.machines import window
from spec.machines.pages import SLOT_IN_USE
from spec.rung import LadderBroken, Machine
# Window 3, pages of 2, five committed cells: the next query, at 5, sees 3, 4 and 5. A release before
# 4 gives back page 1, which holds 2 and 3. A machine that does not refuse it must break the edge.
right = ladder.machine("window")
rule = evolve(window.RUNG.rules[act.Release], stages=SLOT_IN_USE)
wrong = Machine((*right.rungs[:-1], evolve(window.RUNG, rules={act.Release: rule})), right.registry)
g = geometry(window=3, pages_per_seq=6)
s = right.initial(g, default_limits(g))
s = run(right, s, act.Reserve(0), act.Append(0, (1, 2, 3, 4, 5)), *written(0, 5))
seen("what the right machine says", reasons(right, s, act.Release(0, 4)), {"WINDOW"})
seen("a right release", wrong.climb(s, act.Release(0, 3)).first_page[0], 1)
try:
    wrong.climb(s, act.Release(0, 4)); found = "climbed"
except LadderBroken:
    found = "broken"
seen("a release of a page that a query sees", found, "broken")
