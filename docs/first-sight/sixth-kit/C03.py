"""Pack gives its tokens in the order of the queue, and not by slot and position.

By hand: two slots hold (1, 2) and (3, 4), written. Token 9 is enqueued for slot 1 and then 8 for
slot 0, so the queue is (9, 1, 2), (8, 0, 2). Pack returns both by slot: (8, 0, 2), (9, 1, 2).
"""
from common_b import engine, verdict
from spec import ladder
from spec.machines import scheduling
from spec.machines.actions import Allocate, Assign, Enqueue, Reserve, Write
from spec.vocabulary import Geometry, Params, default_limits

G = Geometry(pages=4, page_size=4, slots=2, pages_per_seq=2)
P = Params(max_new=5)
CELLS = ((0, 0), (0, 1), (1, 0), (1, 1))
machine = ladder.machine("scheduling")
state = machine.initial(G, default_limits(G))
for action in (Reserve(0), Reserve(1), Assign(0, (1, 2), P, request=1), Assign(1, (3, 4), P, request=2),
               Allocate(CELLS), Write(CELLS), Enqueue(1, 9), Enqueue(0, 8)):
    state = machine.step(state, action)
spec = tuple((one.token, one.slot, one.position) for one in scheduling.packed(state))
ours = engine(G)
ours.reserve(0), ours.reserve(1)
ours.assign(0, (1, 2), P, request=1), ours.assign(1, (3, 4), P, request=2)
ours.allocate(CELLS), ours.write(CELLS), ours.enqueue(1, 9), ours.enqueue(0, 8)
right = ((8, 0, 2), (9, 1, 2))
verdict((right, right), (spec, ours.pack()))
