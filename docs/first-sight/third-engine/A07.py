"""The queued tokens of a parent, all of them, are queued for the child too, behind all others
(docs/actions.md, "Clone"). A parent with two queued tokens leaves four entries.
"""
from common import check, engine, why
from spec.vocabulary import Params

e = engine(8, 4, 2, 4, queue=4, round_tokens=4)
e.reserve(0)
e.assign(0, (1, 2), Params(max_new=9), request=1)
e.allocate([(0, 0), (0, 1)])
e.write([(0, 0), (0, 1)])
e.enqueue(0, 3)
e.enqueue(0, 4)
check(e.clone(0, 1, choice=1), 1, "the child")
check(e.stats().queued, 4, "queue entries")
check(e.pack(), ((3, 0, 2), (4, 0, 3), (3, 1, 2), (4, 1, 3)), "the queued tokens")
