"""A position can be written only below `allocated` (docs/actions.md, "Write"); otherwise the batch
is refused with BATCH_POSITIONS, also if the last page of the row has room for it.
"""
from common import check, engine, why
from spec.vocabulary import Params

e = engine(8, 4, 2, 4)
e.reserve(0)
e.assign(0, (1, 2, 3, 4, 5, 6, 7), Params(max_new=4), request=1)
e.allocate([(0, position) for position in range(5)])
check(why(e.write, [(0, position) for position in range(6)]), "BATCH_POSITIONS", "six cells of five")
check(why(e.write, [(0, position) for position in range(5)]), None, "the five cells")
check(why(e.write, [(0, 5)]), "BATCH_POSITIONS", "a cell that is not allocated")
