"""Cleanup END. Request 1 (max_new 1) finishes in the prefill, request 2 goes on. Free(1) frees slot 1
alone: sequences that have finished are freed at the end of a prefill or a round, or by FreeFinished.
So slot 0 remains in use, with its one page."""
from common_b import *

e = engine(Geometry(pages=8, page_size=4, slots=3, pages_per_seq=2), cleanup=CleanupMode.END)
e.prefill([Request(id=1, prompt=(5, 6), params=Params(max_new=1)),
           Request(id=2, prompt=(5, 6), params=Params(max_new=4))])
e.free(1)
verdict((1, 1), (e.stats().active, e.stats().pages_in_use))
