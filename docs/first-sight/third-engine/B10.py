"""Purge drops queued tokens, and these "stay known, or proposed": the slot still has its drafts, so
that Enqueue is refused with PROPOSED."""
from common import *

e = engine(8, 4, 2, 4)
e.reserve(0)
e.assign(0, (1, 2), Params(max_new=6), request=1)
e.propose(0, (4, 7))
e.purge(0)
check(e.stats().queued, 0, "queued tokens")
check(why(e.enqueue, 0, 3), "PROPOSED", "a known token behind the drafts")
