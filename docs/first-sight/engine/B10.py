from common import *
# The first choice of request 1 is freed, the second lives: (1, 1) is taken.
e = engine(8, 4, 4, 2)
e.prefill([req(1, (1, 2), 4, n=2)])
e.free(0)
check(why(e.prefill, [req(1, (3,), 2, n=2)]), "CHOICE_TAKEN", "a second request 1 while choice 1 lives")
