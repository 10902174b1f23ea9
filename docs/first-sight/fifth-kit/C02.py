"""With lazy copies a clone shares the pages that its parent has taken ahead, without written cells.

docs/adapters.md: "a clone takes pages ahead of its own, with lazy copies too: it shares no page
without written cells"; docs/pages.md says the same. Pages of four, lookahead 4, four cells written:
the row of slot 0 is (0, 1), of which page 0 is full and page 1 taken ahead. The child shares page 0
alone and takes page 2: row (0, 2), counts 2, 1, 1.
"""

from common_c import go, judge

from spec import ladder
from spec.machines.actions import Allocate, Append, Clone, Reserve, Write
from spec.vocabulary import Capacity, Geometry, default_limits

machine = ladder.machine("sharing")
geometry = Geometry(pages=6, page_size=4, slots=2, pages_per_seq=3)
four = tuple((0, position) for position in range(4))
new = machine.initial(
    geometry, default_limits(geometry), capacity=Capacity(copy="lazy", lookahead=4)
)
parent = go(machine, new, Reserve(0), Append(0, (1, 2, 3, 4)), Allocate(four), Write(four))
twins = go(machine, parent, Clone(0, 1))
judge(
    ("row of the parent", (0, 1), twins.sequences[0].row),
    ("row of the clone", (0, 2), twins.sequences[1].row),
    ("counts", (2, 1, 1, 0, 0, 0), twins.counts),
    ("pages that the clone wants", 1, machine.pages_wanted(parent, Clone(0, 1))),
)
