from common import *
# Slot 1 is reserved, so the two choices take slots 0 and 2. Greedy: both have the same tokens.
e = engine(8, 4, 4, 2)
e.reserve(1)
e.prefill([req(1, (1, 2, 3, 4, 5), 3, n=2)])
for _ in range(4):
    if e.stats().queued: why(e.round)
out = e.take_outputs()
check([(o.request, o.choice, len(o.tokens)) for o in out], [(1, 0, 3), (1, 1, 3)], "outputs")
check(out[1].tokens, out[0].tokens, "tokens of the second greedy choice")
