"""A finished sequence that still holds its slot keeps its reservation and its id (cleanup END).

4 pages of 4 cells. Request 1 (prompt 8, max_new 1: 9 cells, 3 pages at most) and request 2 (prompt
1, max_new 3: 1 page) are admitted: 4 pages reserved. Request 1 ends at once; request 2 is
unfinished, so END frees nothing, and request 1 still holds slot 0 and its 2 pages. So the slots are
those of (1, 0) and (2, 0), both are admitted, and request 3 (1 page at most) finds none unreserved:
OUT_OF_PAGES. The output of request 1 is taken; its id is still in a slot: CHOICE_TAKEN.
"""
from common import *

e = engine(4, 4, 4, 3, cleanup=CleanupMode.END)
host = Host(e)
host.submit(req(1, (1, 2, 3, 4, 5, 6, 7, 8), 1))
host.submit(req(2, (1,), 3))
check(len(host.admit()), 2, "admitted")
check([one.request for one in host.take_outputs()], [1], "outputs")
check(host.stats().active, 2, "slots in use")
check(sorted(host.stats().occupants), [(1, 0), (2, 0)], "occupants")
host.submit(req(3, (1,), 3))
check(why(host.admit), "OUT_OF_PAGES", "Admit with every page reserved")
check(why(host.submit, req(1, (1,), 1)), "CHOICE_TAKEN", "the id of a slot in use")
