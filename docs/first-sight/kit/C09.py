from common import *
from spec import clauses
# Two slots name page 0, full of 2 written cells of which 1 is committed: only committed pages may be shared.
g = geometry(slots=2, pages=2)
v = view.View(geometry=g, counts=(2, 0), used=(True, True), rows=((0,), (0,)), allocated=(2, 2), written=(2, 2),
              committed=(1, 1), tokens=((5,), (5,)), proposed=((6,), (6,)))
seen("an uncommitted page is shared", sorted({c for c, _ in clauses.violations(v)}), ["SHARE"])
