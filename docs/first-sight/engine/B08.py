from common import *
import signal
# Ctrl-C when request 1 has finished: its output waits on the host, so its id is still taken.
e = engine(8, 4, 2, 8, rounds=4)
h = Host(e)
decode, calls = e.generate, []
def decode_and_press():
    calls.append(1)
    if len(calls) == 2:
        signal.raise_signal(signal.SIGINT)
    return decode()
e.generate = decode_and_press
try:
    h.generate([req(1, (5, 2), 2), req(2, (7, 7), 20)])
except KeyboardInterrupt:
    pass
e.generate = decode
check([o.request for o in h.state.finished], [1], "outputs that wait on the host")
check(why(h.submit, req(1, (9,), 6)), "CHOICE_TAKEN", "an id whose output is not returned yet")
