"""The clause UAF accepts a row that names a negative page.

UAF: no row names a free page; a row names pages from 0 to pages - 1, and "no page" is INVALID, since
"a negative sentinel would wrap around to the last page" (docs/pages.md). Slot 0 has one cell, in page
-1; slot 1 one cell in page 2, the last. Page 2 has count 1, so that counts[-1] is not 0, and RC, CONS
and ROW hold: UAF alone can say what is wrong.
"""

from common_c import judge

from spec import clauses
from spec.view import View
from spec.vocabulary import INVALID, Geometry

view = View(
    geometry=Geometry(pages=3, page_size=2, slots=2, pages_per_seq=2),
    counts=(0, 0, 1),
    used=(True, True),
    rows=((-1, INVALID), (2, INVALID)),
    allocated=(1, 1),
)
judge(("clauses that the view violates", ["UAF"], [name for name, _ in clauses.violations(view)]))
