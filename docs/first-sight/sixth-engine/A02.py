"""Three slots, all unused. A request for 4 choices needs 4 slots: refused with NO_FREE_SLOT, and no
slot is taken. (Outputs and queue have room for 6.)"""
from common_b import *

e = engine(Geometry(pages=8, page_size=4, slots=3, pages_per_seq=2))
got = attempt(e.prefill, [Request(id=1, prompt=(5, 6), params=Params(max_new=3), n_generations=4)])
verdict((("Refused", ("NO_FREE_SLOT",)), 0), (got, e.stats().active))
