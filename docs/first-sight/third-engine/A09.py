"""A refused action changes nothing (docs/actions.md). A prefill of three choices with a prompt that
ends inside a page is refused since the queue has no room; no page is taken by it.
"""
from common import check, engine, req, why
from spec.vocabulary import Params

e = engine(8, 4, 4, 4, queue=4)
e.reserve(0)
e.assign(0, (1, 2), Params(max_new=9), request=1)
e.enqueue(0, 3)
e.enqueue(0, 4)
check(why(e.prefill, [req(2, (5, 6), 4, n=3)]), "QUEUE_FULL", "two entries and three more, of four")
check(e.stats().free_pages, 8, "free pages after the refusal")
e.free(0)
check(e.stats().free_pages, 8, "free pages without a sequence")
