"""A sequence whose max_new-th token completes a stop sequence ends by STOP: "If both hold, the
reason is STOP" (FinishReason). The greedy tokens after (5, 6, 7) are given by the exact model."""
from common import *

GREEDY = (32566, 20200)

e = engine(8, 4, 2, 4)
e.prefill([req(1, (5, 6, 7), 2, stops=((GREEDY[1],),)), req(2, (5, 6, 7), 3, stops=((GREEDY[1],),))])
e.generate()
seen = [(o.request, o.tokens, o.reason) for o in e.take_outputs()]
both = [(1, GREEDY[:2], FinishReason.STOP), (2, GREEDY[:2], FinishReason.STOP)]
check(seen, both, "a stop at the limit, and one before it")
