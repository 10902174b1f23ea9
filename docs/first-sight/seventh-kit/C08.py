"""Lists and arrays become tuples in a view, in every cell: a right engine is not blamed."""
from common import *
from spec import clauses
from spec.view import View

g = Geometry(pages=2, page_size=1, slots=1, pages_per_seq=2)
# Page 0 is free and dead (None); page 1 holds K and V of token 5, as a list.
v = View(geometry=g, counts=(0, 1), used=(True,), rows=((1,),), allocated=(1,), written=(1,),
         tokens=((5,),), cells=[None, [5, 50]], expected=lambda prefix: [prefix[-1], 10 * prefix[-1]])
seen("cells", tuple(v.cells), (None, (5, 50)))
seen("violations", list(clauses.violations(v)), [])
