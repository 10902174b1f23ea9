"""A reset forgets the capacity policy.

docs/lifecycle.md, "Reset": afterwards the machine cannot be distinguished from a new one (clause
RESET), and the policy is a part of the configuration, "which no action changes" (spec.state). With
lazy copies a clone of six tokens in pages of four shares both pages: rows (0, 1) and (0, 1). After
a reset the same steps give the same rows.
"""

from common_c import go, ladder, report, start

from spec.machines.actions import Allocate, Assign, Clone, Reserve, Reset, Write
from spec.vocabulary import Capacity, Geometry, Params

geometry = Geometry(pages=6, page_size=4, slots=2, pages_per_seq=3)
machine = ladder.machine("lifecycle")
new = start(machine, geometry, capacity=Capacity(copy="lazy"))
six = tuple((0, position) for position in range(6))
steps = (
    Reserve(0),
    Assign(0, (1, 2, 3, 4, 5, 6), Params(max_new=3), request=1),
    Allocate(six),
    Write(six),
    Clone(0, 1, 1),
)


def rows(state):
    return [sequence.row for sequence in state.sequences]


once = go(machine, new, *steps)
reset = go(machine, once, Reset())
report(
    ("rows", [(0, 1), (0, 1)], rows(once)),
    ("a reset state is a new one", True, reset == new),
    ("rows after a reset", [(0, 1), (0, 1)], rows(go(machine, reset, *steps))),
)
