"""No known token can follow drafts, whether or not these still wait in the queue."""
from common import *

e = engine(8, 4, 2, 4, round_tokens=4)
e.prefill([req(1, (1, 2, 3), 9)])  # known 4: the drawn token waits at position 3
e.propose(0, (11, 12))
check(len(e.pack()), 3, "the pending token and both drafts are packed for the verifier")
check(why(e.enqueue, 0, 99), "PROPOSED", "enqueue behind drafts that were packed")
s = e.extract().slots
check((s.known[0].item(), s.proposed[0].item()), (4, 2), "known and proposed")
check(s.tokens[0, 4:6].tolist(), [11, 12], "the drafts")
e.truncate(0, 3)  # all drafts are cut: now a token can follow
check(why(e.enqueue, 0, 99), None, "enqueue after the truncation")
