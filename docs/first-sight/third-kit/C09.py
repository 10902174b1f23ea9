"""The edge from sharing to pages compares the sequences and all their cells, those of a partial last
page too. A machine whose clone takes a page and does not copy the partial last page into it is
another machine, and `climb` must raise LadderBroken for this clone.
"""
from common import *
from spec.machines import sharing
from spec.rung import LadderBroken, closure

def copies_nothing(machine, state, action, pages):
    after = right.effect(machine, state, action, pages)
    return after._replace(cells=state.cells)

right = sharing.RUNG.rules[act.Clone]
wrong = evolve(sharing.RUNG, rules={act.Clone: evolve(right, effect=copies_nothing)})
registry = tuple(wrong if one is sharing.RUNG else one for one in ladder.RUNGS)

def climbed(machine):
    _, s = start(machine=machine)
    s = run(machine, s, act.Reserve(0), act.Append(0, (1, 2, 3)), *written(0, 3))
    try:
        machine.climb(s, act.Clone(0))
    except LadderBroken:
        return "LadderBroken"
    return "done"

seen("the right machine", climbed(ladder.machine("sharing")), "done")
seen("the wrong machine", climbed(closure(("sharing",), registry)), "LadderBroken")
