"""LEN judges an engine that has no drafts, and so shows neither `committed` nor `proposed`."""
from common import *
from spec import clauses
from spec.view import View

g = geometry(slots=1)
view = View(
    geometry=g, counts=(1, *(0,) * 7), used=(True,), rows=((0,),),
    allocated=(1,), written=(2,), tokens=((5, 6),),
)
seen("LEN is not checked", "LEN" in clauses.not_checked(view), False)
# 2 cells are written and 1 is allocated
seen("violations", [name for name, _ in clauses.violations(view)], ["LEN"])
