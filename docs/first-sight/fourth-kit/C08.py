"""FRAME passes over a slot whose row changed: its cells may then change unseen.

docs/clauses.md, FRAME: "an action on one sequence changes nothing observable of another". Slot 0
writes its second cell; meanwhile the row of slot 1 names page 2 in the place of page 1, and page 2
holds something else. Tokens and lengths of slot 1 are as before, so it was not acted on, and what
is read at its position 0 must be the same: FRAME is violated. If page 2 holds the same, it is not.
"""

from common_c import report

from spec import clauses
from spec.view import View
from spec.vocabulary import Geometry

geometry = Geometry(pages=3, page_size=2, slots=2, pages_per_seq=2)


def seen(second, written, *cells):
    return View(
        geometry=geometry,
        counts=tuple(int(page in (0, second)) for page in range(3)),
        used=(True, True),
        rows=((0,), (second,)),
        allocated=(2, 2),
        written=(written, 2),
        tokens=((5, 6), (7, 8)),
        cells=cells,
    )


before = seen(1, 1, 50, 0, 70, 80, 0, 0)
moved = seen(2, 2, 50, 60, 70, 80, 99, 99)
same = seen(2, 2, 50, 60, 70, 80, 70, 80)
report(
    ("other cells", ["FRAME"], [name for name, _ in clauses.step_violations(before, moved)]),
    ("the same cells", [], [name for name, _ in clauses.step_violations(before, same)]),
)
