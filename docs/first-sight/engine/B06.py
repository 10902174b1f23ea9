from common import *
# Two outputs fill the buffer of two. Slot 0 has two queued tokens, and a round takes one: its last
# known token is not in the round, so nothing is drawn and nothing can finish.
e = engine(8, 4, 2, 2, round_tokens=1, outputs=2)
e.prefill([req(1, (1, 2), 5)])
e.prefill([req(2, (1,), 1)])
e.prefill([req(3, (1,), 1)])
check(e.stats().outputs, 2, "outputs")
e.enqueue(0, 7)
check(why(e.round), None, "round that draws nothing, with the outputs full")
check(e.stats().queued, 1, "queued tokens")
