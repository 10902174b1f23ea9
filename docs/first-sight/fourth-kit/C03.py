"""A truncation gives back pages that are reserved for the request.

docs/pages.md, "Pages reserved with a prompt": "A truncation and a release of the window keep what
is reserved; the end of the sequence releases it." A prompt of 5 tokens and `max_new` 7 reserve 12
cells, which are 3 pages of 4: row (0, 1, 2). A truncation to 5 cells, after two more had been
allocated, leaves this row as it is, so 7 of 10 pages stay free.
"""

from common_c import ladder, report, start

from spec import clauses, pool, view
from spec.machines.actions import Allocate, Assign, Reserve, Truncate, Write
from spec.vocabulary import Capacity, Geometry, Params

geometry = Geometry(pages=10, page_size=4, slots=4, pages_per_seq=4)
machine = ladder.machine("lifecycle", "rollback")
state = start(machine, geometry, capacity=Capacity(reserve="request"))
five = tuple((0, position) for position in range(5))
for action in (
    Reserve(0),
    Assign(0, (1, 2, 3, 4, 5), Params(max_new=7), request=1),
    Allocate(five),
    Write(five),
    Allocate(((0, 5), (0, 6))),
    Truncate(0, 5),
):
    state = machine.climb(state, action)
report(
    ("row", (0, 1, 2), state.sequences[0].row),
    ("reserved cells", 12, state.sequences[0].reserved),
    ("free pages", 7, pool.free_count(state.counts)),
    ("violations", [], list(clauses.violations(view.of(machine, state)))),
)
