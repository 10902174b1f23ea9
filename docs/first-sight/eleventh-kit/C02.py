"""Window: nothing releases pages but Release, so the worst case is that without a window."""
from common import *

g = geometry(pages=8, page_size=2, slots=4, pages_per_seq=6, window=2)
m, s = start(g, ladder.machine("admission", "window"))
one, two = (Request(id=name, prompt=(name, 9), params=Params(max_new=10)) for name in (1, 2))
# 12 positions are 6 pages; both need 12 and the pool has 8.
seen("worst case", one.pages_needed(g), 6)
s = run(m, s, act.Submit(one), act.Submit(two), act.Admit())
seen("admitted", [request.id for request in s.admitted], [1])
seen("second Admit", reasons(m, s, act.Admit()), {"OUT_OF_PAGES"})
# More pages than the pool has: never. 4 choices of 6 pages each, of which one of the prompt is shared.
four = Request(id=3, prompt=(1, 2), params=Params(max_new=10), n_generations=4)
seen("Submit of 21 pages", reasons(m, s, act.Submit(four)), {"NEVER_FITS"})
