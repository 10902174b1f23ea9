"""Q: "consumed once": the draft at position 2 is written, and is queued still."""
from common import *
from spec import clauses
from spec.view import View
g = Geometry(pages=2, page_size=2, slots=1, pages_per_seq=2)
v = View(geometry=g, counts=(1, 1), used=(True,), rows=((0, 1),), allocated=(3,), written=(3,), committed=(2,),
         tokens=((1, 2),), proposed=((3,),), finished=(False,), queue=((3, 0, 2),))
seen("clauses violated", [name for name, _ in clauses.violations(v)], ["Q"])
