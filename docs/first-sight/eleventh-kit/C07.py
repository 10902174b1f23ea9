"""Pages of 4, a pool of 2. Prompt 4 and max_new 5 are 9 tokens: ceil(9 / 4) = 3 pages, more than the pool has."""
from common import *
g = geometry(pages=2, page_size=4, slots=2, pages_per_seq=3)
request = Request(id=1, prompt=(1, 2, 3, 4), params=Params(max_new=5))
m, s = start(g, ladder.machine("admission"), capacity=Capacity(reserve="request"))
seen("Submit of a request that reserves 3 pages of 2", reasons(m, s, act.Submit(request)), {"NEVER_FITS"})
seen("pages of 9 tokens", request.pages_needed(g), 3)
