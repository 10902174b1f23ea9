"""docs/actions.md, Clone, QUEUE_FULL: "the queue has no room for a copy of each token of the parent
that is queued". The queue has three entries; after a prefill the drawn token of slot 0 is queued,
and an enqueued token after it. Two of three entries are filled, and a clone would add two: it must
be refused with QUEUE_FULL, and slot 1 stays unused.
"""

from common_a import Params, Request, act, do, end, engine, reasons

one = engine(slots=2, queue=3)
do(one, act.Prefill((Request(id=1, prompt=(1, 2, 3), params=Params(max_new=9)),)), act.Enqueue(0, 5))
before = len(one.observe().queue)
found = reasons(one, act.Clone(0, 1, 1))
seen = one.observe()
end((2, ("QUEUE_FULL",), False, 2), (before, found, seen.used[1], len(seen.queue)))
