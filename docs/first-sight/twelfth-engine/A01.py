"""A reset forgets untaken outputs too, whether or not a slot is in use."""
from common import *

e = engine(8, 4, 3, 4)
e.prefill([req(7, (1, 2, 3), 2)])
while e.stats().active:
    e.generate()  # the sequence ends with its second token, and leaves its slot (incremental)
check(e.stats().outputs, 1, "outputs before the reset")
e.reset()
check(e.stats().outputs, 0, "outputs after the reset")
check(why(e.prefill, [req(7, (4, 5), 2)]), None, "the id is free after the reset")
check([o.request for o in e.take_outputs()], [], "outputs taken after the reset")
