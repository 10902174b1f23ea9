"""Requests are admitted in the order of their arrival, and no request overtakes another: Admit takes
the waiting requests from the oldest up to the first that does not fit. Here the second does not fit
beside the first, so the third waits behind it although it would fit.
"""
from common import *
from impl.host import Host

g = geometry(pages=5, page_size=4, slots=4, pages_per_seq=3)
large = Request(id=1, prompt=(1, 2, 3, 4), params=Params(max_new=8))  # 12 tokens: 3 pages
other = Request(id=2, prompt=(5, 6, 7, 8), params=Params(max_new=8))  # 3 pages: 2 are left
small = Request(id=3, prompt=(9,), params=Params(max_new=3))  # 1 page

m, s = start(g)
s = run(m, s, act.Submit(large), act.Submit(other), act.Submit(small), act.Admit())
seen("admitted", [one.id for one in s.admitted], [1])
seen("waiting", [one.id for one in s.waiting], [2, 3])
seen("slots in use", view.of(m, s).used, (True, False, False, False))

host = Host(engine(g))
for one in (large, other, small):
    host.submit(one)
seen("admitted by the host", [one.id for one in host.admit()], [1])
seen("waiting at the host", [one.id for one in host.state.waiting], [2, 3])
