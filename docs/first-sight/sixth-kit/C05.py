"""Q accepts that the last of a slot's queued tokens alone disappears from the queue.

By hand: slot 0 knows (5, 6, 7, 8), two cells are written, and (7, 0, 2), (8, 0, 3) are queued. After
the step only (7, 0, 2) is queued and nothing else has changed. Token 8 was neither written, nor among
the first ones that leave (that would be 7), nor did all tokens of its slot leave: Q is violated, and
nothing else. That all leave (a purge), or the first one (a pack), is right.
"""
from attrs import evolve
from common_b import verdict
from spec import clauses
from spec.view import View
from spec.vocabulary import INVALID, Geometry

G = Geometry(pages=2, page_size=4, slots=2, pages_per_seq=1)
before = View(geometry=G, counts=(1, 0), used=(True, False), rows=((0,), (INVALID,)), allocated=(2, 0),
              written=(2, 0), tokens=((5, 6, 7, 8), ()), finished=(False, False),
              queue=((7, 0, 2), (8, 0, 3)))
def wrong(queue):
    after = evolve(before, queue=queue)
    return [name for name, _ in (*clauses.step_violations(before, after), *clauses.violations(after))]
verdict((["Q"], [], []), (wrong(((7, 0, 2),)), wrong(()), wrong(((8, 0, 3),))))
