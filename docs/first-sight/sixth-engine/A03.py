"""Three slots, a queue of 3. A prefill of two requests queues 2 tokens. Purge(0): 1 entry. Slot 1
gets two more by Enqueue: 3 entries, the queue is full. Slot 0 has none, so its clone needs no entry:
accepted, into slot 2, and the queue still has 3 entries, all of slot 1."""
from common_b import *

e = engine(Geometry(pages=8, page_size=4, slots=3, pages_per_seq=2), queue=3)
e.prefill([Request(id=n, prompt=(5, 6), params=Params(max_new=5)) for n in (1, 2)])
e.purge(0)
e.enqueue(1, 3)
e.enqueue(1, 4)
got = attempt(e.clone, 0, choice=1)
verdict((2, 3, {1}), (got, e.stats().queued, set(e.extract().queue.slots[:3].tolist())))
