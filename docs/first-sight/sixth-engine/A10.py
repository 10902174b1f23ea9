"""Three choices share the full first page of a prompt of 4 tokens: its count is 3."""
from common_b import *

e = engine(Geometry(pages=8, page_size=4, slots=3, pages_per_seq=2))
e.prefill([Request(id=1, prompt=(1, 2, 3, 4), params=Params(max_new=3), n_generations=3)])
first = e.stats().largest_count
e.free(1)
e.free(2)
verdict((3, 1, 1), (first, e.stats().largest_count, e.stats().pages_in_use))
