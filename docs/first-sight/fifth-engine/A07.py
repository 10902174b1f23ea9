"""A prefill asks for a whole row of pages for each choice, and is refused although it fits.

docs/actions.md, Prefill, OUT_OF_PAGES: "a row for each prompt, and for each further choice what its
row does not share with the prompt's". The prompt of nine tokens needs three pages, of which two are
full and shared; the second choice needs a copy of the third. So four pages are enough, and the pool
has four: the prefill is done, with the rows (0, 1, 2) and (0, 1, 3).
"""
from common_a import *

ours = engine(Geometry(pages=4, page_size=4, slots=2, pages_per_seq=4))
request = Request(id=1, prompt=tuple(range(1, 10)), params=Params(max_new=2), n_generations=2)
refused = reasons(ours, act.Prefill((request,)))
rows = [row[:3] for row in ours.observe().rows]
compare({"refused": [], "rows": [(0, 1, 2), (0, 1, 3)]}, {"refused": refused, "rows": rows})
