"""Outputs that had left the device when an interrupt came are kept for the next generate or
take_outputs (docstring of Host). Here the first request has finished before the interrupt."""
import signal

from common import *

e = engine(16, 4, 2, 8)
h, decode, calls = Host(e), e.generate, []


def press():
    calls.append(1)
    if len(calls) == 2:
        signal.raise_signal(signal.SIGINT)
    return decode()


e.generate = press
try:
    h.generate([req(1, (5, 2, 9), 4), req(2, (7, 7), 28)])
except KeyboardInterrupt:
    pass
check(len(calls), 2, "calls before the interrupt")
seen = [(o.request, o.choice, len(o.tokens)) for o in h.take_outputs()]
check(seen, [(1, 0, 4)], "the output that had finished before the interrupt")
