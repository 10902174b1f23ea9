"""Clauses of which a view hides one needed field, and shows another, are not reported as not checked.

By hand: the view shows counts, used, rows, allocated, written and tokens, and hides the others.
WIN needs first_page, CONTENT, READ and FRAME cells, Q queue, OUT outputs, RB committed: these seven
are not judged, so not_checked names them; CONS, UAF, RC, ROW, LEN, SHARE and WX are judged.
"""
from common_b import verdict
from spec import clauses
from spec.view import View
from spec.vocabulary import Geometry

G = Geometry(pages=1, page_size=2, slots=1, pages_per_seq=1)
seen = View(geometry=G, counts=(1,), used=(True,), rows=((0,),), allocated=(2,), written=(2,),
            tokens=((5, 6),))
verdict({"WIN", "CONTENT", "READ", "FRAME", "Q", "OUT", "RB"}, set(clauses.not_checked(seen)))
