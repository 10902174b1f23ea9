"""A request longer than a row is not called NEVER_FITS although its pages exceed the pool.

By hand: 2 pages of 4 cells, 1 slot, rows of 2 pages (max_len 8). A request of 5 prompt tokens and
max_new 8 has 13 tokens: above 8, so TOO_LONG; its worst case is ceil(13 / 4) = 4 pages, above the 2
of the pool, so NEVER_FITS too. Both conditions of Submit have one number, so both reasons are found.
"""
from common_b import attempt, engine, verdict
from impl.host import Host
from spec import ladder
from spec.machines.actions import Submit
from spec.vocabulary import Geometry, Params, Request, default_limits

G = Geometry(pages=2, page_size=4, slots=1, pages_per_seq=2)
request = Request(id=1, prompt=(1, 2, 3, 4, 5), params=Params(max_new=8))
machine = ladder.machine("admission")
found = machine.refusals(machine.initial(G, default_limits(G)), Submit(request))
host = attempt(Host(engine(G)).submit, request)
names = ("NEVER_FITS", "TOO_LONG")
verdict((4, names, ("Refused", names)),
        (request.pages_needed(G), tuple(sorted(one.reason.name for one in found)), host))
