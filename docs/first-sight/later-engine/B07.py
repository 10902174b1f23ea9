"""A reserved slot without a prompt is not free for admission.

Of 2 slots the caller has reserved slot 0. Two requests of one choice wait. One slot is free, so
Admit takes the oldest, and the other one waits.
"""
from common import *

e = engine(8, 4, 2, 2)
host = Host(e)
e.reserve(0)
host.submit(req(1, (1, 2), 3))
host.submit(req(2, (3, 4), 3))
check(why(host.admit), None, "Admit with one free slot")
check([one.id for one in host.state.admitted], [1], "admitted")
check([one.id for one in host.state.waiting], [2], "waiting")
