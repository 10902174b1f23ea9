"""max_len is 4 * 2 = 8. A prompt of 1 token with max_new 8 (or 100) would have 9 tokens or more, so
Assign and Prefill refuse it as TOO_LONG; 1 + 7 = 8 tokens fit."""
from common_b import *

e = engine(Geometry(pages=8, page_size=4, slots=3, pages_per_seq=2))
e.reserve(0)
one = lambda number, most: Request(id=number, prompt=(5,), params=Params(max_new=most))
seen = [attempt(e.assign, 0, (5,), Params(max_new=8), request=1),
        attempt(e.prefill, [one(2, 100)]), attempt(e.prefill, [one(3, 7)])]
long = ("Refused", ("TOO_LONG",))
verdict([long, long, None], seen)
