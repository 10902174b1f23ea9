"""A row that an adapter shows short names no further page: it is that row with INVALID behind."""
from common import *
from spec.view import View
from spec.vocabulary import INVALID

g = geometry()  # rows of 4 pages
m, s = start(g, ladder.machine("sharing"))
s = run(m, s, act.Reserve(), act.Reserve())
s = run(m, s, act.Allocate(tuple((0, p) for p in range(7)) + ((1, 0), (1, 1), (1, 2))))
rows = [[0, 1, 2, 3], [4, 5], [], []]
shown = View(geometry=g, used=[True, True, False, False], rows=rows, counts=[1] * 6 + [0, 0],
             allocated=[7, 3, 0, 0])  # fmt: skip
none = INVALID
wanted = ((0, 1, 2, 3), (4, 5, none, none), (none,) * 4, (none,) * 4)
seen("the specification", view.of(m, s).rows, wanted)
seen("an adapter, slot 0 full", shown.rows, wanted)
short = View(geometry=g, used=[True, True, False, False], rows=rows[1:] + [[]], counts=[0] * 8)
seen("an adapter, slot 0 short", short.rows, (*wanted[1:], (none,) * 4))
