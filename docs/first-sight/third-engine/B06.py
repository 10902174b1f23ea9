"""Admission compares the worst case of the oldest request with the pages that no admitted request
reserves. A sequence begun without the host reserves none: 3 pages are wanted of 4 unreserved ones,
and the prefill itself needs 1 of the 2 free ones, so the request is admitted."""
from common import *

e = engine(4, 4, 3, 3)
h = Host(e)
e.reserve(0)
e.allocate([(0, at) for at in range(8)])
h.submit(req(1, (1, 2, 3, 4), 8))
check(why(h.admit), None, "admission beside a sequence that the host did not begin")
check([one.id for one in h.state.admitted], [1], "admitted requests")
