"""A prefill is TOO_LONG only if the prompt and max_new of one request exceed max_len = 16. Here
both requests have 10 + 2 = 12 positions, so that the prefill is right."""
from common import *

e = engine(16, 4, 4, 4)
check(why(e.prefill, [req(1, range(10), 2), req(2, (1, 2), 10)]), None, "two requests of 12 positions")
check(e.stats().active, 2, "slots in use")
check(why(e.prefill, [req(3, range(10), 7)]), "TOO_LONG", "one request of 17 positions")
