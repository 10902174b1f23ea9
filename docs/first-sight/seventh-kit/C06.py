"""What a cell must hold follows from its prefix and the window alone, however many others were asked."""
from common import *
from spec import clauses, model
from spec.view import View

tag = (7, 8, 9, 10)
# The definition: the whole model on the whole prefix. With window 2, position 3 sees 2 and 3 alone.
defined = [cell for cell, _ in model.forward(tag, 2)]
model.contents(tag[:2], 2)
for token in range(100, 100 + (1 << 16)):
    model.contents((token,), 2)
model.contents(tag[:3], 2)
for token in range(100 + (1 << 16), 200 + (1 << 17)):
    model.contents((token,), 2)  # a long run: 131,172 other prefixes in all
# An engine that holds what is defined is right. The first page of its slot (tokens 7 and 8) is released.
g = Geometry(pages=1, page_size=2, slots=1, pages_per_seq=2, window=2)
right = View(geometry=g, counts=(1,), used=(True,), rows=((INVALID, 0),), allocated=(4,), written=(4,),
             first_page=(1,), tokens=(tag,), cells=tuple(defined[2:]),
             expected=lambda prefix: model.contents(prefix, 2))
seen("a right engine", list(clauses.violations(right)), [])
seen("contents of the fourth cell", model.contents(tag, 2), defined[-1])
