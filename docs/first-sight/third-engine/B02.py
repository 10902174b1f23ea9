"""Generate does rounds until `limits.rounds` are done or one would be refused, whatever finishes
meanwhile. Prefill draws one token each; the second request then needs 5 more rounds, and the sixth
is refused with QUEUE_EMPTY."""
from common import *

e = engine(8, 4, 2, 4, rounds=8)
e.prefill([req(1, (1, 2), 2), req(2, (3, 4), 6)])
check(e.generate(), (5, Reason.QUEUE_EMPTY), "rounds done, and why the next one was refused")
check(sorted((o.request, len(o.tokens)) for o in e.take_outputs()), [(1, 2), (2, 6)], "outputs")
