"""Four cells and four ahead are 8 cells, 4 pages of 2: more than the pool of 3 has."""
from common import *
m, s = start(geometry(pages=3), capacity=Capacity(lookahead=4))
r = Request(id=1, prompt=(1, 2), params=Params(max_new=2))
seen("Submit", reasons(m, s, act.Submit(r)), {"NEVER_FITS"})
m, s = start(geometry(pages=4), capacity=Capacity(lookahead=4))
seen("Submit, 4 pages", reasons(m, s, act.Submit(r)), set())
