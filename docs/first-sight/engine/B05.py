from common import *
# Request 1: prompt 3, 5 new, pages of 2: 1 shared page and 3 for each of 2 choices = 7 of 8.
# Request 2: 2 + 5 tokens = 4 pages: it must wait until both choices of request 1 have gone.
h = Host(engine(8, 2, 4, 4))
free = h.generate([req(9, (1, 2, 3), 5, n=2, temperature=1.0, seed=3)])
stop = free[9, 0].tokens[0]
assert stop not in free[9, 1].tokens
h.submit(req(1, (1, 2, 3), 5, n=2, temperature=1.0, seed=3, stops=((stop,),)))
h.admit()
check(h.stats().occupants, frozenset({(1, 1)}), "choices that hold a slot: the first has stopped")
h.submit(req(2, (4, 5), 5))
check(why(h.admit), "OUT_OF_PAGES", "admission beside 7 of 8 reserved pages")
