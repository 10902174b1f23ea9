"""The key of a draw is made of the seed, the choice and the position of the token."""
from common import *
from spec.machines import naive
# By hand: prompt (5, 6) is at positions 0 and 1, so the tokens drawn are at 2 and 3. If the token at 2 is a,
# the prompt (5, 6, a) with the same seed and choice draws at position 3 after the same prefix, with the same
# key: its first token is the second one of the first request. ("recomputation replays tokens".)
for seed in range(6):
    first, second = naive.generate((5, 6), Params(max_new=2, temperature=1.0, seed=seed), 1)[0]
    again = naive.generate((5, 6, first), Params(max_new=1, temperature=1.0, seed=seed), 1)[0]
    seen(f"naive, seed {seed}", again, (second,))
# The same of the scheduler: choice 0 of request 0 generates (a, b); request 1 with (5, 6, a) generates (b,).
m, s = start()
s = run(m, s, act.Prefill((Request(id=0, prompt=(5, 6), params=Params(max_new=2, temperature=1.0, seed=3)),)), act.Generate())
a, b = s.outputs[0].tokens
s = run(m, s, act.Prefill((Request(id=1, prompt=(5, 6, a), params=Params(max_new=1, temperature=1.0, seed=3)),)))
seen("scheduling", s.outputs[1].tokens, (b,))
