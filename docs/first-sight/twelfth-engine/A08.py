"""A refused clone changes nothing. By hand: a prompt of 5 tokens in pages of 4 takes 2 of 6 pages."""
from common import check, engine, req, why

e = engine(6, 4, 3, 3)
e.prefill([req(1, (1, 2, 3, 4, 5), 4)])
check(e.stats().free_pages, 4, "free pages after the prefill")
check(why(e.clone, 0, choice=0) is None, False, "a clone under a choice that is live is refused")
check(e.stats().free_pages, 4, "free pages after a refused clone")
e.free(0)
check(e.stats().free_pages, 6, "free pages of an engine without sequences")
check(e.extract().pages.counts.tolist(), [0] * 6, "counts of an engine without sequences")
