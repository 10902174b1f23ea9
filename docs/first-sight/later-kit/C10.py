"""Machine.climb takes a step and checks the equation for every edge on the way down."""
from common import *
from spec.rung import LadderBroken, Machine
base = ladder.machine("lifecycle")
def broken(rung):
    """The rung sharing, whose clone copies no cell of the partial last page."""
    if rung.name != "sharing": return rung
    right = rung.rules[act.Clone]
    wrong = lambda m, s, a, p: right.effect(m, s, a, p)._replace(cells=s.cells)
    return evolve(rung, rules={**rung.rules, act.Clone: evolve(right, effect=wrong)})
m = Machine(tuple(map(broken, base.rungs)), ladder.RUNGS)
s = m.initial(geometry(), default_limits(geometry()))
s = run(m, s, act.Reserve(0), act.Assign(0, (5, 6, 7), Params(max_new=2), 1), *written(0, 3))
# By hand: 3 cells are 2 pages of 2; the second is partial and copied. Its copy has POISON where the private copy of
# the machine below has the tag (5, 6, 7): the edge sharing to pages is broken, and it is on the way down.
seen("edges", m.edges, ("lifecycle to sharing", "sharing to pages", "pages to cache", "cache to naive"))
try:
    m.climb(s, act.Clone(0, None, 1)); found = "nothing"
except LadderBroken as error:
    found = str(error).partition(" on ")[0]
seen("broken edge", found, "sharing to pages")
