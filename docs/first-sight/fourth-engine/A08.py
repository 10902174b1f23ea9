"""docs/actions.md, Purge: "The queued tokens of a slot leave the queue. They stay known". Slot 0 has
three written tokens; token 9 is enqueued at position 3, and its cell is allocated. After the purge
the queue is empty, and the caller may write the cell itself: BATCH_QUEUED, "pack or purge it first",
is over. So the write is done, and `written` is 4.
"""

from common_a import Params, act, cells, do, end, engine, reasons

one = engine()
do(one, act.Reserve(0), act.Assign(0, (1, 2, 3), Params(max_new=9), request=1))
do(one, act.Allocate(cells(0, 0, 1, 2)), act.Write(cells(0, 0, 1, 2)))
do(one, act.Enqueue(0, 9), act.Allocate(cells(0, 3)), act.Purge(0))
queue = tuple(one.observe().queue)
found = reasons(one, act.Write(cells(0, 3)))
end(((), (), 4), (queue, found, one.observe().written[0]))
