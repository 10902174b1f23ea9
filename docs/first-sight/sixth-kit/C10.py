"""SHARE accepts a partial page that is still shared although one of its owners has appended in it.

By hand: lazy copies, pages of 4. Slots 0 and 1 share page 0 with 3 committed cells: right. Then slot
0 has a fourth cell allocated in page 0, which it should have copied first: slot 0 can write a page
with 2 names, so SHARE is violated once.
"""
from attrs import evolve
from common_b import verdict
from spec import clauses
from spec.view import View
from spec.vocabulary import Capacity, Geometry

G = Geometry(pages=2, page_size=4, slots=2, pages_per_seq=1)
shared = View(geometry=G, counts=(2, 0), used=(True, True), rows=((0,), (0,)), allocated=(3, 3),
              written=(3, 3), committed=(3, 3), tokens=((5, 6, 7, 8), (5, 6, 7, 8)),
              capacity=Capacity(copy="lazy"))
def wrong(seen):
    return [name for name, _ in clauses.violations(seen)]
verdict(([], ["SHARE"]), (wrong(shared), wrong(evolve(shared, allocated=(4, 3)))))
