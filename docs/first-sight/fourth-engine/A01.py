"""docs/actions.md, Allocate: the batch is "in any order", and the policy "lowest" takes the lowest
free pages "by slot and then by position". Two slots are reserved in an empty pool, and one batch
begins a page in each, slot 1 named first. So slot 0 must get page 0 and slot 1 page 1, and the
destinations of the plan (by slot) are 0 * 4 = 0 and 1 * 4 = 4.
"""

from common_a import act, do, end, engine, row

one = engine()
plan = do(one, act.Reserve(0), act.Reserve(1), act.Allocate(((1, 0), (0, 0))))
end(((0,), (1,), (0, 4)), (row(one, 0), row(one, 1), plan.destinations))
