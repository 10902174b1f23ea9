"""Climbing with an action that the machine does and the machine below refuses."""
from common import *
from spec.machines import pages
from spec.rung import LadderBroken, closure
# A rung pages that lacks a check: a write of a cell whose token is not known is done. The cache
# below refuses it (BATCH_POSITIONS), so the edge does not hold: LadderBroken. Refused would say
# that the machine itself had refused it.
rule = pages.RUNG.rules[act.Write]
loose = evolve(pages.RUNG, rules={**pages.RUNG.rules, act.Write: evolve(rule, stages=rule.stages[:3])})
registry = tuple(loose if one.name == "pages" else one for one in ladder.RUNGS)
m, s = start(machine=closure(("pages",), registry))
two = ((0, 0), (0, 1))
s = run(m, s, act.Reserve(0), act.Append(0, (5,)), act.Allocate(two))
seen("what the machine refuses", reasons(m, s, act.Write(two)), set())
def climbed(m, action):
    try: m.climb(s, action)
    except (LadderBroken, Refused) as error: return type(error)
    return "done"
seen("a write of a known token", climbed(m, act.Write(two[:1])), "done")
seen("a write of an unknown token", climbed(m, act.Write(two)), LadderBroken)
right = ladder.machine("pages")
seen("the right rung refuses", issubclass(climbed(right, act.Write(two)), Refused), True)
