"""In a plan, entry i of `page_indices` is the page of positions i * page_size on, released or not."""
from common import *
from spec import ladder, table

m, s = start(geometry(window=3), ladder.machine("admission", "window"))
s = run(m, s, act.Reserve(0), act.Assign(0, (1, 2, 3, 4, 5), Params(max_new=3), 1), *written(0, 5))
# The query at 5 sees 3, 4 and 5: page 0, with positions 0 and 1, may go.
s = run(m, s, act.Release(0, 3))
batch = ((0, 5),)
s = run(m, s, act.Allocate(batch))
plan = table.plan(s.sequences, batch, 2)
seen("destinations", plan.destinations, (2 * 2 + 1,))
seen("lengths", plan.kv_lens, (6,))
seen("page_indices", plan.page_indices, ((INVALID, 1, 2),))
# What a kernel makes of it: position 5 is in entry 2, and is the destination.
at = [row[5 // 2] * 2 + 5 % 2 if len(row) > 2 else None for row in plan.page_indices]
seen("the cell of position 5", at, [5])
