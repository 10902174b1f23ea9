from common import *
# Prompt of 4 = one full page of 4; the drawn token is known and waits, unwritten. The clone shares
# the full page and copies nothing.
e = engine(8, 4, 2, 4)
e.prefill([req(1, (1, 2, 3, 4), 6)])
e.clone(0, choice=1)
check(e.stats().pages_in_use, 1, "pages in use after a clone of one full page")
while e.stats().queued: e.round()
check(e.stats().pages_in_use, 0, "pages in use when all has finished")
# Known 4, written 3: the partial page must be copied.
e = engine(8, 4, 2, 4)
e.prefill([req(1, (1, 2, 3), 6)])
e.clone(0, choice=1)
check(e.stats().pages_in_use, 2, "pages in use after a clone of a partial page")
