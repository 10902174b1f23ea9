"""Two sequences share a pool of two pages, one page each, both half full: rounds that stay inside
these pages need no page. By hand: page_size 4, prompts of 2 tokens; with max_new 2 each sequence
writes positions 0, 1 (prompt) and 2 (first drawn token), all in its one page."""
from common import Reason, check, engine, req, why

e = engine(2, 4, 2, 2)
e.prefill([req(1, (5, 6), 2), req(2, (7, 8), 2)])
check(e.stats().free_pages, 0, "free pages after the prefill")
check(e.generate(), (1, Reason.QUEUE_EMPTY), "rounds in a full pool that begin no page")
check(sorted((o.request, len(o.tokens)) for o in e.take_outputs()), [(1, 2), (2, 2)], "outputs")

# By hand: 5 cells are 2 pages = the whole pool; positions 5 and 6 lie in the second page.
e = engine(2, 4, 2, 2)
e.reserve()
e.allocate([(0, p) for p in range(5)])
check(why(e.allocate, [(0, 5), (0, 6)]), None, "allocation inside the last page")
check(e.stats().pages_in_use, 2, "pages in use")
