"""A window of w sees one position too many: a query sees w positions before its own, not w - 1.

docs/window.md: with a window of w positions a query sees its own and the w - 1 before it. With w = 3
the query at 5 sees 3, 4 and 5. So cells 0, 1 and 2 may go, Release(0, 3) is done, and first_page is 1
with pages of two.
A window of 1 is the query alone.
"""

from common_c import go, judge, reasons

from spec import ladder
from spec.attention import visible
from spec.machines.actions import Prefill, Release
from spec.vocabulary import Geometry, Params, Request, default_limits

machine = ladder.machine("scheduling", "window")
geometry = Geometry(pages=8, page_size=2, slots=2, pages_per_seq=6, window=3)
request = Request(id=1, prompt=(1, 2, 3, 4, 5), params=Params(max_new=6))
state = go(machine, machine.initial(geometry, default_limits(geometry)), Prefill((request,)))
judge(
    ("a query at 5 with a window of 3 sees", [3, 4, 5], list(visible(5, 6, 3))),
    ("a query with a window of 1 sees", [4], list(visible(4, 5, 1))),
    ("Release(0, 3) at committed 5 is refused for", [], reasons(machine, state, Release(0, 3))),
)
