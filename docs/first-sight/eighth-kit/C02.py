"""2 + 4 tokens, 4 cells ahead, rows of 8 positions: min(6 + 4, 8) = 8 cells, 4 pages of 2. The pool
has 3, so the request can never run, and Submit refuses it."""
from common import *

g = geometry(pages=3, page_size=2, slots=2, pages_per_seq=4)
m, s = start(g, capacity=Capacity(lookahead=4))
request = Request(id=1, prompt=(5, 6), params=Params(max_new=4))
seen("submit", reasons(m, s, act.Submit(request)), {"NEVER_FITS"})
