"""A reset forgets everything, outputs that wait to be taken too, also when no slot is in use."""
from common import check, engine, req, why

e = engine(4, 4, 2, 2)
e.prefill([req(1, (5, 6), 1)])  # ends with its first token, and leaves its slot
check((e.stats().active, e.stats().outputs), (0, 1), "slots in use and outputs before the reset")
e.reset()
check(e.stats().outputs, 0, "outputs after the reset")
check(why(e.prefill, [req(1, (7, 8), 1)]), None, "the id is free after the reset")
check(len(e.take_outputs()), 1, "outputs of the new request alone")
