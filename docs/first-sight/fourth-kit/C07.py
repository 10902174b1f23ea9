"""A second release that reaches less far lowers `first_page`, although the pages are gone.

docs/window.md: "`first_page` counts the pages of a slot that are released; their row entries are
INVALID". With pages of 2 and a window of 3, five committed cells allow Release(0, 3): page entry 0
goes, and `first_page` is 1. Release(0, 1) is legal (WINDOW asks only whether `before` is too high)
and finds nothing to release, so one page is still the number of released ones, and no clause is
violated.
"""

from common_c import go, ladder, report, start, why

from spec import clauses, view
from spec.machines.actions import Prefill, Release
from spec.vocabulary import INVALID, Geometry, Params, Request

machine = ladder.machine("scheduling", "window")
geometry = Geometry(pages=8, page_size=2, slots=2, pages_per_seq=6, window=3)
request = Request(id=1, prompt=(1, 2, 3, 4, 5), params=Params(max_new=6))
state = go(machine, start(machine, geometry), Prefill((request,)), Release(0, 3))
assert state.first_page[0] == 1 and not why(machine, state, Release(0, 1))
state = machine.climb(state, Release(0, 1))
report(
    ("first_page", 1, state.first_page[0]),
    ("row", (INVALID, 1, 2), state.sequences[0].row),
    ("violations", [], [name for name, _ in clauses.violations(view.of(machine, state))]),
)
