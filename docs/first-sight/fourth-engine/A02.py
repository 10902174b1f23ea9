"""docs/pages.md: "`kv_lens` is `allocated` after the batch"; impl.models.protocol: "the slots'
lengths with this batch included". Three cells of slot 0 are allocated and none is written; a second
batch allocates positions 3 and 4. Five cells are then allocated, so kv_lens is (5,), with two queries.
"""

from common_a import act, cells, do, end, engine

one = engine()
plan = do(one, act.Reserve(0), act.Allocate(cells(0, 0, 1, 2)), act.Allocate(cells(0, 3, 4)))
end(((5,), (0, 2)), (plan.kv_lens, plan.cu_q_lens))
