"""Requests that are admitted together share the unreserved pages.

4 pages of 4 cells. Each of two waiting requests has a prompt of 1 and max_new 11: 12 cells, 3 pages
at most. Together they need 6 of 4 unreserved pages, so Admit takes the oldest alone: 1 sequence.
The other waits, though its prompt would fit now (1 page of 3 that are free).
"""
from common import *

e = engine(4, 4, 2, 3)
host = Host(e)
host.submit(req(1, (1,), 11))
host.submit(req(2, (2,), 11))
check([one.id for one in host.admit()], [1], "admitted")
check([one.id for one in host.state.waiting], [2], "waiting")
check(e.stats().active, 1, "slots in use")
