"""A round that takes some of the queued tokens of a slot, and leaves others.

Docs (scheduling.md): a round packs "the first `round_tokens` queued tokens"; the others stay in the
queue. round_tokens is 2. The prompt has 2 tokens; the prefill draws one (position 2) and queues
it, and two are enqueued (3, 4). Round 1 takes 2 and 3 and does not draw; round 2 takes 4 and draws
the 4th generated token; rounds 3 and 4 draw the 5th and the 6th: max_new. Expected: 4 rounds, then
the queue is empty, and an output of 6 tokens. With the bug round 1 drops position 4 as well, the
queue is empty after it, and the sequence never goes on.
"""
from common_b import *
from spec.vocabulary import Reason

made = engine(Geometry(pages=8, page_size=4, slots=2, pages_per_seq=2), round_tokens=2)
made.prefill([Request(id=1, prompt=(1, 2), params=Params(max_new=6))])
made.enqueue(0, 7)
made.enqueue(0, 8)
seen = made.generate()
verdict(((4, Reason.QUEUE_EMPTY), [6]), (seen, [len(one.tokens) for one in made.take_outputs()]))
