"""Generate says that a round was refused when its last round empties the queue.

docs/actions.md, Generate: at most `limits.rounds` rounds, "until one would be refused"; the result
is `[rounds, reason]`, "with null if no round was refused". With max_new 4 the prefill draws one
token and three rounds draw the others, so with limits.rounds 3 all three are done and no further
one is asked for: (3, None). The next call does none, since the queue is empty.
"""

from common_b import Geometry, Params, Request, engine, verdict

one = engine(Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4), rounds=3)
one.prefill([Request(id=1, prompt=(3, 4), params=Params(max_new=4))])
first, second = one.generate(), one.generate()
show = lambda result: (result[0], result[1] and result[1].name)
verdict(((3, None), (0, "QUEUE_EMPTY")), (show(first), show(second)))
