"""Submit keeps to reservations of requests that have left.

docs/serving.md: "An id may be used again once its outputs are taken." docs/actions.md, Submit:
CHOICE_TAKEN only if a request with the id "waits, is admitted and holds a slot, or has an output
that is not taken yet". Request 1 is served by submit, admit and rounds, and its output is taken:
nothing of it is left, so a second request with its id joins the waiting ones.
"""

from common_b import Geometry, Params, Request, attempt, engine, verdict
from impl.host import Host

host = Host(engine(Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)))
request = Request(id=1, prompt=(3, 4), params=Params(max_new=4))
host.submit(request)
host.admit()
host.generate_rounds()
taken = len(host.take_outputs())
again = attempt(host.submit, request)
verdict((1, None, [1]), (taken, again, [one.id for one in host.state.waiting]))
