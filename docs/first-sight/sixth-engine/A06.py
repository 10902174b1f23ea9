"""A request with id 7 is served in slot 0, ends (max_new 1), its slot is freed and its output taken:
the id is free again. The caller then reserves slot 0 for another request, without a prompt yet. A
prefill of id 7 is legal: it takes slot 1."""
from common_b import *

e = engine(Geometry(pages=8, page_size=4, slots=3, pages_per_seq=2))
again = Request(id=7, prompt=(5, 6), params=Params(max_new=1))
e.prefill([again])
e.take_outputs()
e.reserve(0)
got = attempt(e.prefill, [again])
verdict((None, 1), (got, e.stats().outputs))
