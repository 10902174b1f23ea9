"""Generate while outputs that are not taken leave room for fewer than one per slot.

Docs (scheduling.md): Generate is "several rounds", and it stops before a round that cannot be
done. 2 slots, room for 4 outputs. Three requests of max_new 1 finish in their prefills and are not
taken. A fourth has max_new 2: its prefill draws one token (1 output may be needed, 1 is free), one
round draws the other and ends it: 4 outputs. Expected: 1 round, then the queue is empty, and 4
outputs. With the bug Generate does no round, and gives no reason, however often it is called.
"""
from common_b import *
from spec.vocabulary import Reason

made = engine(Geometry(pages=8, page_size=4, slots=2, pages_per_seq=2), outputs=4)
for number, most in ((1, 1), (2, 1), (3, 1), (4, 2)):
    made.prefill([Request(id=number, prompt=(number, 2), params=Params(max_new=most))])
seen = made.generate()
verdict(((1, Reason.QUEUE_EMPTY), [1, 1, 1, 2]),
        (seen, [len(one.tokens) for one in made.take_outputs()]))
