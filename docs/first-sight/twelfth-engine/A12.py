"""A (request, choice) is free once its output is taken: another sequence may be given it."""
from common import Params, check, engine, req, why

e = engine(8, 4, 3, 3)
e.prefill([req(2, (5, 6), 1)])  # ends with its first token, and leaves its slot
check([(o.request, o.choice) for o in e.take_outputs()], [(2, 0)], "the output that is taken")
slot = e.reserve()
check(why(e.assign, slot, (7, 8), Params(max_new=2), request=2), None, "assign under a name that is free")
