"""The tokens that a round draws are queued by slot, however the round's tokens came."""
from common import *

g = geometry(pages=12, slots=3)
m, s = start(g)
one = lambda id, prompt, new: Request(id=id, prompt=prompt, params=Params(max_new=new))
# Slots 0 and 1 decode; slot 0 ends in the first round and is freed; another request takes slot 0.
s = run(m, s, act.Prefill((one(1, (5, 6), 2), one(2, (7, 8), 6))), act.Round(), act.Prefill((one(3, (9, 9), 6),)))
waits = lambda s: [(q.slot, q.position) for q in s.queue]
seen("the queue before the round", waits(s), [(1, 3), (0, 2)])
# A round decodes by slot: slot 0 draws the token of position 3, then slot 1 that of position 4.
s = run(m, s, act.Round())
seen("the queue after the round", waits(s), [(0, 3), (1, 4)])
# Both end in one round: the outputs are in the order of the slots.
m, s = start(g)
s = run(m, s, act.Prefill((one(1, (5, 6), 2), one(2, (7, 8), 3))), act.Round(), act.Prefill((one(3, (9, 9), 2),)), act.Round())
seen("the outputs", [(o.request, o.choice) for o in s.outputs], [(1, 0), (3, 0), (2, 0)])
