"""docs/actions.md, Reset: "PHYSICAL also zeroes the pool", and impl.cache.paged.zero: "The pool with
every byte zero". Slot 0 writes four tokens into page 0, is freed (no byte is touched), and the
engine is reset physically. Every one of the 8 * 4 cells must then hold zero words, those of page 0,
which is free when the reset comes, too.
"""

from common_a import Params, ResetMode, act, cells, do, end, engine

one = engine()
four = cells(0, 0, 1, 2, 3)
do(one, act.Reserve(0), act.Assign(0, (1, 2, 3, 4), Params(max_new=9), request=1))
do(one, act.Allocate(four), act.Write(four), act.Free(0), act.Reset(ResetMode.PHYSICAL))
held = one.observe().cells
end([], [at for at in range(32) if tuple(held[at]) != (0, 0, 0, 0)])
