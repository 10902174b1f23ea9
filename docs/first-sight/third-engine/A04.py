"""Cleanup END frees finished sequences at the end of the prefill or round after which none is
unfinished (docs/actions.md, "Values"): all of them, also those that finished in an earlier one.
"""
from common import check, engine, req
from spec.vocabulary import CleanupMode

e = engine(8, 4, 3, 4, cleanup=CleanupMode.END)
e.prefill([req(1, (5, 6), 1), req(2, (7, 8), 2)])  # request 1 ends here, request 2 does not
check(e.stats().active, 2, "slots in use while request 2 is unfinished")
e.round()  # request 2 ends
check(e.stats().active, 0, "slots in use after all have finished")
check(e.stats().free_pages, 8, "free pages after all have finished")
