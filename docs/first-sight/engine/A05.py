from common import *
# 5 cells written; the drawn token at position 5 is known and queued. Truncate(0, 5) cuts nothing.
e = engine(8, 4, 2, 4)
e.prefill([req(1, (1, 2, 3, 4, 5), 4)])
e.truncate(0, 5)
check(e.stats().queued, 1, "queued tokens after a truncation that cuts nothing")
