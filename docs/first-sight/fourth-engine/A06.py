"""docs/actions.md, Truncate: "Cells and proposed tokens from `length` on are cut off", and "the
queued tokens that were cut off leave the queue"; so others stay. Slot 0 has three known tokens and
the drafts 7, 8, 9 at positions 3 to 5, all queued and allocated. A truncation to 5 cuts position 5
only: the drafts 7 and 8 stay proposed, and stay queued at 3 and 4.
"""

from common_a import Params, act, cells, do, end, engine

one = engine(queue=8)
do(one, act.Reserve(0), act.Assign(0, (1, 2, 3), Params(max_new=9), request=1))
do(one, act.Allocate(cells(0, 0, 1, 2)), act.Write(cells(0, 0, 1, 2)))
do(one, act.Propose(0, (7, 8, 9)), act.Allocate(cells(0, 3, 4, 5)), act.Truncate(0, 5))
seen = one.observe()
end(((7, 8), 5, ((7, 0, 3), (8, 0, 4))), (seen.proposed[0], seen.allocated[0], tuple(seen.queue)))
