"""A slot that is reserved, and has no prompt yet, is in use: a prefill takes the next ones."""
from common import Params, check, engine, req, why

one = engine(pages=8, page_size=4, slots=3, pages_per_seq=3)
one.prefill([req(1, (1, 2), 3)])
one.generate()
one.take_outputs()
slot = one.reserve()
check(slot, 0, "the reserved slot")
one.prefill([req(2, (5, 6, 7), 3)])
check(one.stats().active, 2, "slots in use: the reserved one, and that of the request")
check(why(one.assign, slot, (8, 9), Params(max_new=2), request=3), None, "assign in the reserved slot")
one.generate()
check([(out.request, len(out.tokens)) for out in one.take_outputs()], [(2, 3)], "outputs")
print("right")
