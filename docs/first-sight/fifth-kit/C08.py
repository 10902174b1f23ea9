"""A release up to an earlier position than before lowers first_page, though no page comes back.

docs/actions.md: `first_page` of a slot is how many of its leading pages are released, and Release with
`before` 0 is never refused for its window. Pages of two, window 3, five cells committed: Release(0, 3)
releases page 0, so that the row is (-, 1, 2) and first_page 1. Release(0, 0) releases no further page,
and what was released stays so: first_page is still 1, and the view violates no clause.
"""

from common_c import go, judge

from spec import clauses, ladder, view
from spec.machines.actions import Prefill, Release
from spec.vocabulary import INVALID, Geometry, Params, Request, default_limits

machine = ladder.machine("scheduling", "window")
geometry = Geometry(pages=8, page_size=2, slots=2, pages_per_seq=6, window=3)
request = Request(id=1, prompt=(1, 2, 3, 4, 5), params=Params(max_new=6))
new = machine.initial(geometry, default_limits(geometry))
state = go(machine, new, Prefill((request,)), Release(0, 3), Release(0, 0))
found = sorted({name for name, _ in clauses.violations(view.of(machine, state))})
judge(
    ("row", (INVALID, 1, 2), state.sequences[0].row),
    ("first_page", (1, 0), state.first_page),
    ("clauses violated", [], found),
)
