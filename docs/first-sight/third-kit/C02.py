"""A write is refused as BATCH_QUEUED only if it names a position whose own token is still in the
queue. Here the prompt is not written yet, and a token after it is queued: the prompt may be written.
"""
from common import *

prompt, params = (5, 6, 7), Params(max_new=4)
m, s = start()
s = run(m, s, act.Reserve(0), act.Assign(0, prompt, params, 1), act.Enqueue(0, 9))
cells = ((0, 0), (0, 1), (0, 2))
s = run(m, s, act.Allocate(cells))
seen("the queue", view.of(m, s).queue, ((9, 0, 3),))
seen("a write of the prompt is refused for", reasons(m, s, act.Write(cells)), set())
seen("written", view.of(m, m.step(s, act.Write(cells))).written[0], 3)

e = engine()
e.reserve(0)
e.assign(0, prompt, params, request=1)
e.enqueue(0, 9)
e.allocate(cells)
seen("the engine refuses it for", refused_for(e.write, cells), set())
