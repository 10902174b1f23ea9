"""The worst case of a request is the pages that it can ever hold, those that the policy takes ahead
included, so that no round of an admitted request lacks a page. With lookahead 4 and pages of 2, two
prompt tokens and two new ones end with 3 cells written and 4 ahead: 4 pages. Two such requests do
not fit together in a pool of 6.
"""
from common import *

g = geometry(pages=6)
ahead = Capacity(lookahead=4)
first, second = (Request(id=n, prompt=(n, n), params=Params(max_new=2)) for n in (1, 2))
seen("pages in the worst case", first.pages_needed(g, ahead), 4)

m, s = start(g, capacity=ahead)
s = run(m, s, act.Submit(first), act.Submit(second), act.Admit())
seen("admitted", [one.id for one in s.admitted], [1])
seen("a round is refused for", reasons(m, s, act.Round()), set())
