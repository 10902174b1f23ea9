from common import *
# A greedy clone continues exactly as its parent: the same tokens, the same log-probabilities.
e = engine(8, 4, 2, 4)
e.prefill([req(1, (1, 2, 3), 5)])
e.round(); e.round()
e.clone(0, choice=1)
while e.stats().queued: e.round()
a, b = sorted(e.take_outputs(), key=lambda o: o.choice)
check(b.tokens, a.tokens, "tokens of a greedy clone")
check(b.logprobs, a.logprobs, "log-probabilities of a greedy clone")
