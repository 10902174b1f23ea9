"""The width of a batch counts its padding: 5 entries are too many for 4, though 2 are tokens."""
from common import *

m, s = start(prefill_tokens=4)
s = run(m, s, act.Reserve(0), act.Assign(0, (1, 2, 3), Params(max_new=2), 1))
two = ((0, 0), (0, 1))
seen("four entries", reasons(m, s, act.Allocate((*two, None, None))), set())
seen("Allocate of five entries", reasons(m, s, act.Allocate((*two, None, None, None))), {"BATCH_WIDTH"})
s = run(m, s, act.Allocate(two))
seen("Write of five entries", reasons(m, s, act.Write((None, *two, None, None))), {"BATCH_WIDTH"})
