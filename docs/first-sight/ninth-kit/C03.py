"""actions.md: Round has no reason BATCH_WIDTH; it packs "at most `limits.round_tokens`" tokens, whatever one batch of the caller may have."""
from common import *
from spec.machines.actions import *
m, s = start(geometry(pages=16, slots=4), ladder.machine("scheduling"), prefill_tokens=3, round_tokens=4)
p = Params(max_new=3)
for i in range(4):
    s = run(m, s, Prefill((Request(id=i, prompt=(i + 1, 7), params=p),)))  # 2 tokens each
seen("queue", [(q.slot, q.position) for q in s.queue], [(0, 2), (1, 2), (2, 2), (3, 2)])
seen("refusals of Round", reasons(m, s, Round()), set())
s = run(m, s, Generate())  # two rounds: each sequence draws its second and its third token, and ends
seen("outputs", [(o.request, len(o.tokens)) for o in s.outputs], [(i, 3) for i in range(4)])
