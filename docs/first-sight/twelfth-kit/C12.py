"""Enqueue in a slot with drafts, while the queue is full: each of the two reasons is right."""
from common import *

m, s = start(geometry(slots=2), queue=3)
s = run(m, s, act.Prefill((Request(id=1, prompt=(1, 2), params=Params(max_new=6)),)))
seen("before", reasons(m, s, act.Enqueue(0, 7)), set())
s = run(m, s, act.Propose(0, (3, 4)))  # the pending token and two drafts: 3 of 3 entries
seen("entries", len(s.queue), 3)
seen("a full queue and drafts", reasons(m, s, act.Enqueue(0, 7)), {"PROPOSED", "QUEUE_FULL"})
# One draft alone: an entry is left, and `max_new` leaves room, so that PROPOSED is the only reason.
m, s = start(geometry(slots=2), queue=3)
s = run(m, s, act.Prefill((Request(id=1, prompt=(1, 2), params=Params(max_new=3)),)), act.Propose(0, (3,)))
seen("drafts, room for both", reasons(m, s, act.Enqueue(0, 7)), {"PROPOSED"})
