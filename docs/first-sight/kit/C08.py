from common import *
from spec import clauses
L = FinishReason.LIMIT
g = geometry(slots=1, pages=1)
v = lambda *o: view.View(geometry=g, counts=(0,), used=(False,), rows=((),), outputs=o)
# The tokens of an output that is kept change from (6,) to (9,): it does not survive.
found = [c for c, _ in clauses.step_violations(v((1, 0, (5,), L), (2, 0, (6,), L)), v((1, 0, (5,), L), (2, 0, (9,), L)))]
seen("an output changes", found, ["OUT"])
