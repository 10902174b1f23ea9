"""A round with a full queue must not lose the token that it draws.

The queue has 2 entries. The prefill of (1, 2) draws one token, which is queued (1 of 2); Enqueue
adds another (2 of 2). The round (width 2) takes both, which makes room, and writes positions 2
and 3; the last known token is in it, so it draws the token of position 4, which is queued: 1 entry.
max_new is 6: generated are 1 + 1 + 1, so the sequence goes on, 3 more rounds finish it.
"""
from common import *

e = engine(8, 4, 2, 2, queue=2)
e.prefill([req(1, (1, 2), 6)])
e.enqueue(0, 9)
check(e.stats().queued, 2, "queued before the round")
e.round()
check(int(e.extract().slots.known[0]), 5, "known tokens")
check(e.stats().queued, 1, "queued after the round")
check(e.generate()[0], 3, "rounds to the end")
check(len(e.take_outputs()), 1, "outputs")
