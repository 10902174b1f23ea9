"""A batch of more than limits.prefill_tokens entries is refused, padding included."""
from common import *

m, s = start(prefill_tokens=6)
s = run(m, s, act.Reserve(0), act.Assign(0, (1, 2, 3), Params(max_new=2), 1), act.Reserve(1))
# Six entries may be given; the padding counts (docs/actions.md, Allocate, condition 1).
three = ((0, 0), (0, 1), (0, 2))
seen("six entries", reasons(m, s, act.Allocate((*three, None, None, None))), set())
seen("seven entries", reasons(m, s, act.Allocate((None, *three, None, None, None))), {"BATCH_WIDTH"})
s = run(m, s, act.Allocate(three))
seen("a write of eight", reasons(m, s, act.Write((*three, *[None] * 5))), {"BATCH_WIDTH"})
# Seven tokens without padding are refused with and without the bug.
seven = tuple((0, p) for p in range(3, 8)) + ((1, 0), (1, 1))
seen("seven tokens", reasons(m, s, act.Allocate(seven)), {"BATCH_WIDTH"})
