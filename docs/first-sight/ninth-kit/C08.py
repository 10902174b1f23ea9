"""A round in which a drawn token is lost, while a twin is one token ahead."""
from common import *
from spec import clauses
# Slots 0 and 1 have the prompt (7, 8); slot 0 is one token ahead. The round writes the last token
# of both, and draws 5 in slot 0 and 9 in slot 1. Both must be queued (docs/clauses.md, Q); slot 1
# was in use before, so that it is no clone.
def shown(tokens, written, rows, counts, queue):
    g = Geometry(pages=5, page_size=2, slots=2, pages_per_seq=3)
    return view.View(geometry=g, counts=counts, used=(True, True), rows=rows, allocated=written,
        written=written, tokens=tokens, finished=(False, False), queue=queue, outputs=())
before = shown(((7, 8, 9), (7, 8)), (2, 1), ((0,), (1,)), (1, 1, 0, 0, 0), ((9, 0, 2), (8, 1, 1)))
def after(*queue):
    return shown(((7, 8, 9, 5), (7, 8, 9)), (3, 2), ((0, 2), (1,)), (1, 1, 1, 0, 0), queue)
for one in (before, after((5, 0, 3), (9, 1, 2)), after((5, 0, 3))):
    seen("clauses of a state", [*clauses.violations(one)], [])
def found(*queue):
    return [name for name, _ in clauses.step_violations(before, after(*queue))]
seen("both are queued", found((5, 0, 3), (9, 1, 2)), [])
seen("that of slot 1 is lost", found((5, 0, 3)), ["Q"])
