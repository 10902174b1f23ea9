"""docs/actions.md, Commit, UNWRITTEN: refused if "`length` is above `written`". Slot 0 has three
written tokens and two drafts, taken from the queue by Pack and allocated, of which only the first is
written. `written` is 4 and `allocated` 5, so Commit(0, 5) is refused, and `committed` stays 3.
"""

from common_a import Params, act, cells, do, end, engine, reasons

one = engine()
do(one, act.Reserve(0), act.Assign(0, (1, 2, 3), Params(max_new=9), request=1))
do(one, act.Allocate(cells(0, 0, 1, 2)), act.Write(cells(0, 0, 1, 2)))
do(one, act.Propose(0, (7, 8)), act.Pack(), act.Allocate(cells(0, 3, 4)), act.Write(cells(0, 3)))
found = reasons(one, act.Commit(0, 5))
seen = one.observe()
end((("UNWRITTEN",), 3, (1, 2, 3)), (found, seen.committed[0], seen.tokens[0]))
