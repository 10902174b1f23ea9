"""A round takes the first `limits.round_tokens` (4) queued tokens, however narrow a prefill is (2)."""
from common import *

m, s = start(prefill_tokens=2, round_tokens=4)
ask = lambda n: Request(id=n, prompt=(n,), params=Params(max_new=4))
s = run(m, s, act.Prefill((ask(1), ask(2))), act.Prefill((ask(3), ask(4))))
seen("left by Pack", len(run(m, s, act.Pack()).queue), 0)
seen("written by a round", [q and q.written for q in run(m, s, act.Round()).sequences], [2, 2, 2, 2])
