"""A request with a stop sequence longer than limits.stop_len can never run, so Submit refuses it
with STOPS, wherever that sequence stands among the others and whatever tokens it has."""
from common import *

h = Host(engine(8, 4, 2, 4, stop_len=2, stops=2))
check(why(h.submit, req(1, (1, 2), 3, stops=((9,), (1, 2, 3)))), "STOPS", "a stop sequence of 3 tokens")
check(h.state.waiting, (), "waiting requests")
