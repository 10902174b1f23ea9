"""docs/actions.md, Allocate: "The tokens of these positions need not be known yet", and Assign: the
tokens "become known. No cell is allocated or written", and none is given up. Slot 0 is reserved, and
five positions are allocated in pages 0 and 1 before the prompt of five tokens comes. Then `allocated`
is still 5, and all five cells can be written, so that `written` is 5 and no page was taken beside 0 and 1.
"""

from common_a import Params, act, cells, do, end, engine, reasons, row

one = engine()
five = cells(0, 0, 1, 2, 3, 4)
do(one, act.Reserve(0), act.Allocate(five))
do(one, act.Assign(0, (1, 2, 3, 4, 5), Params(max_new=9), request=1))
allocated = one.observe().allocated[0]
found = reasons(one, act.Write(five))
end((5, (), 5, (0, 1)), (allocated, found, one.observe().written[0], row(one, 0)))
