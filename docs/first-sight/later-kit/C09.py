"""WX: a page that is written has count 1."""
from common import *
from spec import clauses
from spec.view import View
def shown(first):
    """Slots 0 and 1 share page 0, of two cells; one cell of it is written, or, of slot 0, both."""
    t = ((5, 6), (5,)); n = (first, 1)
    return View(geometry=Geometry(pages=2, page_size=2, slots=2, pages_per_seq=1), counts=(2, 0), used=(True, True),
                rows=((0,), (0,)), allocated=n, written=n, tokens=t, capacity=Capacity(copy="lazy"))
# By hand: slot 0 writes position 1, which is in page 0 (1 // 2 = 0). Page 0 has two names: it had to be copied first.
seen("clauses", [name for name, _ in clauses.step_violations(shown(1), shown(2))], ["WX"])
