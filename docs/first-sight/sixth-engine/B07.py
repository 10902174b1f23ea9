"""A caller's own SIGINT handler, which only sets a flag (a graceful stop), during a call.

Docstring of hold_interrupts: "Call `work`, and only then the handler of a SIGINT that came
meanwhile"; only "an exception of that handler is raised". The handler here raises nothing, so
expected: it is called once, and the call returns its result: generate of one sequence with max_new
3 (the first token is drawn in the prefill) does 2 rounds, then the queue is empty.
With the bug KeyboardInterrupt is raised, the handler is never called, and the result is lost.
"""
import signal
from common_b import *
from spec.vocabulary import Reason
import impl.engine

calls = []
made = engine(Geometry(pages=8, page_size=4, slots=2, pages_per_seq=2))
made.prefill([Request(id=1, prompt=(1, 2), params=Params(max_new=3))])
bind = made._bind

def bind_and_press(run, rest):
    signal.raise_signal(signal.SIGINT)
    return bind(run, rest)

made._bind = bind_and_press
signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
try:
    seen = made.generate()
except KeyboardInterrupt:
    seen = "KeyboardInterrupt"
verdict(((2, Reason.QUEUE_EMPTY), [signal.SIGINT]), (seen, calls))
