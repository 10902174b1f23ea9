"""Cells may be allocated up to max_len, further than the tokens of the request reach."""
from common import *

e = engine(8, 4, 2, 4)  # max_len 16
e.reserve(0)
e.assign(0, (1, 2, 3), Params(max_new=2), request=1, choice=0)
# a caller that takes whole pages: 2 of them, positions 0 to 7
check(why(e.allocate, [(0, p) for p in range(8)]), None, "two whole pages for a prompt of 3")
check(e.extract().slots.allocated[0].item(), 8, "allocated")
check(why(e.allocate, [(0, p) for p in range(8, 17)]), "TOO_LONG", "past max_len")
