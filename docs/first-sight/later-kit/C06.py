"""Prefill: QUEUE_FULL if the queue has no room for one token of each choice."""
from common import *
m, s = start(queue=4)
s = run(m, s, act.Prefill((Request(id=1, prompt=(5, 6), params=Params(max_new=6)),)), *[act.Enqueue(0, 9)] * 3)
# By hand: the drawn token and three given ones are queued: 4 of 4. One choice more needs room for one.
seen("queued", len(s.queue), 4)
for new in (1, 2):
    one = Request(id=2, prompt=(5,), params=Params(max_new=new))
    seen(f"Prefill, max_new {new}", reasons(m, s, act.Prefill((one,))), {"QUEUE_FULL"})
    seen(f"Admit, max_new {new}", reasons(m, run(m, s, act.Submit(one)), act.Admit()), {"QUEUE_FULL"})
