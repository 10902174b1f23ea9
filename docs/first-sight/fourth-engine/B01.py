"""Assign forgets cells that the slot has already.

docs/actions.md, Allocate: "The tokens of these positions need not be known yet", so a reserved slot
may get three cells (one page of four) before its prompt. Assign makes tokens known: "No cell is
allocated or written", and none is taken away, so `allocated` stays 3 beside the row (0,), and the
write of positions 0 to 2 is done, not refused.
"""

from common_b import Geometry, Params, attempt, engine, verdict

one = engine(Geometry(pages=4, page_size=4, slots=2, pages_per_seq=2))
cells = [(0, 0), (0, 1), (0, 2)]
one.reserve(0)
one.allocate(cells)
one.assign(0, (5, 6, 7), Params(max_new=2), request=1)
allocated = int(one.extract().slots.allocated[0])
wrote = attempt(one.write, cells)
written = int(one.extract().slots.written[0])
verdict((3, None, 3), (allocated, wrote, written))
