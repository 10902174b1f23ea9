from common import *
# The second request is too long (1 + 100 > 8): none of the two may be queued.
h = Host(engine(8, 4, 2, 2))
good, bad = req(1, (1, 2), 3), req(2, (1,), 100)
check(why(h.generate, [good, bad]), "TOO_LONG", "a list with a request that is too long")
check([r.id for r in h.state.waiting], [], "waiting requests after the refused list")
check(why(h.generate, [good]), None, "the good one alone afterwards")
