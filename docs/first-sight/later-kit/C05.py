"""A request's worst case is the same with lazy copies: in the end each choice has its own partial page."""
from common import *
request = Request(id=1, prompt=(5, 6, 7), params=Params(max_new=2), n_generations=3)
# By hand: pages of 2 cells. floor(3/2) = 1 page is shared; ceil((3+2)/2) = 3 pages a row. 1 + 3 * (3 - 1) = 7 pages.
for copy in ("eager", "lazy"):
    seen(copy, request.pages_needed(geometry(), Capacity(copy=copy)), 7)
    for pages, why in ((6, {"NEVER_FITS"}), (7, set())):
        m, s = start(geometry(pages=pages), capacity=Capacity(copy=copy))
        seen(f"{copy}, {pages} pages", reasons(m, s, act.Submit(request)), why)
