"""WIN: a page is released only if no query to come can see it, and the next query is at `committed`,
also after a truncation. With a window of 3 and 4 cells committed the query at 4 sees position 2, so
only page 0 may be gone; that three drafts are written beyond makes no difference.
"""
from common import *
from spec import clauses

def named(first_page):
    row = (INVALID,) * first_page + tuple(range(first_page, 4))
    shown = view.View(
        geometry=geometry(pages=4, slots=1, window=3),
        counts=tuple(int(page in row) for page in range(4)),
        used=(True,), rows=(row,), allocated=(7,), written=(7,), committed=(4,),
        first_page=(first_page,), tokens=((1, 2, 3, 4),), proposed=((5, 6, 7),),
    )
    return [name for name, _ in clauses.violations(shown)]

seen("violations with one page released", named(1), [])
seen("violations with two pages released", named(2), ["WIN"])
